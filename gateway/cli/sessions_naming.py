"""How a person names a session on the command line: by scope and number, by scope alone, or by its whole key."""

from difflib import get_close_matches

from gateway.archive import Archive, Listed
from gateway.errors import Refused
from gateway.sessions.names import parse_key
from gateway.text import clean, printable

__all__ = ["find", "parse_name", "unknown_scope"]

_COMPARED = 5000
"""Scopes that are searched for near misses; comparing is slow, and a person waits."""
_OFFERED = 3
_NUMBERS_TOLD = 20


def parse_name(name: str, number: int | None) -> tuple[str, int | None]:
    """Return scope and number; without a number the active session is meant."""
    name = clean(name)
    if "#" not in name:
        return name, number
    try:
        scope, in_key = parse_key(name)
    except ValueError as nonsense:
        raise Refused(f"`{printable(name)}` is no session key; `gatehouse sessions list` shows them.") from nonsense
    if number not in (None, in_key):
        raise Refused(f"`{printable(name)}` says already which session is meant, and it is not {number}.")
    return scope, in_key


async def find(archive: Archive, name: str, number: int | None) -> Listed:
    """Return the session that is meant, or say what there is instead."""
    scope, wanted = parse_name(name, number)
    there = [listed async for listed in archive.sessions(scope)]
    if not there:
        raise Refused(await unknown_scope(archive, scope))
    if wanted is None:
        return next((listed for listed in there if listed.is_active), there[0])
    for listed in there:
        if listed.meta.number == wanted:
            return listed
    numbers = ", ".join(str(listed.meta.number) for listed in there[:_NUMBERS_TOLD])
    raise Refused(f"`{printable(scope)}` has no session {wanted}; it has {numbers}.")


async def unknown_scope(archive: Archive, scope: str) -> str:
    """Say that there is no such scope, and which ones look like it."""
    scopes: dict[str, None] = {}
    containing: dict[str, None] = {}
    async for listed in archive.sessions():
        name = listed.meta.scope
        if len(scopes) < _COMPARED:
            scopes[name] = None
        if scope.lower() in name.lower():
            containing[name] = None
            if len(containing) == _OFFERED:
                break
    near = list(containing) or get_close_matches(scope, scopes, n=_OFFERED)
    hint = f"Did you mean {_either(near)}?" if near else "`gatehouse sessions list` shows what there is."
    return f"There is no scope `{printable(scope)}`. {hint}"


def _either(names: list[str]) -> str:
    *others, last = [f"`{printable(name)}`" for name in names]
    return f"{', '.join(others)} or {last}" if others else last
