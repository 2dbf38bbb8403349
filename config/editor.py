"""Changes single keys of the config file, and shows settings without their secrets."""

import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from config.errors import ConfigError, Problem, did_you_mean
from config.files import make_private_directory, write_atomically
from config.loader import parse, read_tables, validate
from config.model import Settings

_Tables = dict[str, Any]


def set_value(path: Path, key: str, value_text: str, environ: Mapping[str, str] = os.environ) -> None:
    """Set a dotted key and keep all others; the file is created when missing.

    `value_text` is read as a TOML value, or taken as text when it is none or when only text fits the key. The result
    is validated first (references to secrets are taken on trust): a `ConfigError` leaves the file as it was.
    Comments are lost, since tomli-w writes values only.
    """
    parts = _parse_key(key, path)
    tables = _existing(path)
    candidates = [_with(tables, parts, value, path) for value in _readings(value_text, key, path)]
    _write_first_valid(path, candidates, environ)


def set_values(path: Path, values: Mapping[str, object], environ: Mapping[str, str] = os.environ) -> None:
    """Set several dotted keys at once, each to a value that TOML has; None removes it, if it is there.

    Validated and written as `set_value`.
    """
    tables = _existing(path)
    for key, value in values.items():
        parts = _parse_key(key, path)
        if value is not None:
            tables = _with(tables, parts, value, path)
        elif _has(tables, parts):
            tables = _without(tables, parts, path)
    _write_first_valid(path, [tables], environ)


def unset_value(path: Path, key: str, environ: Mapping[str, str] = os.environ) -> None:
    """Remove a dotted key, or a whole table, so that the default holds again. Validated and written as `set_value`."""
    _write_first_valid(path, [_without(_existing(path), _parse_key(key, path), path)], environ)


def show(settings: Settings) -> str:
    """Return all settings in effect as TOML; secrets are `***`."""
    return tomli_w.dumps(settings.model_dump(mode="json", exclude_none=True))


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the config file, so that editors can complete and check it."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Settings.model_json_schema()}


def _existing(path: Path) -> _Tables:
    return read_tables(path) if os.path.lexists(path) else {}


def _write_first_valid(path: Path, candidates: Sequence[_Tables], environ: Mapping[str, str]) -> None:
    refusals = []
    for tables in candidates:
        try:
            loaded = validate(tables, path, environ, resolves=False)
        except ConfigError as refusal:
            refusals.append(refusal)
        else:
            _write(path, tables, is_secret=any("holds a secret" in warning for warning in loaded.warnings))
            return
    raise refusals[0]


def _write(path: Path, tables: _Tables, *, is_secret: bool) -> None:
    """Write a private file; one that others may read, as a service's user does, stays so while it holds no secret."""
    target = path.resolve()  # A link to the file stays a link.
    try:
        mode = target.stat().st_mode & 0o644 if target.exists() and not is_secret else 0o600
        make_private_directory(target.parent)
        write_atomically(target, tomli_w.dumps(tables).encode())
        target.chmod(mode)
    except OSError as error:
        reason = (error.strerror or "unknown reason").lower()
        problem = Problem(key="", message=f"cannot be written: {reason}", hint="check who owns the folder")
        raise ConfigError([problem], path=path) from error


def _parse_key(key: str, path: Path) -> list[str]:
    """Read `a.b."c d"` as TOML would."""
    try:
        table: object = tomllib.loads(f"{key} = 0")
    except ValueError:
        table = None
    parts = []
    while isinstance(table, dict) and len(table) == 1:
        ((part, table),) = table.items()
        parts.append(part)
    if table != 0:  # Something else than one key was in there.
        hint = "write it like http.port; a list such as bindings is set as a whole"
        raise ConfigError([Problem(key=key, message="is not a key", hint=hint)], path=path)
    return parts


def _readings(value_text: str, key: str, path: Path) -> list[object]:
    """Return what `value_text` can mean, the likeliest first."""
    try:
        value_text.encode()
    except UnicodeEncodeError:
        raise ConfigError([Problem(key=key, message="the value is not UTF-8 text")], path=path) from None
    try:
        parsed = parse(f"value = {value_text}")
    except (ValueError, RecursionError):
        return [value_text]
    if set(parsed) != {"value"}:  # Line breaks in it have made several keys.
        return [value_text]
    value = parsed["value"]
    return [value] if isinstance(value, str | list | dict) else [value, value_text]


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
