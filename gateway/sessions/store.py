"""`SessionStore`: every change of a session goes through here, to the spool, to memory and to its storage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import datetime
from functools import partial
from itertools import islice

import msgspec
import structlog

from gateway.aio import KeyedLocks, WorkerThread, finish_before_cancel
from gateway.errors import HeldElsewhere, Refused
from gateway.sessions import entries as e
from gateway.sessions import session
from gateway.sessions.cache import SessionCache
from gateway.sessions.entries import Entry
from gateway.sessions.feed import SessionFeed
from gateway.sessions.history import current_summary
from gateway.sessions.index import SessionIndex
from gateway.sessions.keys import parse_key
from gateway.sessions.recovery import RecoveryReport
from gateway.sessions.state import SessionState
from gateway.sessions.storage.codec import stamp
from gateway.sessions.storage.disk import LOST
from gateway.sessions.storage.interface import SessionStorage
from gateway.sessions.storage.journal import Journal
from gateway.shards import shard_of
from gateway.spool import Operation, SpoolBroken, SpoolUnavailable

log: structlog.stdlib.BoundLogger = structlog.get_logger()

# Bytes that may wait for a disk that refuses them. Beyond that, appends are refused.
MAX_WAITING_BYTES = 64 * 1024 * 1024

# A checkpoint is written after so many entries or bytes, so that a read of the state never goes further back.
CHECKPOINT_ENTRIES = 256
CHECKPOINT_BYTES = 256 * 1024

UNLOADED_PER_STEP = 1_000
"""Scopes that a node of a cluster looks at before other tasks run. A step takes a few milliseconds."""

# Called once the commit is done, even if the caller was cancelled.
Then = Callable[[], None]


class SessionStore:
    """All sessions: `index` and `cache` in memory, their `storage` and its thread, and the `flusher`.

    Memory changes on the event loop only, in one step without an `await`. One thread writes all files, in the order of
    the calls; another one waits for fsync.
    """

    def __init__(
        self,
        storage: SessionStorage,
        clock: Callable[[], datetime],
        journal: Journal | None = None,
        feed: SessionFeed | None = None,
    ) -> None:
        self.storage = storage
        self._feed = feed or SessionFeed()
        self.storage_thread = WorkerThread("sessions")
        self.index = SessionIndex()
        self.cache = SessionCache(self.index, storage, self.storage_thread, clock, self._feed)
        self.flusher = storage.flusher(self.index, self.storage_thread, journal)
        self._journal = journal
        self._clock = clock
        self._appends = KeyedLocks()
        self._removal = asyncio.Lock()
        self._is_recovered = False
        self.shards: set[int] | None = None
        """In a cluster, the shards whose sessions are in memory."""

    async def close(self) -> None:
        """Flush, and end the threads."""
        if self._journal is not None:
            with suppress(SpoolUnavailable, SpoolBroken):
                await self._journal.commit()  # Returns after all commits that were made before.
        await self.flusher.finish()
        await asyncio.to_thread(self.stop)

    def stop(self) -> None:
        """End the threads without a flush. This blocks."""
        self.flusher.stop()
        self.storage_thread.stop()
        self.storage.close()

    async def load_shards(self, shards: Sequence[int]) -> int:
        """Read the sessions of shards that this node of a cluster has taken. Returns how many they are.

        Raises `SpoolUnavailable` if the database cannot answer now.
        """
        assert self._journal is not None, "a cluster has one"  # noqa: S101 - for mypy
        deleted = [key for key in await self._journal.deletions() if shard_of(parse_key(key)[0]) in shards]
        read = partial(self.storage.recover, self._clock(), frozenset(deleted), shards)
        try:
            recovered = await self.storage_thread.submit(read)
        except OSError as error:  # The reader has a connection of its own, and reports its loss like a disk.
            raise SpoolUnavailable(f"The sessions can't be read now: {error.strerror}.") from error
        self.index.add(recovered.scopes, recovered.report.sessions)
        self.shards = {*(self.shards or ()), *shards}
        self.flusher.undeleted |= recovered.undeleted
        self._is_recovered = True
        return recovered.report.sessions

    async def unload_shards(self, shards: Collection[int]) -> None:
        """Forget the sessions of shards that this node does not own any more. Other tasks run between two steps."""
        self.shards = {*(self.shards or ())} - {*shards}
        names = iter(self.index.names())
        while step := list(islice(names, UNLOADED_PER_STEP)):
            for key in self.index.forget(name for name in step if shard_of(name) in shards):
                self.cache.drop(key)
                self.cache.damaged.pop(key, None)
                self.cache.notices.pop(key, None)
                self._feed.removed(key)
            await asyncio.sleep(0)
        for keys in (self.flusher.undeleted, self.flusher.unpurged):
            keys.difference_update({key for key in keys if shard_of(parse_key(key)[0]) in shards})

    async def recover(self) -> RecoveryReport:
        """Append the entries that are only in the journal to their transcripts, then find all sessions."""
        deleted: frozenset[str] = frozenset()
        if self._journal is not None:
            deleted = frozenset(await self._journal.deletions())
            # These entries were committed, but the last run died before a flush made their transcripts durable. They
            # stay in the journal until the next flush.
            async for key, lines in self._journal.unflushed_entries():
                self.flusher.unflushed[key] = lines[-1][0]
                await self.storage_thread.submit(self.storage.replay, key, lines)
        recovered = await self.storage_thread.submit(self.storage.recover, self._clock(), deleted)
        self.index.load(recovered.scopes, recovered.report.sessions)
        self.flusher.start(recovered.undeleted, is_index_outdated=recovered.is_index_outdated)
        self._is_recovered = True
        return recovered.report

    def require_recovery(self) -> None:
        if not self._is_recovered:
            raise RuntimeError("call recover() first: without it, session numbers would be used twice")

    async def create(
        self, key: str, entries: Sequence[Entry], also: Sequence[Operation] = (), then: Then | None = None
    ) -> SessionState:
        """Write the first entries of a session, which becomes the active one of its scope, unless it is apart."""
        self.require_recovery()
        self._require_room()
        stamped, lines = self._stamp(entries, after=0)
        state = msgspec.structs.replace(session.fold(stamped), size=sum(map(len, lines)))
        await self._commit(key, stamped, lines, also, then, created=state)
        return state

    async def append(
        self,
        key: str,
        entries: Sequence[Entry],
        *,
        is_active: bool = False,
        also: Sequence[Operation] = (),
        then: Then | None = None,
    ) -> list[Entry]:
        """Append entries to a session, and return them with their seq and time. `also` is committed with them.

        With `is_active` the session becomes the active one of its scope. If this raises, nothing has happened.
        """
        self._require_room()
        if not entries and not also:
            return []
        stamped = await self._append(key, lambda: entries, also, then, is_active=is_active)
        state = self.index.find(key)
        if stamped and state is not None and _is_checkpoint_due(state):
            await self._append_checkpoint(key)
        return stamped

    async def _append(
        self,
        key: str,
        make_entries: Callable[[], Sequence[Entry]],
        also: Sequence[Operation] = (),
        then: Then | None = None,
        *,
        is_active: bool = False,
    ) -> list[Entry]:
        # Without a journal nothing is awaited between the seq and its use, so there is nothing to lock.
        is_locked = self._journal is not None
        if is_locked:
            await self._appends.acquire(key)
        try:
            state = self.index.require(key)
            self.cache.require_sound(key)
            stamped, lines = self._stamp(make_entries(), after=state.seq)
        except BaseException:
            if is_locked:
                self._appends.release(key)
            raise
        await self._commit(key, stamped, lines, also, then, is_active=is_active, is_locked=is_locked)
        return stamped

    async def _commit(
        self,
        key: str,
        stamped: list[Entry],
        lines: list[bytes],
        also: Sequence[Operation],
        then: Then | None,
        *,
        is_active: bool = False,
        created: SessionState | None = None,
        is_locked: bool = False,
    ) -> None:
        """Commit entries to the journal, then to memory and to the transcript."""
        # The journal, the memory and the transcript have to agree, even if the caller is cancelled:
        # 1. Only one append of a session has a seq and waits for the journal. If the journal refuses it, its seq is
        #    free again.
        # 2. After the commit the journal calls `apply` on the event loop, before any waiter, and even if the caller
        #    was cancelled.
        # 3. `apply` changes the memory and hands the lines to the storage thread in one step. So the transcript gets
        #    them in the order of their seq.
        # 4. If the process dies before the storage thread has written them, recovery writes them from the journal.
        data = b"".join(lines)
        write = partial(self.storage.append, key, data, is_new=created is not None)

        def apply(refusal: BaseException | None) -> None:
            if is_locked:
                self._appends.release(key)
            if refusal is not None:
                return
            if self._apply(key, stamped, len(data), is_active=is_active, created=created) and stamped:
                self.flusher.unflushed[key] = stamped[-1].seq
                self.storage_thread.post(write, partial(self._write_failed, key))
            self._feed.appended(key, stamped)
            if then is not None:
                then()

        if self._journal is not None:
            append: Sequence[Operation] = ()
            if stamped:
                changed = partial(self._advanced, key, stamped, len(data), created)
                append = self.storage.append_operations(key, stamped[0].seq, lines, changed)
            await self._journal.commit(*append, *also, scope=parse_key(key)[0], on_done=apply)
            return
        self._apply(key, stamped, len(data), is_active=is_active, created=created)
        try:
            await self.storage_thread.submit(write)
        except (*LOST, OSError) as error:
            if (refusal := self.cache.restore_lost(key, error)) is not None:
                raise refusal from error
        self._feed.appended(key, stamped)
        if then is not None:
            then()

    @asynccontextmanager
    async def removing(self, keys: Sequence[str]) -> AsyncIterator[None]:
        """Let no entry be appended to these sessions, while a commit removes them from the index.

        Appends that are under way end first. Later ones find the session gone, or go on if it has stayed.
        """
        # One removal at a time, since two of them could wait for each other's lock.
        async with self._removal, AsyncExitStack() as locks:
            for key in keys:
                await self._appends.acquire(key)
                locks.callback(self._appends.release, key)
            yield

    def forget(self, key: str) -> None:
        """Remove a session from memory. Its file stays."""
        self.index.remove(key)
        self.cache.drop(key)
        self._feed.removed(key)

    async def commit(self, scope: str, operations: Sequence[Operation], then: Then) -> None:
        """Commit operations on a scope that belong to no entry. `then` is called after the commit."""
        if self._journal is None:
            then()
        else:
            on_done = lambda error: then() if error is None else None  # noqa: E731 - it is no longer than this line.
            await self._journal.commit(*operations, scope=scope, on_done=on_done)

    async def remove(
        self, key: str, operations: Sequence[Operation], then: Then, *, expected_seq: int | None = None
    ) -> str | None:
        """Commit `operations`, and call `then` with that commit, which has to forget the session. Its file stays.

        Returns the key of another session of the scope that got an entry: fsync its transcript before the file of the
        removed session is deleted. Raises `Refused` if the session does not exist, or its last entry does not have
        the `expected_seq`. If this raises, nothing has happened.
        """
        return await finish_before_cancel(self._remove(key, operations, then, expected_seq))

    async def _remove(
        self, key: str, operations: Sequence[Operation], then: Then, expected_seq: int | None
    ) -> str | None:
        # No entry may be committed to the session after its removal, or a replay would bring a part of it back:
        # 1. Appends that are under way end first (the append lock).
        # 2. `then` takes the session out of the index with the commit, before it wakes anyone who waits for the lock.
        # 3. Appends that waited for the lock do not find the session any more, and are refused.
        async with self.removing([key]):
            if expected_seq not in (None, self.index.require(key).seq):
                raise Refused("That session is being used. Please try again.")
            before = self.index[parse_key(key)[0]]
            # The transcript may be the only one with the highest number and the latest activation. Write both to
            # another session, so that no number is used twice even if the index is lost.
            left = before.without(key)
            used = [each for each in left.ordered_sessions if left.sessions[each].epoch != session.APART]
            # One of a schedule keeps the number, and does not become the active session.
            successor = left.active_session_key or next(iter(used or left.ordered_sessions), None)
            epoch = left.epoch + 1 if used else session.APART
            if successor is not None:
                has_number = max(state.highest_number for state in left.sessions.values()) >= left.highest_number
                if not has_number or (used and before.active_session_key not in (successor, None)):
                    entry = e.Activated(key=successor, epoch=epoch, highest_number=left.highest_number)
                    try:
                        await self._append(successor, lambda: [entry], operations, then, is_active=bool(used))
                    except Refused as refusal:
                        log.warning("highest_number_not_persisted", session=successor, reason=str(refusal))
                    else:
                        return successor
            await self.commit(parse_key(key)[0], operations, then)
            return None

    def _apply(
        self, key: str, stamped: list[Entry], size: int, *, is_active: bool, created: SessionState | None
    ) -> bool:
        """Put entries into memory. Return False if the session was deleted in the meantime."""
        if created is not None:
            # A new session is whole in the cache, so its first turns read nothing from the disk.
            self.index.update(key, created, is_active=created.epoch != session.APART)
            self.cache.put(key, stamped, size)
            return True
        if self.index.find(key) is None:
            return False
        self.index.update(key, self._advanced(key, stamped, size), is_active=is_active)
        self.cache.extend(key, stamped, size)
        return True

    def _advanced(self, key: str, stamped: list[Entry], size: int, created: SessionState | None = None) -> SessionState:
        """Return the state of a session after entries that take `size` bytes; `created` for a new one."""
        if created is not None:
            return created
        state = self.index.require(key)
        for entry in stamped:
            state = session.advance(state, entry)
        return msgspec.structs.replace(state, size=state.size + size)

    def _write_failed(self, key: str, error: BaseException) -> None:
        self.cache.restore_lost(key, error)

    def _require_room(self) -> None:
        if self.storage.waiting > MAX_WAITING_BYTES:
            raise Refused("The disk has been full for too long, so I can't save new messages. Please try again later.")

    def _stamp(self, entries: Sequence[Entry], *, after: int) -> tuple[list[Entry], list[bytes]]:
        now = self._clock()
        pairs = [stamp(entry, seq=seq, now=now) for seq, entry in enumerate(entries, after + 1)]
        return [entry for entry, _ in pairs], [line for _, line in pairs]

    async def _append_checkpoint(self, key: str) -> None:
        """Append the current state as a checkpoint. It only saves reading, so a failure is not an error."""
        try:
            if self.index.require(key).has_summary:
                # The checkpoint repeats the current summary, which `_checkpoint` looks for in the cache.
                await self.cache.load(key, 1)
            await self._append(key, partial(self._checkpoint, key))
        except (Refused, SpoolUnavailable, HeldElsewhere) as refusal:
            log.debug("checkpoint_not_written", session=key, reason=str(refusal))

    def _checkpoint(self, key: str) -> list[Entry]:
        # Runs under the append lock. Another append may have written a checkpoint since, or the cache may have
        # dropped the session, and with it the summary.
        entries, state = self.cache.get(key), self.index.require(key)
        if not _is_checkpoint_due(state) or (entries is None and state.has_summary):
            return []
        summary = current_summary(entries or ()) if state.has_summary else None
        return [e.Checkpoint(key=key, state=state, summary=summary)]


def _is_checkpoint_due(state: SessionState) -> bool:
    return state.seq - state.checkpoint >= CHECKPOINT_ENTRIES or state.size - state.checkpoint_at >= CHECKPOINT_BYTES
