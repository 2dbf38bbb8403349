"""All settings in effect: the value of each key, where it comes from, and whether the API may change it."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from config.deprecations import apply_deprecations
from config.errors import write_key
from config.loader import apply_environment, read_tables
from config.model import Settings
from config.reload import NEEDS_RESTART
from config.secrets import Secret, is_reference
from config.types import Table

CHANGEABLE = frozenset(
    {
        "agents.*.fallbacks",
        "agents.*.label",
        "agents.*.max_iterations",
        "agents.*.model",
        "agents.*.system_prompt",
        "api.idle_minutes",
        "api.max_active_sessions",
        "api.rate_limit",
        "channels.*.busy",
        "channels.*.max_reply_parts",
        "channels.*.rate_limit",
        "channels.*.waiting_sign",
        "files.fetch_timeout",
        "files.max_bytes",
        "files.max_per_message",
        "files.max_stored_bytes",
        "files.max_text_chars",
        "gateway.approval_timeout",
        "gateway.flush_interval",
        "gateway.log_level",
        "gateway.max_backlog_age",
        "gateway.max_message_chars",
        "gateway.max_parallel_turns",
        "gateway.max_queued",
        "gateway.max_queued_per_session",
        "gateway.max_reply_parts",
        "gateway.shutdown_timeout",
        "gateway.timezone",
        "gateway.turn_timeout",
        "limits.tokens_per_turn",
        "limits.tokens_per_user_per_day",
        "memory.prompt_chars",
        "session.archive_days",
        "session.backlog_limit",
        "session.compaction",
        "session.context_chars",
        "session.context_messages",
        "session.idle_minutes",
        "session.max_messages",
        "session.ttl_days",
        "tools.documents.timeout",
        "tools.fetch.timeout",
        "tools.search.max_results",
        "tools.search.timeout",
        "tools.shell.max_output_chars",
        "tools.shell.timeout",
    }
)
"""Keys that the API may change, with `*` for names.

None of them names a program, a folder, a secret or an address, or decides who has access to what. So a stolen token
cannot use them to get out of the gateway or to stay in it.
"""


class Origin(StrEnum):
    """Where a value comes from."""

    FILE = "file"
    ENVIRONMENT = "environment"
    DEFAULT = "default"


class Kind(StrEnum):
    """What a value looks like."""

    FLAG = "flag"
    INTEGER = "integer"
    NUMBER = "number"
    TEXT = "text"
    CHOICE = "choice"
    LIST = "list"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One key. Secrets in its value are `***`; `reference` is where the secret is stored, such as `env:NAME`."""

    key: str
    value: Any  # JSON of any shape.
    origin: Origin
    kind: Kind
    is_optional: bool
    choices: tuple[str, ...]
    description: str
    is_changeable: bool
    needs_restart: bool
    reference: str


def list_settings(settings: Settings, path: Path | None, environ: Mapping[str, str] = os.environ) -> list[Setting]:
    """Return all keys of the settings in their order. `path` is the file that they come from, if any.

    Raises `ConfigError` if the file cannot be read any more.
    """
    written = apply_deprecations(read_tables(path), lambda _: None) if path is not None and path.exists() else {}
    effective = apply_environment(written, environ, [])
    dumped = settings.model_dump(mode="json")
    return [
        _setting(leaf, _origin(leaf.path, written, effective), _find(written, leaf.path))
        for leaf in _leaves(settings, dumped, (), ())
    ]


def is_changeable(key: str) -> bool:
    """Return whether the API may change a key, which is written without quotes."""
    parts = key.split(".")
    return any(_matches(parts, pattern.split(".")) for pattern in CHANGEABLE)


def _matches(parts: list[str], pattern: list[str]) -> bool:
    return len(parts) == len(pattern) and all(want in ("*", part) for part, want in zip(parts, pattern, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leaf:
    path: tuple[str, ...]
    pattern: str
    value: Any  # As in `Setting`.
    annotation: Any  # An annotation can be anything.
    description: str


def _leaves(table: Table, dumped: Any, path: tuple[str, ...], pattern: tuple[str, ...]) -> Iterator[_Leaf]:  # noqa: ANN401 - JSON of any shape.
    """Yield the keys of a table and of the tables in it."""
    for name, info in type(table).model_fields.items():
        if name not in dumped:  # It has no meaning here, such as a key of another kind of agent.
            continue
        value, here, general = getattr(table, name), (*path, name), (*pattern, name)
        match value:
            case Table():
                yield from _leaves(value, dumped[name], here, general)
            case dict() if value and all(isinstance(each, Table) for each in value.values()):
                for key, inner in value.items():
                    yield from _leaves(inner, dumped[name][key], (*here, key), (*general, "*"))
            case _:
                yield _Leaf(
                    path=here,
                    # The keys of an account are those of its channel.
                    pattern=".".join(general).replace("channels.*.accounts.*.", "channels.*."),
                    value=dumped[name],
                    annotation=info.annotation,
                    description=info.description or "",
                )


def _setting(leaf: _Leaf, origin: Origin, written: object) -> Setting:
    kind, choices, is_optional = _kind(leaf.annotation)
    is_named_once = all(part.replace("-", "").replace("_", "").isalnum() for part in leaf.path)
    return Setting(
        key=write_key(leaf.path),
        value=leaf.value,
        origin=origin,
        kind=kind,
        is_optional=is_optional,
        choices=choices,
        description=leaf.description,
        is_changeable=is_named_once and is_changeable(".".join(leaf.path)),
        needs_restart=leaf.pattern in NEEDS_RESTART,
        reference=written if isinstance(written, str) and is_reference(written) else "",
    )


def _origin(path: tuple[str, ...], written: Mapping[str, object], effective: Mapping[str, object]) -> Origin:
    in_file, in_effect = _find(written, path), _find(effective, path)
    if in_effect is not None and in_effect != in_file:
        return Origin.ENVIRONMENT
    return Origin.DEFAULT if in_file is None else Origin.FILE


def _find(tables: object, path: tuple[str, ...]) -> object:
    for part in path:
        tables = tables.get(part) if isinstance(tables, dict) else None
    return tables


def _kind(annotation: Any) -> tuple[Kind, tuple[str, ...], bool]:  # noqa: ANN401 - an annotation can be anything.
    """Return the kind of values that an annotation allows, the words to choose from, and whether there may be none."""
    if get_origin(annotation) is Annotated:
        return _kind(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        others = [each for each in get_args(annotation) if each is not type(None)]
        kind, choices, _ = _kind(others[0]) if len(others) == 1 else (Kind.OTHER, (), False)
        return kind, choices, len(others) < len(get_args(annotation))
    if get_origin(annotation) is tuple:
        kind, _, _ = _kind(get_args(annotation)[0])
        return (Kind.LIST if kind is Kind.TEXT else Kind.OTHER), (), False
    if not isinstance(annotation, type) or issubclass(annotation, Secret):
        return Kind.OTHER, (), False
    if issubclass(annotation, StrEnum):
        return Kind.CHOICE, tuple(annotation), False
    kinds = {bool: Kind.FLAG, int: Kind.INTEGER, float: Kind.NUMBER, str: Kind.TEXT}
    return kinds.get(annotation, Kind.OTHER), (), False
