"""Which sessions have to go, and which are merely idle. Pure: a scope, the settings and the time in, keys out."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

import structlog

from config import SessionSettings
from gateway.errors import Refused
from gateway.sessions import entries as e
from gateway.sessions import session
from gateway.sessions.index import Scope
from gateway.sessions.keys import parse_key
from gateway.sessions.session import SessionMeta, meta_of
from gateway.sessions.state import SessionStatus
from gateway.sessions.store import SessionStore
from gateway.spool import SpoolFull

IsBusy = Callable[[str], bool]
"""Tells whether a turn of the session with this key runs or waits."""


class Leaving(StrEnum):
    """Why a session leaves the foreground (`ROTATED`) or the disk (the others)."""

    ROTATED = "rotated"
    PRUNED = "pruned"
    EXPIRED = "expired"
    DELETED = "deleted"


OnLeaving = Callable[[SessionMeta, Leaving], Awaitable[None]]
"""What an archiver is: it is awaited before a file is deleted, and after another session took the place of this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """What one sweep did. Unless `is_done`, scopes are left that the next sweep goes on with."""

    expired: tuple[str, ...] = ()
    completed: tuple[str, ...] = ()
    undeletable: int = 0
    """Files of deleted sessions that the disk would not let go; every sweep and every start tries again."""
    is_done: bool = True


def never_busy(_key: str) -> bool:
    return False


async def no_archiver(_meta: SessionMeta, _why: Leaving) -> None:
    """Let go what is leaving: there is no archive."""


def surplus_sessions(scope: Scope, limit: int, is_busy: IsBusy) -> list[str]:
    """Return the least recently used sessions beyond `limit`, but never the active one or one with a turn in flight.

    A session is used while it is the active one, so the epochs tell which was used last, and no clock has to.
    """
    free = [key for key in scope.sessions if key != scope.active_session_key and not is_busy(key)]
    free.sort(key=lambda key: scope.sessions[key].epoch)
    return free[: max(0, len(scope.sessions) - max(limit, 1))]


def expired_sessions(scope: Scope, settings: SessionSettings, now: datetime, is_busy: IsBusy) -> list[str]:
    """Return the sessions that nobody has touched for `ttl_days`, the active one last."""
    if settings.ttl_days == 0:
        return []
    limit = now - timedelta(days=settings.ttl_days)
    old = [key for key, state in scope.sessions.items() if state.last_accessed < limit and not is_busy(key)]
    return sorted(old, key=lambda key: (key == scope.active_session_key, scope.sessions[key].epoch))


def is_scope_expired(scope: Scope, settings: SessionSettings, now: datetime) -> bool:
    """Tell whether a scope without sessions has been so for so long that nobody remembers its numbers."""
    return not scope.sessions and settings.ttl_days > 0 and scope.updated_at < now - timedelta(days=settings.ttl_days)


def idle_sessions(scope: Scope, settings: SessionSettings, now: datetime, is_busy: IsBusy) -> list[str]:
    """Return the open sessions in which nobody has said anything for `idle_minutes`."""
    if settings.idle_minutes == 0:
        return []
    limit = now - timedelta(minutes=settings.idle_minutes)
    return [
        key
        for key, state in scope.sessions.items()
        if state.status is SessionStatus.ACTIVE and max(state.updated_at, state.last_accessed) < limit
        if not is_busy(key)
    ]


log: structlog.stdlib.BoundLogger = structlog.get_logger()


class Removal:
    """`on_leaving` hears of every session that leaves the foreground or the disk."""

    def __init__(self, ledger: SessionStore, on_leaving: OnLeaving) -> None:
        self._ledger = ledger
        self._on_leaving = on_leaving

    async def rotated(self, scope: str, before: str | None) -> None:
        """Tell the archiver that another session took the place of `before`."""
        state = self._ledger.books.sessions(scope).get(before) if before else None
        if before and state:
            await self._on_leaving(meta_of(before, state), Leaving.ROTATED)

    async def prune(self, scope: str, limit: int, is_busy: IsBusy) -> list[str]:
        victims = surplus_sessions(self._ledger.books.scopes[scope], limit, is_busy)
        for key in victims:
            await self.remove(key, Leaving.PRUNED)
        return victims

    async def remove(self, key: str, why: Leaving) -> None:
        """Remove a session for good; `Refused` when there is none."""
        name, _ = parse_key(key)
        await self._on_leaving(meta_of(key, self._ledger.books.state(key)), why)
        if key not in self._ledger.books.sessions(name):
            return
        was = self._ledger.books.scopes[name]
        self._ledger.ends.forget(key)
        heir = await self._pass_on(name, was)
        await self._ledger.durability.delete_file(key, heir)
        log.info("session_removed", session=key, why=why)

    async def _pass_on(self, name: str, was: Scope) -> str | None:
        """Let a session that stays know the highest number, and be the active one if there is none; return its key."""
        left = self._ledger.books.scopes[name]
        heir = left.active_session_key or next(iter(left.ordered_sessions), None)
        if heir is None:
            return None
        knows = max(state.highest_number for state in left.sessions.values()) >= left.highest_number
        if knows and was.active_session_key in (heir, None):
            return None
        step = e.Activated(key=heir, epoch=left.epoch + 1, highest_number=left.highest_number)
        try:
            await self._ledger.append(heir, [step], is_active=True)
        except (Refused, SpoolFull) as trouble:  # The session has left already, and must not come back for that.
            log.warning("number_not_passed_on", session=heir, reason=str(trouble))
        return heir

    async def delete_doomed(self) -> None:
        """Try again to delete the files of removed sessions that the disk would not let go."""
        for key in [
            key for key in self._ledger.durability.doomed if key not in self._ledger.books.sessions(parse_key(key)[0])
        ]:
            await self._ledger.durability.delete_file(key)


_SWEPT_PER_CALL = 2000
_SWEPT_AT_ONCE = 50
"""Scopes that are looked at before others get their turn on the event loop."""


class Sweeping:
    def __init__(self, ledger: SessionStore, removal: Removal, clock: Callable[[], datetime]) -> None:
        self._ledger = ledger
        self._removal = removal
        self._clock = clock
        self._to_sweep: list[str] = []

    async def sweep(self, settings: SessionSettings, is_busy: IsBusy, *, expires: bool) -> SweepReport:
        """Look at some thousand scopes at most; the next call goes on from there."""
        removed: list[str] = []
        completed: list[str] = []
        for at, name in enumerate(self._next_to_sweep()):
            if at % _SWEPT_AT_ONCE == 0:
                await asyncio.sleep(0)
            removed += await self._expire(name, settings, is_busy) if expires else []
            completed += await self._complete(name, settings, is_busy)
            if expires and is_scope_expired(self._ledger.books.scopes[name], settings, self._clock()):
                self._ledger.books.drop_scope(name)
        await self._removal.delete_doomed()
        return SweepReport(
            expired=tuple(removed),
            completed=tuple(completed),
            undeletable=len(self._ledger.durability.doomed),
            is_done=not self._to_sweep,
        )

    def _next_to_sweep(self) -> list[str]:
        if not self._to_sweep:
            self._to_sweep = list(self._ledger.books.scopes)
        names = self._to_sweep[-_SWEPT_PER_CALL:]
        del self._to_sweep[-_SWEPT_PER_CALL:]
        return names

    async def _expire(self, name: str, settings: SessionSettings, is_busy: IsBusy) -> list[str]:
        old = expired_sessions(self._ledger.books.scopes[name], settings, self._clock(), is_busy)
        return [key for key in old if await _managed(self._removal.remove(key, Leaving.EXPIRED), key)]

    async def _complete(self, name: str, settings: SessionSettings, is_busy: IsBusy) -> list[str]:
        idle = idle_sessions(self._ledger.books.scopes[name], settings, self._clock(), is_busy)
        step = e.Status(value=SessionStatus.COMPLETED, by=session.IDLE, why="Nobody wrote for a while.")
        return [key for key in idle if await _managed(self._ledger.append(key, [step]), key)]


async def _managed(work: Awaitable[object], key: str) -> bool:
    """Tell whether something worked that nobody has asked for, and nobody waits for."""
    try:
        await work
    except Refused as refusal:
        log.warning("session_not_swept", session=key, reason=str(refusal))
        return False
    return True
