"""Retention: which sessions are pruned, expired or completed for being idle, and how a session is removed."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
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
from gateway.sessions.store import SessionStore, Then
from gateway.spool import DeleteSession, Operation, SpoolFull

log: structlog.stdlib.BoundLogger = structlog.get_logger()

SCOPES_PER_SWEEP = 2000

# Scopes that a sweep looks at before it lets other tasks run.
SCOPES_PER_STEP = 50

# Returns True if a turn of the session with this key is running or waiting.
IsBusy = Callable[[str], bool]


class Leaving(StrEnum):
    """Why a session stops being the active one (`ROTATED`) or is removed (the others)."""

    ROTATED = "rotated"
    PRUNED = "pruned"
    EXPIRED = "expired"
    DELETED = "deleted"


# The archiver. It is awaited before a session is removed, and after another one has become the active one.
OnLeaving = Callable[[SessionMeta, Leaving], Awaitable[None]]

# Deletes the attachments of the session with this key. Returns False if the disk refuses.
RemoveFiles = Callable[[str], Awaitable[bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """The result of one sweep. Unless it `is_done`, the next sweep continues with the remaining scopes."""

    expired: tuple[str, ...] = ()
    completed: tuple[str, ...] = ()
    undeletable: int = 0
    """Files of removed sessions that could not be deleted. Every sweep and every start tries again."""
    is_done: bool = True


def never_busy(_key: str) -> bool:
    return False


async def no_archiver(_meta: SessionMeta, _why: Leaving) -> None:
    """Archive nothing."""


async def no_files(_key: str) -> bool:
    """Delete no attachments, because there are none."""
    return True


def surplus_sessions(scope: Scope, limit: int, is_busy: IsBusy) -> list[str]:
    """Return the least recently used sessions beyond `limit`, except the active one and those with a turn."""
    # The epoch grows with each activation, so it tells which session was used last, without a clock.
    free = [key for key in scope.sessions if key != scope.active_session_key and not is_busy(key)]
    free.sort(key=lambda key: scope.sessions[key].epoch)
    return free[: max(0, len(scope.sessions) - max(limit, 1))]


def expired_sessions(scope: Scope, settings: SessionSettings, now: datetime, is_busy: IsBusy) -> list[str]:
    """Return the sessions that were not used for `ttl_days`, the active one last."""
    if settings.ttl_days == 0:
        return []
    limit = now - timedelta(days=settings.ttl_days)
    old = [key for key, state in scope.sessions.items() if state.last_accessed < limit and not is_busy(key)]
    # The active session last: each removal of the active one would activate another, only to remove that one next.
    return sorted(old, key=lambda key: (key == scope.active_session_key, scope.sessions[key].epoch))


def is_scope_expired(scope: Scope, settings: SessionSettings, now: datetime) -> bool:
    """Return True if a scope has had no sessions for `ttl_days`. Then its numbers may start again."""
    return not scope.sessions and settings.ttl_days > 0 and scope.updated_at < now - timedelta(days=settings.ttl_days)


def idle_sessions(scope: Scope, settings: SessionSettings, now: datetime, is_busy: IsBusy) -> list[str]:
    """Return the open sessions without a message for `idle_minutes`."""
    if settings.idle_minutes == 0:
        return []
    limit = now - timedelta(minutes=settings.idle_minutes)
    return [
        key
        for key, state in scope.sessions.items()
        if state.status is SessionStatus.ACTIVE and max(state.updated_at, state.last_accessed) < limit
        if not is_busy(key)
    ]


class Retention:
    """Removes sessions. `on_leaving` is called with every session that is removed or replaced as the active one."""

    def __init__(
        self, store: SessionStore, clock: Callable[[], datetime], on_leaving: OnLeaving, remove_files: RemoveFiles
    ) -> None:
        self._store = store
        self._clock = clock
        self._on_leaving = on_leaving
        self._remove_files = remove_files
        self._to_sweep: list[str] = []

    async def rotated(self, scope: str, before: str | None) -> None:
        """Tell the archiver that another session has replaced `before` as the active one."""
        state = self._store.index[scope].sessions.get(before) if before else None
        if before and state:
            await self._on_leaving(meta_of(before, state), Leaving.ROTATED)

    async def prune(self, scope: str, limit: int, is_busy: IsBusy) -> list[str]:
        """Remove the least recently used sessions beyond `limit`, and return their keys."""
        keys = surplus_sessions(self._store.index[scope], limit, is_busy)
        for number, key in enumerate(keys):
            try:
                await self.delete(key, Leaving.PRUNED)
            except (Refused, SpoolFull) as error:  # The session that replaces them exists already.
                log.warning("session_not_pruned", session=key, reason=str(error))
                return keys[:number]
        return keys

    async def delete(
        self, key: str, why: Leaving = Leaving.DELETED, also: Sequence[Operation] = (), then: Then | None = None
    ) -> None:
        """Delete a session for good, in one commit with `also`. Raises `Refused` if it does not exist.

        `then` is called after the commit. If the commit fails, nothing has happened.
        """
        index, flusher = self._store.index, self._store.flusher
        name, _ = parse_key(key)
        await self._on_leaving(meta_of(key, index.require(key)), why)

        def committed() -> None:
            flusher.undeleted.add(key)
            if then is not None:
                then()

        # 1. One commit erases the session from the spool and records that it has to be deleted. From then on, every
        #    start deletes what is left of it, and no crash brings it back.
        # 2. Its files are deleted.
        # 3. The next flush removes the last copies of its text: see `Flusher`.
        successor = await self._store.remove(key, [DeleteSession(session=key, scope=name), *also], committed)
        log.info("session_removed", session=key, why=why)
        await self._delete_files(key, successor)

    async def _delete_files(self, key: str, successor: str | None = None) -> None:
        """Delete the files of a deleted session. If the disk refuses, the next sweep tries again."""
        flusher = self._store.flusher
        are_deleted = [await flusher.delete_transcript(key, successor), await self._remove_files(key)]
        if all(are_deleted):
            flusher.undeleted.discard(key)
            flusher.unpurged.add(key)

    async def delete_leftovers(self) -> None:
        """Delete the files of removed sessions that are still there, after a crash or because the disk refused."""
        flusher, index = self._store.flusher, self._store.index
        for key in [key for key in flusher.undeleted if index.find(key) is None]:
            await self._delete_files(key)

    async def sweep(self, settings: SessionSettings, is_busy: IsBusy, *, expires: bool) -> SweepReport:
        """Expire old sessions and complete idle ones, in up to `SCOPES_PER_SWEEP` scopes; the next call goes on."""
        index = self._store.index
        # A sweep over a hundred thousand scopes would block the event loop for seconds, so it is done in parts.
        if not self._to_sweep:
            self._to_sweep = list(index)
        names = self._to_sweep[-SCOPES_PER_SWEEP:]
        del self._to_sweep[-SCOPES_PER_SWEEP:]
        expired: list[str] = []
        completed: list[str] = []
        idle = e.Status(value=SessionStatus.COMPLETED, by=session.IDLE, why="No messages for a while.")
        for at, name in enumerate(names):
            if at % SCOPES_PER_STEP == 0:
                await asyncio.sleep(0)
            if expires:
                old = expired_sessions(index[name], settings, self._clock(), is_busy)
                expired += [key for key in old if await _succeeds(self.delete(key, Leaving.EXPIRED), key)]
            unused = idle_sessions(index[name], settings, self._clock(), is_busy)
            completed += [key for key in unused if await _succeeds(self._store.append(key, [idle]), key)]
            if expires and is_scope_expired(index[name], settings, self._clock()):
                index.drop_scope(name)
        await self.delete_leftovers()
        return SweepReport(
            expired=tuple(expired),
            completed=tuple(completed),
            undeletable=len(self._store.flusher.undeleted),
            is_done=not self._to_sweep,
        )


async def _succeeds(work: Awaitable[object], key: str) -> bool:
    """Await one step of a sweep. One session that cannot be changed does not stop the sweep."""
    try:
        await work
    except Refused as refusal:
        log.warning("session_sweep_failed", session=key, reason=str(refusal))
        return False
    return True
