"""Renamed and removed keys: they cause a warning and keep working, or are ignored, for a while.

A key stays in `CHANGES` for at least two minor versions after the one that renamed or removed it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Renamed:
    """`old` is a dotted key in which `*` matches any name; `new` is the last part of the new key."""

    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """`old` is a dotted key in which `*` matches any name; `reason` is a sentence for the operator."""

    old: str
    reason: str


CHANGES: Sequence[Renamed | Removed] = (
    Removed(
        old="channels.*.webhook_secret",
        reason="Gatehouse generates the secret at each start and registers it with the platform.",
    ),
)


def apply_deprecations(
    tables: dict[str, Any], warn: Callable[[str], None], changes: Iterable[Renamed | Removed] = CHANGES
) -> dict[str, Any]:
    """Return a copy of `tables` with today's keys, and pass a warning to `warn` for each key that changed."""
    for change in changes:
        tables = _apply(tables, change, change.old.split("."), (), warn)
    return tables


def _apply(
    table: dict[str, Any],
    change: Renamed | Removed,
    parts: Sequence[str],
    path: tuple[str, ...],
    warn: Callable[[str], None],
) -> dict[str, Any]:
    """Apply `change` to the table at `path`; `parts` is the rest of the old key, relative to this table."""
    head, *rest = parts
    if rest:
        # A value that is not a table stays as it is; validation reports it later.
        inside = [name for name, inner in table.items() if head in ("*", name) and isinstance(inner, Mapping)]
        return {**table, **{name: _apply(table[name], change, rest, (*path, name), warn) for name in inside}}
    if head not in table:
        return table
    key = ".".join((*path, head))
    others = {name: value for name, value in table.items() if name != head}
    if isinstance(change, Removed):
        warn(f"{key} is no longer used. {change.reason} Remove the key; a later version will reject it")
        return others
    new = ".".join((*path, change.new))
    if change.new in table:
        warn(f"{key} was renamed to {new}. Both are set, and {new} is used. Remove {key}")
        return others
    warn(f"{key} was renamed to {new}. The old name still works; a later version will reject it")
    return {**others, change.new: table[head]}
