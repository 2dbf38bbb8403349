"""The ledger: whatever is written into a session goes through here, to the journal, into the books and to the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

import msgspec
import structlog

from gateway.errors import Refused
from gateway.sessions import entries as e
from gateway.sessions import recovery, session
from gateway.sessions.cache import Ends, too_new
from gateway.sessions.entries import Entry
from gateway.sessions.history import current_summary
from gateway.sessions.index import Books, Scopes
from gateway.sessions.journal import Journal, replay
from gateway.sessions.recovery import RecoveryReport
from gateway.sessions.session import SessionMeta, meta_of
from gateway.sessions.state import SessionState
from gateway.sessions.storage.codec import NewerTranscript, stamp
from gateway.sessions.storage.disk import Disk
from gateway.sessions.storage.flush import Durability
from gateway.sessions.storage.threads import Worker
from gateway.spool import AppendEntries, Operation, SpoolBroken, SpoolFull

__all__ = ["Also", "SessionStore", "Then", "nothing_else", "nothing_more"]

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_WAITING_LIMIT = 64 * 1024 * 1024
"""Bytes that may wait for a disk that refuses them; beyond that appends are refused."""

_CHECKPOINT_ENTRIES = 256
_CHECKPOINT_BYTES = 256 * 1024
"""After so many entries or bytes the state is written down, so that nobody ever has to read further back."""

_T = TypeVar("_T")

Also = Callable[[SessionMeta], Sequence[Operation]]
"""What is to be committed with a session's entries, made of what the session is then."""

Then = Callable[[], None]
"""What is to follow once all is committed, also when whoever asked for it has been cancelled meanwhile."""


def nothing_else(_session: SessionMeta) -> Sequence[Operation]:
    return ()


def nothing_more() -> None:
    """Follow with nothing."""


class SessionStore:
    """All state in memory is changed on the event loop, without a pause between looking and changing.

    All writing is done by one thread, in the order in which it was asked for; another one waits for fsync.
    """

    def __init__(self, disk: Disk, clock: Callable[[], datetime], journal: Journal | None = None) -> None:
        self.disk = disk
        self._journal = journal
        self._appending: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Held while entries of a session are on their way to the journal; if it refuses them, their seq is free."""
        self.books = Books()
        self._clock = clock
        self._thread = Worker("sessions")
        self.ends = Ends(self.books, disk, self._thread)
        self.durability = Durability(disk, self.books, self._thread, journal)
        self._is_recovered = False

    async def close(self) -> None:
        if self._journal is not None:
            with suppress(SpoolFull, SpoolBroken):
                await self._journal.commit()  # Behind all that is on its way.
        if self._is_recovered:
            await self.durability.end()
        await asyncio.to_thread(self.stop)

    def stop(self) -> None:
        """End the threads once they have done what they were asked for."""
        self.durability.stop()
        self._thread.stop()
        self.disk.close()

    async def recover(self) -> RecoveryReport:
        if self._journal is not None:
            async for key, noted in self._journal.unflushed_entries():
                self.durability.owe(key, noted[-1][0])
                await self.on_disk(replay, self.disk, key, noted)
        recovered = await self.on_disk(recovery.recover, self.disk, self._clock())
        self.books.scopes = Scopes(recovered.members, recovered.report.sessions)
        self.durability.recovered(recovered.doomed, is_news=recovered.is_news)
        self._is_recovered = True
        return recovered.report

    async def begin(
        self, key: str, entries: Sequence[Entry], also: Also = nothing_else, then: Then = nothing_more
    ) -> SessionState:
        """Write the first entries of a session, which becomes the active one of its scope, and commit `also`."""
        self.insist_on_recovery()
        self._insist_on_room()
        sealed, lines = self._seal(entries, after=0)
        data = b"".join(lines)
        state = msgspec.structs.replace(session.fold(sealed), size=len(data))
        operations = also(meta_of(key, state))
        if self._journal is None:
            self._found(key, sealed, state)
            await self._persist(key, data, is_new=True)
            then()
        else:
            noted = AppendEntries(session=key, first_seq=1, lines=tuple(lines))
            await self._journal.commit(
                noted, *operations, on_done=partial(self._begun, key, sealed, lines, state, then)
            )
        return state

    def _begun(
        self,
        key: str,
        sealed: list[Entry],
        lines: list[bytes],
        state: SessionState,
        then: Then,
        refusal: BaseException | None,
    ) -> None:
        """As `_appended`, for a new session."""
        if refusal is None:
            self._found(key, sealed, state)
            self._persist_later(key, b"".join(lines), upto=len(lines), is_new=True)
            then()

    def _found(self, key: str, sealed: list[Entry], state: SessionState) -> None:
        """Take a new session into memory, as the active one."""
        self.books.update(key, state, is_active=True)
        self.ends.begin(key, sealed, state.size)

    async def append(
        self,
        key: str,
        entries: Sequence[Entry],
        *,
        is_active: bool = False,
        also: Sequence[Operation] = (),
        then: Then = nothing_more,
    ) -> list[Entry]:
        """Add entries to a session; return them as they are now. With `is_active`, it becomes the active one.

        `also` is committed with them, and `then` follows. Nothing has happened when that fails.
        """
        self._insist_on_room()
        if not entries and not also:
            return []
        sealed = await self._append(key, lambda: entries, also, then, is_active=is_active)
        written = self.books.find(key)
        if sealed and written is not None and _is_checkpoint_due(written):
            await self._write_checkpoint(key)
        return sealed

    async def _append(
        self,
        key: str,
        wanted: Callable[[], Sequence[Entry]],
        also: Sequence[Operation] = (),
        then: Then = nothing_more,
        *,
        is_active: bool = False,
    ) -> list[Entry]:
        """Append what `wanted` returns when its turn has come."""
        if self._journal is None:
            state = self.books.state(key)
            sealed, lines = self._seal(wanted(), after=state.seq)
            self._take(key, state, sealed, b"".join(lines), is_active=is_active)
            await self._persist(key, b"".join(lines))
            then()
            return sealed
        appending = self._appending.setdefault(key, asyncio.Lock())
        await appending.acquire()
        try:
            sealed, lines = self._seal(wanted(), after=self.books.state(key).seq)
        except BaseException:  # Whatever it is, the next one must get the lock.
            appending.release()
            raise
        noted = [AppendEntries(session=key, first_seq=sealed[0].seq, lines=tuple(lines))] if sealed else []
        taken_in = partial(self._appended, key, sealed, lines, appending, then, is_active)
        await self._journal.commit(*noted, *also, on_done=taken_in)
        return sealed

    def _appended(
        self,
        key: str,
        sealed: list[Entry],
        lines: list[bytes],
        appending: asyncio.Lock,
        then: Then,
        is_active: bool,  # noqa: FBT001 - bound where the name stands
        refusal: BaseException | None,
    ) -> None:
        """Take in what the journal has: whoever asked for it may have been cancelled, but all three must agree."""
        appending.release()
        if refusal is not None:
            return
        state = self.books.find(key)
        if state is not None:  # It may have been deleted meanwhile.
            data = b"".join(lines)
            self._take(key, state, sealed, data, is_active=is_active)
            if sealed:
                self._persist_later(key, data, upto=sealed[-1].seq)
        then()

    async def commit(self, operations: Sequence[Operation], then: Then = nothing_more) -> None:
        """Commit what belongs to no entry."""
        if self._journal is None:
            then()
        elif operations:
            await self._journal.commit(*operations, on_done=partial(_follow, then))

    async def flush(self) -> None:
        """Make everything durable; before the recovery there is nothing to be."""
        if self._is_recovered:
            await self.durability.flush()

    async def on_disk(self, work: Callable[..., _T], *arguments: object) -> _T:
        """Do `work` in the thread that owns the files. It is done even when the one who waits for it is cancelled."""
        return await self._thread.submit(partial(work, *arguments))

    def insist_on_recovery(self) -> None:
        if not self._is_recovered:
            raise RuntimeError("recover() has to come first: without it, numbers in use would be given away again")

    def _insist_on_room(self) -> None:
        if self.disk.waiting > _WAITING_LIMIT:
            raise Refused("The disk has not taken anything for too long, so nothing more can be accepted just now.")

    def _take(
        self, key: str, state: SessionState, sealed: Sequence[Entry], data: bytes, *, is_active: bool = False
    ) -> None:
        """Take entries into memory, which have come since the session had that `state`."""
        for entry in sealed:
            state = session.advance(state, entry)
        self.books.update(key, msgspec.structs.replace(state, size=state.size + len(data)), is_active=is_active)
        self.ends.extend(key, sealed, len(data))

    def _seal(self, entries: Sequence[Entry], *, after: int) -> tuple[list[Entry], list[bytes]]:
        now = self._clock()
        pairs = [stamp(entry, seq=seq, now=now) for seq, entry in enumerate(entries, after + 1)]
        return [entry for entry, _ in pairs], [line for _, line in pairs]

    def _persist_later(self, key: str, data: bytes, *, upto: int, is_new: bool = False) -> None:
        """Write through to the transcript what the journal has; since it has it, nobody needs to wait."""
        self.durability.owe(key, upto)
        self._thread.entrust(partial(self.disk.append, key, data, is_new=is_new), partial(self._not_persisted, key))

    def _not_persisted(self, key: str, trouble: Exception) -> None:
        """Forget a session that cannot be written; whoever comes next is told. Any other trouble is the disk's own."""
        if isinstance(trouble, FileNotFoundError) and self.books.find(key) is not None:
            self.ends.gone(key, "is gone from the disk")
        else:
            log.error("transcript_not_written", session=key, reason=str(trouble))

    async def _persist(self, key: str, data: bytes, *, is_new: bool = False) -> None:
        """Write through to the transcript, and be refused when that cannot be."""
        try:
            await self._thread.submit(partial(self.disk.append, key, data, is_new=is_new))
        except FileNotFoundError as trouble:
            raise self.ends.gone(key, "is gone from the disk") from trouble
        except NewerTranscript as trouble:
            raise too_new(key, trouble) from trouble

    async def _write_checkpoint(self, key: str) -> None:
        """Write down what all adds up to. What was appended is written already: nothing here is worth failing for."""
        try:
            if self.books.state(key).has_summary:
                await self.ends.load(key, 1)
            await self._append(key, partial(self._checkpoint, key))
        except (Refused, SpoolFull) as refusal:
            log.debug("checkpoint_not_written", session=key, reason=str(refusal))

    def _checkpoint(self, key: str) -> list[Entry]:
        entries, state = self.ends.at_hand(key), self.books.state(key)
        if not _is_checkpoint_due(state) or (entries is None and state.has_summary):
            return []
        summary = current_summary(entries or ()) if state.has_summary else None
        return [e.Checkpoint(key=key, state=state, summary=summary)]


def _is_checkpoint_due(state: SessionState) -> bool:
    return state.seq - state.checkpoint >= _CHECKPOINT_ENTRIES or state.size - state.checkpoint_at >= _CHECKPOINT_BYTES


def _follow(then: Then, refusal: BaseException | None) -> None:
    if refusal is None:
        then()
