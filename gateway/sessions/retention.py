"""Retention: which sessions are pruned, expired or completed for being idle, and how a session leaves.

Every session that stops being used passes through two hooks: when another one becomes active, when it is closed, when
it is moved to the archive, and when it is deleted. `LeavingOperations` says what is committed with that change, so that
no crash comes between. `OnLeaving` is called around it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import structlog
from msgspec import Struct

from config import SessionSettings
from gateway.errors import HeldElsewhere, Refused
from gateway.sessions import entries as e
from gateway.sessions import session
from gateway.sessions.archiver import ArchivedCopy, Archiver, LeavingOperations
from gateway.sessions.index import Scope
from gateway.sessions.keys import parse_key
from gateway.sessions.session import APART, SessionMeta, meta_of
from gateway.sessions.state import SessionState, SessionStatus
from gateway.sessions.storage.codec import NewerTranscript, UnreadableTranscript
from gateway.sessions.store import SessionStore, Then
from gateway.spool import DeleteSession, Operation, SpoolUnavailable

log: structlog.stdlib.BoundLogger = structlog.get_logger()

SCOPES_PER_SWEEP = 2000

# Sessions of schedules that a scope may have.
MAX_APART = 100

# Scopes that a sweep looks at before it lets other tasks run.
SCOPES_PER_STEP = 50

# Returns True if a turn of the session with this key is running or waiting.
IsBusy = Callable[[str], bool]


class Leaving(StrEnum):
    """Why a session leaves. Pruned and expired sessions go to the archive."""

    ROTATED = "rotated"
    CLOSED = "closed"
    PRUNED = "pruned"
    EXPIRED = "expired"
    DELETED = "deleted"
    MOVED = "moved"
    """It is deleted here because it goes on under another key."""


# It is awaited before a session is archived or deleted, after it was closed, and after another one has become active.
OnLeaving = Callable[[SessionMeta, Leaving], Awaitable[None]]

# Deletes the attachments of the session with this key. Returns False if the disk refuses.
RemoveFiles = Callable[[str], Awaitable[bool]]


class SweepReport(Struct, frozen=True, kw_only=True):
    """The result of one sweep. Unless it `is_done`, the next sweep continues with the remaining scopes."""

    expired: tuple[str, ...] = ()
    """Sessions that were moved to the archive."""
    completed: tuple[str, ...] = ()
    undeletable: int = 0
    """Files of removed sessions that could not be deleted. Every sweep and every start tries again."""
    is_done: bool = True


def never_busy(_key: str) -> bool:
    return False


async def ignore_leaving(_meta: SessionMeta, _why: Leaving) -> None:
    """Do nothing with a session that leaves."""


def no_operations(_key: str, _meta: SessionMeta | None, _why: str) -> Sequence[Operation]:
    """Commit nothing with the change by which a session leaves."""
    return ()


async def no_files(_key: str) -> bool:
    """Delete no attachments, because there are none."""
    return True


class Surplus(NamedTuple):
    """Sessions beyond the limit of a scope, least recently used first."""

    empty: list[str]
    full: list[str]


def is_empty(state: SessionState) -> bool:
    """Return True if nothing was ever said in a session. A cleared one is not empty."""
    return state.messages == 0 and state.updated_at == state.created_at


def surplus_sessions(
    scope: Scope, limit: int, is_busy: IsBusy, *, is_replaced: bool = False, restored: SessionState | None = None
) -> Surplus:
    """Return the sessions beyond `limit`, except the active one and those with a turn.

    Those that are apart have a limit of their own. Empty sessions go first. They do not count, so they never displace
    another one. If the active session `is_replaced` by a new one, that one counts instead. `restored` is a session that
    comes back from the archive.
    """
    limit = max(limit, 1)
    kept = None if is_replaced else scope.active_session_key
    # The epoch grows with each activation, so it tells which session was used last, without a clock.
    used = {key: state for key, state in scope.sessions.items() if state.epoch != APART}
    free = sorted((key for key in used if key != kept and not is_busy(key)), key=lambda key: used[key].epoch)
    empty = [key for key in free if is_empty(used[key])]
    full = [key for key in free if not is_empty(used[key])]
    total = len(used) + is_replaced + (restored is not None)
    full_total = sum(not is_empty(state) for state in used.values())
    full_total += restored is not None and not is_empty(restored)
    return Surplus(empty[: max(0, total - limit)], full[: max(0, full_total - limit)])


def surplus_apart(scope: Scope, is_busy: IsBusy) -> Surplus:
    """Return the sessions of schedules that a new one displaces, those that were not used for longest."""
    apart = [key for key, state in scope.sessions.items() if state.epoch == APART]
    free = sorted((key for key in apart if not is_busy(key)), key=lambda key: scope.sessions[key].last_accessed)
    return Surplus([], free[: max(0, len(apart) + 1 - MAX_APART)])


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
    if scope.sessions or scope.archived or settings.ttl_days == 0:
        return False
    return scope.updated_at < now - timedelta(days=settings.ttl_days)


def idle_sessions(
    scope: Scope,
    settings: SessionSettings,
    now: datetime,
    is_busy: IsBusy,
    minutes_of_agents: Mapping[str, int] = MappingProxyType({}),
) -> list[str]:
    """Return the open sessions without a message for `idle_minutes`, or for the minutes of their agent; 0: never."""
    found = []
    for key, state in scope.sessions.items():
        minutes = minutes_of_agents.get(state.agent, settings.idle_minutes)
        if minutes == 0 or state.status is not SessionStatus.ACTIVE or is_busy(key):
            continue
        if max(state.updated_at, state.last_accessed) < now - timedelta(minutes=minutes):
            found.append(key)
    return found


class Retention:
    """Archives and deletes sessions. The hooks are called with every session that leaves."""

    def __init__(
        self,
        store: SessionStore,
        archiver: Archiver,
        clock: Callable[[], datetime],
        on_leaving: OnLeaving,
        remove_files: RemoveFiles,
        leaving_operations: LeavingOperations,
    ) -> None:
        self._store = store
        self._archiver = archiver
        self._clock = clock
        self._on_leaving = on_leaving
        self._remove_files = remove_files
        self._leaving_operations = leaving_operations
        self._to_sweep: list[str] = []

    async def leave(self, key: str | None, why: Leaving) -> None:
        """Call the hook for a session that stays in its list."""
        state = self._store.index.find(key) if key is not None else None
        if key is not None and state is not None:
            await self._on_leaving(meta_of(key, state), why)

    def operations(self, key: str | None, why: Leaving) -> Sequence[Operation]:
        """Return what to commit with the change by which a session of the list leaves."""
        state = self._store.index.find(key) if key is not None else None
        return () if key is None or state is None else self._leaving_operations(key, meta_of(key, state), why)

    async def copy(self, surplus: Surplus) -> list[ArchivedCopy]:
        """Copy the full sessions of a surplus to the archive. They stay in their list until a commit moves them."""
        if self._archiver.is_paused:
            return []
        copies = []
        for key in surplus.full:
            await self.leave(key, Leaving.PRUNED)
            if self._store.index.find(key) is not None:
                copies.append(await self._archiver.copy(key, Leaving.PRUNED, self._clock()))
        return [copy for copy in copies if copy is not None]

    async def prune(self, scope: str, limit: int, is_busy: IsBusy) -> list[str]:
        """Delete the empty sessions beyond `limit`, archive the others, and return their keys."""
        surplus = surplus_sessions(self._store.index[scope], limit, is_busy)
        pruned = await self.delete_empty(surplus.empty)
        for copy in await self.copy(surplus):
            try:
                await self._archiver.archive(copy)
            except (Refused, SpoolUnavailable, HeldElsewhere) as error:
                log.warning("session_not_archived", session=copy.meta.key, reason=str(error))
            else:
                pruned.append(copy.meta.key)
        return pruned

    async def delete_empty(self, keys: Sequence[str]) -> list[str]:
        """Delete sessions in which nothing was said, and return their keys. The spool has no text of them."""
        deleted: list[str] = []
        for key in keys:
            try:
                if not await self._is_empty(key):
                    continue
                await self.leave(key, Leaving.PRUNED)
                successor = await self._store.remove(
                    key, self._store.storage.removal_operations(key), partial(self._store.forget, key)
                )
            except (Refused, SpoolUnavailable, HeldElsewhere) as error:
                log.warning("session_not_pruned", session=key, reason=str(error))
            else:
                await self._store.flusher.delete_transcript(key, successor)
                await self._remove_files(key)
                log.info("session_removed", session=key, why=Leaving.PRUNED)
                deleted.append(key)
        return deleted

    async def _is_empty(self, key: str) -> bool:
        """Look into the transcript: a clock that was set back can make a cleared session look like an empty one."""
        try:
            tail = await self._store.storage_thread.submit(self._store.storage.read, key)
        except FileNotFoundError:
            return True
        except (OSError, UnreadableTranscript, NewerTranscript):
            return False
        return not any(isinstance(entry, e.User | e.Assistant) for entry in tail.entries)

    async def delete(
        self, key: str, why: Leaving = Leaving.DELETED, also: Sequence[Operation] = (), then: Then | None = None
    ) -> None:
        """Delete a session for good, even if it is archived or damaged, in one commit with `also`.

        Raises `Refused` if it does not exist. `then` is called after the commit. If that fails, nothing has happened.
        """
        flusher, index = self._store.flusher, self._store.index
        name, _ = parse_key(key)
        is_listed, is_archived = index.find(key) is not None, await self._archiver.is_archived(key)
        if not is_listed and not await self._archiver.is_stored(key):
            index.require(key)  # Raises the refusal.
        await self.leave(key, why)

        def committed() -> None:
            if is_archived:
                index.count_archived(name, -1)
            elif is_listed:
                self._store.forget(key)
            flusher.undeleted.add(key)
            if then is not None:
                then()

        # 1. One commit erases the session from the spool and records that it has to be deleted. From then on, every
        #    start deletes what is left of it, and no crash brings it back.
        # 2. Its files are deleted.
        # 3. The next flush removes the last copies of its text: see `Flusher`.
        operations = [DeleteSession(session=key, scope=name), *self._store.storage.removal_operations(key), *also]
        if why is not Leaving.EXPIRED:  # What is known of a session outlives its text, unless a person deletes it.
            operations += self._leaving_operations(key, await self._meta(key), why)
        successor = None
        if is_listed:
            successor = await self._store.remove(key, operations, committed)
        else:
            await self._store.commit(name, operations, committed)
        log.info("session_removed", session=key, why=why)
        await self._delete_files(key, successor)

    async def _meta(self, key: str) -> SessionMeta | None:
        """Return the facts about a session of the list or the archive; None if it cannot be read."""
        if (state := self._store.index.find(key)) is not None:
            return meta_of(key, state)
        try:
            archived = await self._archiver.find(key)
        except Refused:
            return None
        return None if archived is None else archived.meta

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
        await self._archiver.delete_leftovers()

    async def archive(self, key: str, is_busy: IsBusy) -> None:
        """Move a session to the archive. Raises `Refused` if it is empty, has a turn, or cannot be archived now."""
        if is_empty(self._store.index.require(key)):
            raise Refused("This session is empty, so there is nothing to archive. Delete it instead.")
        if is_busy(key):
            raise Refused("This session is being used. Try again when its turn has ended.")
        await self.leave(key, Leaving.PRUNED)
        copy = None if self._archiver.is_paused else await self._archiver.copy(key, Leaving.PRUNED, self._clock())
        if copy is None:
            raise Refused("This session can't be archived now. Try again later.")
        await self._archiver.archive(copy)

    async def _expire(self, key: str) -> None:
        """Move an old session to the archive, or delete it if it is empty. Raises `Refused` if that fails."""
        state = self._store.index.require(key)
        if is_empty(state) and await self.delete_empty([key]):
            return
        await self.leave(key, Leaving.EXPIRED)
        copy = None if self._archiver.is_paused else await self._archiver.copy(key, Leaving.EXPIRED, self._clock())
        if copy is None:
            raise Refused("It can't be archived now. The next sweep tries again.")
        await self._archiver.archive(copy)

    async def sweep(
        self,
        settings: SessionSettings,
        is_busy: IsBusy,
        *,
        expires: bool,
        minutes_of_agents: Mapping[str, int] = MappingProxyType({}),
    ) -> SweepReport:
        """Expire old sessions and complete idle ones, in up to `SCOPES_PER_SWEEP` scopes; the next call goes on."""
        index = self._store.index
        # A sweep over a hundred thousand scopes would block the event loop for seconds, so it is done in parts.
        if not self._to_sweep:
            self._to_sweep = list(index)
        names = self._to_sweep[-SCOPES_PER_SWEEP:]
        del self._to_sweep[-SCOPES_PER_SWEEP:]
        expired: list[str] = []
        completed: list[str] = []
        idle = e.Status(value=SessionStatus.COMPLETED, by=session.GATEWAY, why=session.IDLE_TIMEOUT)
        for at, name in enumerate(names):
            if at % SCOPES_PER_STEP == 0:
                await asyncio.sleep(0)
            if expires:
                old = expired_sessions(index[name], settings, self._clock(), is_busy)
                expired += [key for key in old if await _succeeds(self._expire(key), key)]
            unused = idle_sessions(index[name], settings, self._clock(), is_busy, minutes_of_agents)
            for key in unused:
                also = self.operations(key, Leaving.CLOSED)
                if await _succeeds(self._store.append(key, [idle], also=also), key):
                    await self.leave(key, Leaving.CLOSED)
                    completed.append(key)
            if expires and is_scope_expired(index[name], settings, self._clock()):
                index.drop_scope(name)
        if expires and settings.archive_days:
            limit = self._clock() - timedelta(days=settings.archive_days)
            for key in await self._archiver.expired(limit):
                await _succeeds(self.delete(key, Leaving.EXPIRED), key)
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
    except HeldElsewhere:  # Another node of the cluster sweeps it.
        return False
    except Refused as refusal:
        log.warning("session_sweep_failed", session=key, reason=str(refusal))
        return False
    return True
