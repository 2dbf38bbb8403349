"""Keys of older versions: they warn and keep working for a while, under their new name or without any effect.

A key stays here for at least two minor versions after the one that has renamed or removed it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_Tables = dict[str, Any]  # Any: what a TOML file says.


@dataclass(frozen=True, slots=True, kw_only=True)
class Renamed:
    """`old` is a dotted key in which `*` stands for any name; `new` is the last part of its name today."""

    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """`instead` is a sentence: what does its work today, or that nothing has to."""

    old: str
    instead: str


CHANGES: Sequence[Renamed | Removed] = (
    Removed(
        old="channels.*.webhook_secret",
        instead="It is made anew at each start and told to the platform, so there is nothing to set.",
    ),
)


def brought_up_to_date(
    tables: _Tables, warn: Callable[[str], None], changes: Iterable[Renamed | Removed] = CHANGES
) -> _Tables:
    """Return `tables` as this version reads them; what had to be changed is told to `warn`. The file stays as it is."""
    for change in changes:
        tables = _changed(tables, change, change.old.split("."), (), warn)
    return tables


def _changed(
    table: _Tables, change: Renamed | Removed, parts: Sequence[str], path: tuple[str, ...], warn: Callable[[str], None]
) -> _Tables:
    head, *rest = parts
    if not rest:
        return _without(table, change, head, path, warn) if head in table else table
    inside = [name for name, inner in table.items() if head in ("*", name) and isinstance(inner, Mapping)]
    return {
        **table,
        **{name: _changed(table[name], change, rest, (*path, name), warn) for name in inside},
    }


def _without(
    table: _Tables, change: Renamed | Removed, old: str, path: tuple[str, ...], warn: Callable[[str], None]
) -> _Tables:
    """Take the old key out; where it has a new name that is not used yet, its value goes there."""
    key = ".".join((*path, old))
    rest = {name: value for name, value in table.items() if name != old}
    if isinstance(change, Removed):
        warn(f"{key} is not used any more. {change.instead} Remove it; a later version will refuse it.")
        return rest
    new = ".".join((*path, change.new))
    if change.new in table:
        warn(f"{key} is now called {new}, which is set too and is what counts. Remove {key}.")
        return rest
    warn(f"{key} is now called {new}. It still works; rename it, since a later version will refuse it.")
    return {**rest, change.new: table[old]}
