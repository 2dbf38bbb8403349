"""Finds a session by the name a person types: its scope, in full or briefly, with or without its number.

A brief name has some words of the scope, in their order and with the last one: `web:owner` stands for
`agent:main:web:direct:owner`, and `telegram:123#2` for session 2 of `agent:main:telegram:direct:123`.
"""

from collections.abc import Sequence
from contextlib import aclosing
from difflib import get_close_matches

from gateway.admin.archive import Archive
from gateway.admin.session_routes import ListedSession
from gateway.errors import Refused
from gateway.sessions.keys import parse_key
from gateway.text import clean, printable

_MAX_COMPARED = 5000
"""Scopes that are searched for similar names. Comparing is slow, and a person waits."""
_MAX_SUGGESTIONS = 3
_MAX_CANDIDATES = 6
_NUMBERS_SHOWN = 20


async def find_session(archive: Archive, name: str, number: int | None) -> ListedSession:
    """Return the session of that name, also from the archive; without a number, the active one.

    Raises `Refused` with a hint.
    """
    scope = name = clean(name)
    if "#" in name:
        try:
            scope, number_in_key = parse_key(name.removesuffix("#1"))  # The key of a first session has no number.
        except ValueError as error:
            hint = "Run `gatehouse sessions list` to see them."
            raise Refused(f"`{printable(name)}` is not a session key. {hint}") from error
        if number not in (None, number_in_key):
            raise Refused(f"`{printable(name)}` names session {number_in_key}, not session {number}.")
        number = number_in_key
    scope = await find_scope(archive, scope)
    present = [listed async for listed in archive.sessions(scope)]
    if number is None and present:
        return next((listed for listed in present if listed.is_active), present[0])
    present += [listed async for listed in archive.sessions(scope, are_archived=True)]
    if not present:
        raise Refused(await _unknown_scope(archive, scope))
    if number is None:
        return present[0]
    for listed in present:
        if listed.meta.number == number:
            return listed
    numbers = ", ".join(str(listed.meta.number) for listed in present[:_NUMBERS_SHOWN])
    raise Refused(f"`{printable(scope)}` has no session {number}. It has {numbers}.")


async def find_scope(archive: Archive, name: str) -> str:
    """Return the scope that `name` is, or stands for. Raises `Refused` if there is none, or more than one."""
    candidates: set[str] = set()
    for are_archived in (False, True):
        async with aclosing(archive.sessions(name, are_archived=are_archived)) as found:
            async for _ in found:
                return name
    for are_archived in (False, True):
        everywhere = archive.sessions(are_archived=are_archived)
        candidates |= {each.meta.scope async for each in everywhere if _stands_for(name, each.meta.scope)}
    if not candidates:
        raise Refused(await _unknown_scope(archive, name))
    if len(candidates) > 1:
        shown = _join_names(sorted(candidates)[:_MAX_CANDIDATES])
        more = f" There are {len(candidates)} in all." if len(candidates) > _MAX_CANDIDATES else ""
        raise Refused(f"`{printable(name)}` can mean {shown}.{more} Add a word to say which one.")
    return candidates.pop()


def _stands_for(name: str, scope: str) -> bool:
    words, parts = name.lower().split(":"), scope.lower().split(":")
    if words[-1] != parts[-1]:
        return False
    rest = iter(parts)
    return all(word in rest for word in words)  # Each search goes on behind the last word that was found.


def _join_names(names: Sequence[str]) -> str:
    *others, last = [f"`{printable(name)}`" for name in names]
    return f"{', '.join(others)} or {last}" if others else last


async def _unknown_scope(archive: Archive, scope: str) -> str:
    """Return an error message for a scope that does not exist, with similar scopes."""
    scopes: dict[str, None] = {}
    containing: dict[str, None] = {}
    async for listed in archive.sessions():
        name = listed.meta.scope
        if len(scopes) < _MAX_COMPARED:
            scopes[name] = None
        if scope.lower() in name.lower():
            containing[name] = None
            if len(containing) == _MAX_SUGGESTIONS:
                break
    # A part of the name is the better hint: people type `bob` for `agent:main:web:direct:bob`.
    near = list(containing) or get_close_matches(scope, scopes, n=_MAX_SUGGESTIONS)
    hint = "Run `gatehouse sessions list` to see all scopes."
    if near:
        hint = f"Did you mean {_join_names(near)}?"
    return f"There is no scope `{printable(scope)}`. {hint}"
