"""Edits single keys of the config file, and shows settings without their secrets."""

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from config.errors import ConfigError, Problem, did_you_mean
from config.files import make_private_directory, write_atomically
from config.loader import Loaded, parse, read_tables, validate
from config.model import Settings

_Tables = dict[str, Any]
_Change = tuple[Sequence[str], object]
"""The parts of a dotted key, and its new value; None removes the key."""
_LOST_COMMENTS = "the comments in the file are lost: its layout is too unusual for an edit in place"


def set_value(path: Path, key: str, value_text: str, environ: Mapping[str, str] = os.environ) -> Loaded:
    """Set a dotted key and keep all others. Creates the file if it does not exist.

    `value_text` is parsed as a TOML value. It is taken as text if it is not valid TOML, or if only text fits the key.
    The result is validated first, without following references to secrets: a `ConfigError` leaves the file unchanged.
    Comments and the order of the keys stay as they are. Returns the new settings, with their warnings.
    """
    parts = _parse_key(key, path)
    try:
        value_text.encode()
    except UnicodeEncodeError:
        raise ConfigError([Problem(key=key, message="the value is not UTF-8 text")], path=path) from None
    values: list[object] = [value_text]
    try:
        parsed = parse(f"value = {value_text}")
    except (ValueError, RecursionError):
        pass
    else:
        if set(parsed) == {"value"}:  # Otherwise line breaks in the text made several keys of it.
            value = parsed["value"]
            # A bare 4.1 may be a number or the name of a model, so both are tried.
            values = [value] if isinstance(value, str | list | dict) else [value, value_text]
    return _write_first_valid(path, [[(parts, value)] for value in values], environ)


def set_values(path: Path, values: Mapping[str, object], environ: Mapping[str, str] = os.environ) -> Loaded:
    """Set several dotted keys at once, each to a TOML value; None removes the key if it exists.

    Validates and writes like `set_value`.
    """
    return _write_first_valid(path, [_changes(path, values)], environ)


def _changes(path: Path, values: Mapping[str, object]) -> list[_Change]:
    tables = _read_if_exists(path)
    changes: list[_Change] = [(_parse_key(key, path), value) for key, value in values.items()]
    return [(parts, value) for parts, value in changes if value is not None or _has(tables, parts)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A change of the file that was not made yet: its text before and after it, and the settings then."""

    before: str
    after: str
    loaded: Loaded


def preview_values(path: Path, values: Mapping[str, object], environ: Mapping[str, str] = os.environ) -> Edit:
    """Return what `set_values` would do. Raises `ConfigError` as it would, and changes nothing."""
    tables, text, loaded = _first_valid(path, [_changes(path, values)], environ)
    before = path.read_bytes().decode("utf-8-sig") if os.path.lexists(path) else ""
    return Edit(before=before, after=tomli_w.dumps(tables) if text is None else text, loaded=loaded)


def unset_value(path: Path, key: str, environ: Mapping[str, str] = os.environ) -> Loaded:
    """Remove a dotted key or a whole table, so that the default applies. Validates and writes like `set_value`."""
    return _write_first_valid(path, [[(_parse_key(key, path), None)]], environ)


def show(settings: Settings) -> str:
    """Return all effective settings as TOML; secrets are `***`."""
    return tomli_w.dumps(settings.model_dump(mode="json", exclude_none=True))


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the config file, for completion and checks in editors."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Settings.model_json_schema()}


def _read_if_exists(path: Path) -> _Tables:
    # `lexists`, so that a dangling link is reported and not replaced.
    return read_tables(path) if os.path.lexists(path) else {}


def _first_valid(
    path: Path, candidates: Sequence[Sequence[_Change]], environ: Mapping[str, str]
) -> tuple[_Tables, str | None, Loaded]:
    """Return the first of the candidates whose result validates, as `_edit` does, or raise the error of the first."""
    errors = []
    for changes in candidates:
        try:
            tables, text = _edit(path, changes)
            return tables, text, validate(tables, path, environ, resolves=False)
        except ConfigError as error:
            errors.append(error)
    raise errors[0]


def _write_first_valid(path: Path, candidates: Sequence[Sequence[_Change]], environ: Mapping[str, str]) -> Loaded:
    """Make the first of the candidates whose result validates, or raise the `ConfigError` of the first."""
    tables, text, loaded = _first_valid(path, candidates, environ)
    target = path.resolve()  # A link to the file stays a link.
    try:
        # A new file is private. An existing one keeps its readers, such as the user of a service, until it
        # contains a secret. Others never get the right to write.
        is_new = not target.exists()
        mode = 0o600 if is_new or loaded.has_exposed_secret else target.stat().st_mode & 0o644
        make_private_directory(target.parent)
        write_atomically(target, (tomli_w.dumps(tables) if text is None else text).encode())
        target.chmod(mode)
    except OSError as error:
        reason = (error.strerror or "unknown reason").lower()
        problem = Problem(key="", message=f"cannot be written: {reason}", hint="check who owns the folder")
        raise ConfigError([problem], path=path) from error
    loaded = validate(tables, path, environ, resolves=False)  # Again, because the mode has changed.
    lost = () if is_new or text is not None else (_LOST_COMMENTS,)
    return replace(loaded, warnings=(*loaded.warnings, *lost))


def _edit(path: Path, changes: Sequence[_Change]) -> tuple[_Tables, str | None]:
    """Return the tables after the changes, and the edited text of the file; None if it must be written from scratch."""
    tables = _read_if_exists(path)
    text = path.read_bytes().decode("utf-8-sig") if os.path.lexists(path) else None
    for parts, value in changes:
        tables = _without(tables, parts, path) if value is None else _with(tables, parts, value, path)
        if text is not None:
            # Only edits need tomlkit, and it takes a while to import.
            from config.document import edit  # noqa: PLC0415

            text = edit(text, parts, value, tables)
            tables = tables if text is None else tomllib.loads(text)
    return tables, text


def _parse_key(key: str, path: Path) -> list[str]:
    """Split a dotted key like TOML does: `a.b."c d"` has three parts."""
    try:
        table: object = tomllib.loads(f"{key} = 0")
    except ValueError:
        table = None
    parts = []
    while isinstance(table, dict) and len(table) == 1:
        ((part, table),) = table.items()
        parts.append(part)
    if table != 0:  # The text was not exactly one key.
        hint = "write it like http.port; set a list such as bindings as a whole"
        raise ConfigError([Problem(key=key, message="is not a key", hint=hint)], path=path)
    return parts


def _has(tables: object, parts: Sequence[str]) -> bool:
    head, *rest = parts
    return isinstance(tables, dict) and head in tables and (not rest or _has(tables[head], rest))


def _with(tables: _Tables, parts: Sequence[str], value: object, path: Path) -> _Tables:
    head, *rest = parts
    if not rest:
        return {**tables, head: value}
    inner = tables.get(head, {})
    if not isinstance(inner, dict):
        hint = f"set `{head}` as a whole"
        raise ConfigError([Problem(key=".".join(parts), message=f"`{head}` is not a table", hint=hint)], path=path)
    return {**tables, head: _with(inner, rest, value, path)}


def _without(tables: _Tables, parts: Sequence[str], path: Path) -> _Tables:
    head, *rest = parts
    inner = tables.get(head)
    if head not in tables or (rest and not isinstance(inner, dict)):
        hint = did_you_mean(head, tables)
        raise ConfigError([Problem(key=".".join(parts), message="is not set in this file", hint=hint)], path=path)
    others = {name: value for name, value in tables.items() if name != head}
    return {**tables, head: _without(inner, rest, path)} if rest and isinstance(inner, dict) else others
