"""The archiver: moves sessions to the archive and back.

A session is in one place for people at any time. It is copied, and the copy fsynced, before a commit takes it from one
place to the other. After that, the file that is no longer needed is deleted. If a crash leaves both files, recovery
keeps the transcript.
"""

import builtins
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import NamedTuple

import structlog

from gateway.aio import WorkerThread, finish_before_cancel
from gateway.errors import HeldElsewhere, Refused
from gateway.sessions import entries as e
from gateway.sessions.entries import Entry
from gateway.sessions.keys import parse_key
from gateway.sessions.session import SessionMeta, meta_of
from gateway.sessions.state import SessionState
from gateway.sessions.storage.archive import ArchivedSession
from gateway.sessions.storage.archived_transcript import DamagedArchive
from gateway.sessions.storage.interface import Arrival
from gateway.sessions.store import SessionStore, Then
from gateway.shards import shard_of
from gateway.spool import Operation, SpoolUnavailable

log: structlog.stdlib.BoundLogger = structlog.get_logger()

LeavingOperations = Callable[[str, SessionMeta | None, str], Sequence[Operation]]
"""Returns what is committed together with the change by which a session leaves, by its key, its facts and the reason.

The facts are None if the session is deleted and cannot be read.
"""


class ArchivedCopy(NamedTuple):
    """A session whose copy is in the archive, unless it is archived in place. `seq` is that of its last entry."""

    session: ArchivedSession
    seq: int

    @property
    def meta(self) -> SessionMeta:
        return self.session.meta


class Archiver:
    """`reader` is the thread that compresses: it must not delay appends."""

    def __init__(self, store: SessionStore, reader: WorkerThread, leaving_operations: LeavingOperations) -> None:
        self._store = store
        self._reader = reader
        self._leaving_operations = leaving_operations
        self._pauses = 0
        # Keys of archived sessions whose transcripts are not deleted yet.
        self._undeleted: set[str] = set()

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Keep every session where it is while a backup copies first the transcripts and then the archive."""
        async with self._store.removing([]):  # Waits for a move that is under way.
            self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1

    @property
    def is_paused(self) -> bool:
        return self._pauses > 0

    async def copy(self, key: str, why: str, now: datetime) -> ArchivedCopy | None:
        """Copy a session to the archive. Returns None, after a log line, if that is not possible now."""
        store = self._store
        state = store.index.require(key)
        session = ArchivedSession(key=key, archived_at=now, why=why, state=state)
        try:
            size = await store.storage_thread.submit(store.storage.whole_size, key)
            await self._reader.submit(store.storage.copy_to_archive, session, size)
        except OSError as error:
            log.warning("session_not_archived", session=key, reason=str(error))
            return None
        return ArchivedCopy(session, state.seq)

    async def archive(self, copied: ArchivedCopy) -> None:
        """Move a copied session to the archive. Raises `Refused` if it was used since, and the spool's errors."""
        key = copied.meta.key
        try:
            operations = self._archive_operations([copied])
            successor = await self._store.remove(key, operations, lambda: self._leave([key]), expected_seq=copied.seq)
        except BaseException:
            await self.discard([copied])
            raise
        await self._delete_transcript(key, successor)

    async def start_new(
        self,
        key: str,
        entries: Sequence[Entry],
        copies: Sequence[ArchivedCopy],
        also: Sequence[Operation],
        then: Then | None,
    ) -> SessionState:
        """Start the session `key`, and move the copied sessions of its scope to the archive, all in one commit."""
        store = self._store
        if not copies:
            return await store.create(key, entries, also, then)

        async def start() -> tuple[SessionState, list[str]]:
            async with store.removing([copy.meta.key for copy in copies]):
                unchanged = self._unchanged(copies)
                moved = [copy.session.key for copy in unchanged]
                operations = [*also, *self._archive_operations(unchanged)]
                return await store.create(key, entries, operations, lambda: self._leave(moved, then)), moved

        try:
            state, moved = await finish_before_cancel(start())
        except BaseException:
            await self.discard(copies)
            raise
        for other in moved:
            await self._delete_transcript(other)
        return state

    async def restore(
        self, session: ArchivedSession, copies: Sequence[ArchivedCopy], also: Sequence[Operation] = ()
    ) -> SessionMeta:
        """Bring a session back into the list of its scope, in one commit with `also` that also archives `copies`.

        `copies` has the result of `SessionManager.copy_displaced`. The session becomes the most recently used one after
        the active one. If the scope has no active session, it becomes active.
        Raises `Refused` if it cannot be read. If this raises, nothing has happened.
        """
        store, number = self._store, session.state.number
        try:
            try:
                state, arrival = await self._reader.submit(store.storage.extract, session.key)
            except (DamagedArchive, OSError) as error:
                raise Refused(f"Session {number} can't be read from the archive: {error}.") from error
            try:
                moved = await finish_before_cancel(self._bring_back(session.key, state, arrival, copies, also))
            finally:
                await self._reader.submit(arrival.close)
        except BaseException:
            await self.discard(copies)
            raise
        try:
            await self._reader.submit(store.storage.archive.delete, session.key)
        except OSError as error:  # Lists leave it out, and the next start after a crash deletes it.
            log.warning("archived_copy_not_deleted", session=session.key, reason=str(error))
        for other in moved:
            await self._delete_transcript(other)
        log.info("session_restored", session=session.key)
        return meta_of(session.key, store.index.find(session.key) or state)

    async def _bring_back(
        self,
        key: str,
        state: SessionState,
        arrival: Arrival,
        copies: Sequence[ArchivedCopy],
        also: Sequence[Operation],
    ) -> list[str]:
        store, scope = self._store, parse_key(key)[0]
        async with store.removing([copy.meta.key for copy in copies]):
            if self.is_paused:
                raise Refused("A backup is being made. Please try again when it has finished.")
            if store.index.find(key) is not None:
                raise Refused(f"Session {state.number} is in your list already.")
            unchanged = self._unchanged(copies)
            moved = [copy.session.key for copy in unchanged]
            active = store.index[scope].active_session_key
            try:
                await store.storage_thread.submit(store.storage.place_durably, key, arrival)
            except OSError as error:
                raise Refused(f"Session {state.number} couldn't be restored: {error.strerror}.") from error
            store.index.update(key, state, is_active=active is None)
            self._count(key, -1)
            # Two activations: the session counts as used, and the active one stays the active one.
            found = store.index[scope]
            used, kept = (
                e.Activated(key=name, epoch=found.epoch + step, highest_number=found.highest_number)
                for name, step in ((key, 1), (active or key, 2))
            )
            operations = [*also, *store.storage.restore_operations(key), *self._archive_operations(unchanged)]
            try:
                await store.append(kept.key, [kept], is_active=True, also=operations, then=lambda: self._leave(moved))
            except BaseException:
                store.forget(key)
                self._count(key, 1)
                await store.storage_thread.submit(store.storage.unlink, key)
                raise
            if kept.key != key:
                try:
                    await store.append(key, [used])
                except (
                    Refused,
                    SpoolUnavailable,
                    HeldElsewhere,
                ) as error:  # It may be archived again sooner than others.
                    log.warning("restored_session_not_marked", session=key, reason=str(error))
        return moved

    def _archive_operations(self, copies: Sequence[ArchivedCopy]) -> builtins.list[Operation]:
        operations: builtins.list[Operation] = []
        for copy in copies:
            operations += self._store.storage.archive_operations(copy.session)
            operations += self._leaving_operations(copy.session.key, copy.meta, copy.session.why)
        return operations

    async def discard(self, copies: Sequence[ArchivedCopy]) -> None:
        """Delete copies of sessions that have not moved."""
        for copy in copies:
            if self._store.index.find(copy.meta.key) is not None:
                with suppress(OSError):  # Lists leave it out.
                    await self._reader.submit(self._store.storage.archive.delete, copy.meta.key)

    async def list(self, scope: str) -> builtins.list[ArchivedSession]:
        """Return the archived sessions of a scope, newest first."""
        is_known = self._store.shards is None or shard_of(scope) in self._store.shards
        if is_known and not self._store.index[scope].archived:
            return []
        found = await self._reader.submit(self._store.storage.archive.in_scope, scope)
        return [session for session in found if self._store.index.find(session.key) is None]

    def scopes(self) -> builtins.list[str]:
        """Return the scopes that have archived sessions."""
        return [scope for scope in self._store.index if self._store.index[scope].archived]

    async def transcript_names(self) -> builtins.list[str]:
        """Return the names that the transcripts of all archived sessions had."""
        return await self._reader.submit(self._store.storage.archive.transcript_names)

    async def find(self, key: str) -> ArchivedSession | None:
        """Return an archived session. Raises `Refused` if it cannot be read."""
        if self._store.index.find(key) is not None:
            return None
        try:
            return await self._reader.submit(self._store.storage.archive.find, key)
        except (DamagedArchive, OSError) as error:
            raise Refused(f"Session {parse_key(key)[1]} can't be read from the archive: {error}.") from error

    async def is_archived(self, key: str) -> bool:
        """Return True if a session is archived, even if it cannot be read."""
        archive = self._store.storage.archive
        return self._store.index.find(key) is None and await self._reader.submit(archive.contains, key)

    async def is_stored(self, key: str) -> bool:
        """Return True if there is anything of a session: in the archive, or damaged and set aside."""
        return await self._reader.submit(self._store.storage.remains, key)

    async def lines(self, key: str) -> AsyncGenerator[bytes, None]:
        """Yield the transcript of an archived session in blocks that end anywhere."""
        blocks = self._store.storage.archive.transcript(key)
        try:
            while block := await self._reader.submit(next, blocks, b""):
                yield block
        except DamagedArchive as error:
            raise Refused(f"This session can't be read from the archive: {error}.") from error

    async def expired(self, before: datetime) -> builtins.list[str]:
        """Return keys of sessions that were archived before that time. Each call looks at the next files only.

        A node of a cluster gets those of its own shards.
        """
        shards = self._store.shards
        keys = await self._reader.submit(
            self._store.storage.archive.expired, before, None if shards is None else sorted(shards)
        )
        # A restored session may have left its copy behind, if the disk refused to delete it.
        return [key for key in keys if self._store.index.find(key) is None]

    async def delete_leftovers(self) -> None:
        """Delete the transcripts of archived sessions that could not be deleted before."""
        for key in [*self._undeleted]:
            await self._delete_transcript(key)

    async def _delete_transcript(self, key: str, successor: str | None = None) -> None:
        # Not while a restore is under way: its transcript has the same name.
        async with self._store.removing([]):
            is_restored = self._store.index.find(key) is not None
            if is_restored or await self._store.flusher.delete_transcript(key, successor, is_archived=True):
                self._undeleted.discard(key)

    def _unchanged(self, copies: Sequence[ArchivedCopy]) -> builtins.list[ArchivedCopy]:
        """Return the copies of sessions that were not used since."""
        states = ((copy, self._store.index.find(copy.session.key)) for copy in copies)
        return [copy for copy, state in states if state is not None and state.seq == copy.seq]

    def _leave(self, moved: Sequence[str], then: Then | None = None) -> None:
        for key in moved:
            self._store.forget(key)
            self._count(key, 1)
            self._undeleted.add(key)
            log.info("session_archived", session=key)
        if then is not None:
            then()

    def _count(self, key: str, change: int) -> None:
        self._store.index.count_archived(parse_key(key)[0], change)
