"""Edits single keys of the config file, and shows settings without their secrets."""

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
    """Set a dotted key and keep all others. Creates the file if it does not exist.

    `value_text` is parsed as a TOML value. It is taken as text if it is not valid TOML, or if only text fits the key.
    The result is validated first, without following references to secrets: a `ConfigError` leaves the file unchanged.
    Comments in the file are lost, since tomli-w writes values only.
    """
    parts = _parse_key(key, path)
    tables = _read_if_exists(path)
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
    _write_first_valid(path, [_with(tables, parts, value, path) for value in values], environ)


def set_values(path: Path, values: Mapping[str, object], environ: Mapping[str, str] = os.environ) -> None:
    """Set several dotted keys at once, each to a TOML value; None removes the key if it exists.

    Validates and writes like `set_value`.
    """
    tables = _read_if_exists(path)
    for key, value in values.items():
        parts = _parse_key(key, path)
        if value is not None:
            tables = _with(tables, parts, value, path)
        elif _has(tables, parts):
            tables = _without(tables, parts, path)
    _write_first_valid(path, [tables], environ)


def unset_value(path: Path, key: str, environ: Mapping[str, str] = os.environ) -> None:
    """Remove a dotted key or a whole table, so that the default applies. Validates and writes like `set_value`."""
    _write_first_valid(path, [_without(_read_if_exists(path), _parse_key(key, path), path)], environ)


def show(settings: Settings) -> str:
    """Return all effective settings as TOML; secrets are `***`."""
    return tomli_w.dumps(settings.model_dump(mode="json", exclude_none=True))


def schema() -> dict[str, Any]:
    """Return the JSON Schema of the config file, for completion and checks in editors."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Settings.model_json_schema()}


def _read_if_exists(path: Path) -> _Tables:
    # `lexists`, so that a dangling link is reported and not replaced.
    return read_tables(path) if os.path.lexists(path) else {}


def _write_first_valid(path: Path, candidates: Sequence[_Tables], environ: Mapping[str, str]) -> None:
    """Write the first of `candidates` that validates, or raise the `ConfigError` of the first."""
    errors = []
    for tables in candidates:
        try:
            loaded = validate(tables, path, environ, resolves=False)
        except ConfigError as error:
            errors.append(error)
            continue
        target = path.resolve()  # A link to the file stays a link.
        try:
            # A new file is private. An existing one keeps its readers, such as the user of a service, until it
            # contains a secret. Others never get the right to write.
            keeps_mode = target.exists() and not loaded.has_exposed_secret
            mode = target.stat().st_mode & 0o644 if keeps_mode else 0o600
            make_private_directory(target.parent)
            write_atomically(target, tomli_w.dumps(tables).encode())
            target.chmod(mode)
        except OSError as error:
            reason = (error.strerror or "unknown reason").lower()
            problem = Problem(key="", message=f"cannot be written: {reason}", hint="check who owns the folder")
            raise ConfigError([problem], path=path) from error
        return
    raise errors[0]


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
