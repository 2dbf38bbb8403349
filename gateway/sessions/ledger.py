"""The books of `SessionManager`: what every session adds up to, the ends of those in use, and the way to the disk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

import msgspec
import structlog

from gateway.dialogue import Message
from gateway.errors import Refused
from gateway.sessions import entries as e
from gateway.sessions import flushing, fold, recovery
from gateway.sessions.counting import standing_summary
from gateway.sessions.disk import Disk
from gateway.sessions.encoding import seal
from gateway.sessions.entries import Entry
from gateway.sessions.hot import HotSessions
from gateway.sessions.identity import Newer, Unreadable
from gateway.sessions.journal import Journal, catch_up
from gateway.sessions.meta import SessionMeta, meta_of
from gateway.sessions.names import file_name, parse_key
from gateway.sessions.recovery import RecoveryReport
from gateway.sessions.scopes import Scopes
from gateway.sessions.spoken import Spoken, lines
from gateway.sessions.state import SessionState
from gateway.sessions.tail import ForHistory, ForLines, ForState, Sufficiency
from gateway.sessions.transcript import Reading
from gateway.sessions.worker import Worker
from gateway.spool import Note, Operation, SpoolBroken, SpoolFull

__all__ = ["Also", "Ledger", "Then", "nothing_else", "nothing_more"]

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_WAITING_LIMIT = 64 * 1024 * 1024
"""Bytes that may wait for a disk that refuses them; beyond that appends are refused."""

_CHECKPOINT_ENTRIES = 256
_CHECKPOINT_BYTES = 256 * 1024
"""After so many entries or bytes the state is written down, so that nobody ever has to read further back."""

_LINES_BYTES = 8 * 1024 * 1024
"""How far back a person may look at once."""

_ALL = 2**62
"""More than any seq."""

_T = TypeVar("_T")

Also = Callable[[SessionMeta], Sequence[Operation]]
"""What is to be committed with a session's entries, made of what the session is then."""

Then = Callable[[], None]
"""What is to follow once all is committed, also when whoever asked for it has been cancelled meanwhile."""


def nothing_else(_session: SessionMeta) -> Sequence[Operation]:
    return ()


def nothing_more() -> None:
    """Follow with nothing."""


@dataclass(slots=True)
class _Loading:
    """A session that is being read, and what was appended to it since the reading was asked for."""

    messages: int
    reading: asyncio.Future[_Found]
    since: list[Entry] = field(default_factory=list)
    since_size: int = 0
    entries: list[Entry] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Found:
    """What was read, and what it adds up to, if that is not what we thought: somebody else has changed the file."""

    reading: Reading
    state: SessionState | None


class Ledger:
    """All state in memory is changed on the event loop, without a pause between looking and changing.

    All writing is done by one thread, in the order in which it was asked for; another one waits for fsync.
    """

    def __init__(self, disk: Disk, clock: Callable[[], datetime], journal: Journal | None = None) -> None:
        self.disk = disk
        self._journal = journal
        self._journaled: dict[str, int] = {}
        """The highest seq of each session that the journal holds, and that was handed to the disk."""
        self._appending: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Held while entries of a session are on their way to the journal; if it refuses them, their seq is free."""
        self.scopes = Scopes({}, 0)
        self.doomed: set[str] = set()
        """Keys of deleted sessions whose files are still there."""
        self.failures = 0
        """Flushes that failed since the last one that worked."""
        self._clock = clock
        self._thread = Worker("sessions")
        self._syncing = Worker("sessions-sync")
        self._hot = HotSessions()
        self._loading: dict[str, _Loading] = {}
        self._index_is_behind = False
        self._is_recovered = False
        self._flushing = asyncio.Lock()

    async def close(self) -> None:
        if self._journal is not None:
            with suppress(SpoolFull, SpoolBroken):
                await self._journal.commit()  # Behind all that is on its way.
        if self._is_recovered:
            await self.flush()
            if not self.scopes.is_changed and not self._index_is_behind:
                await self._syncing.submit(partial(flushing.mark_clean, self.disk, self.scopes.sessions))
        await asyncio.to_thread(self.stop)

    def stop(self) -> None:
        """End the threads once they have done what they were asked for."""
        self._syncing.stop()
        self._thread.stop()
        self.disk.close()

    async def recover(self) -> RecoveryReport:
        if self._journal is not None:
            async for key, noted in self._journal.noted():
                self._journaled[key] = noted[-1][0]
                await self.on_disk(catch_up, self.disk, key, noted)
        recovered = await self.on_disk(recovery.recover, self.disk, self._clock())
        self.scopes = Scopes(recovered.members, recovered.report.sessions)
        self.doomed = set(recovered.doomed)
        self._index_is_behind = recovered.is_news
        self._is_recovered = True
        return recovered.report

    def sessions(self, scope: str) -> dict[str, SessionState]:
        return self.scopes[scope].sessions

    def find(self, key: str) -> SessionState | None:
        return self.scopes[parse_key(key)[0]].sessions.get(key)

    def state(self, key: str) -> SessionState:
        state = self.find(key)
        if state is None:
            raise Refused("That session does not exist any more. /session list shows what there is.")
        return state

    async def begin(
        self, key: str, entries: Sequence[Entry], also: Also = nothing_else, then: Then = nothing_more
    ) -> SessionState:
        """Write the first entries of a session, which becomes the active one of its scope, and commit `also`."""
        self.insist_on_recovery()
        self._insist_on_room()
        sealed, lines = self._seal(entries, after=0)
        data = b"".join(lines)
        state = msgspec.structs.replace(fold.fold(sealed), size=len(data))
        operations = also(meta_of(key, state))
        if self._journal is None:
            self._found(key, sealed, state)
            await self._persist(key, data, is_new=True)
            then()
        else:
            noted = Note(session=key, first_seq=1, lines=tuple(lines))
            await self._journal.commit(noted, *operations, then=partial(self._begun, key, sealed, lines, state, then))
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
        self.update(key, state, is_active=True)
        self._hot.put(key, sealed, state.size)

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
        written = self.find(key)
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
            state = self.state(key)
            sealed, lines = self._seal(wanted(), after=state.seq)
            self._take(key, state, sealed, b"".join(lines), is_active=is_active)
            await self._persist(key, b"".join(lines))
            then()
            return sealed
        appending = self._appending.setdefault(key, asyncio.Lock())
        await appending.acquire()
        try:
            sealed, lines = self._seal(wanted(), after=self.state(key).seq)
        except BaseException:  # Whatever it is, the next one must get the lock.
            appending.release()
            raise
        noted = [Note(session=key, first_seq=sealed[0].seq, lines=tuple(lines))] if sealed else []
        taken_in = partial(self._appended, key, sealed, lines, appending, then, is_active)
        await self._journal.commit(*noted, *also, then=taken_in)
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
        state = self.find(key)
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
            await self._journal.commit(*operations, then=partial(_follow, then))

    async def load(self, key: str, messages: int) -> tuple[Entry, ...]:
        """Return the end of a session: at least its last turn and `messages` messages before it."""
        return tuple(await self.reach(key, messages))

    async def divided(
        self, key: str, messages: int, *, turn: str | None = None, max_chars: int | None = None
    ) -> tuple[list[Message], list[Message]]:
        """Return what the model is to see of a session, before the turn and of it; see `messages.divided`."""
        entries = await self.reach(key, messages)
        return self._hot.remembered(key).divided(entries, messages, turn=turn, max_chars=max_chars)

    async def reach(self, key: str, messages: int) -> list[Entry]:
        """Have the end of a session in memory, as `load`; what is returned goes on growing."""
        entries = self._hot.get(key, messages)
        if entries is not None:
            return entries
        self.state(key)
        return await self._read(key, messages)

    async def lines(self, key: str, limit: int, messages: int) -> list[Spoken]:
        entries: Sequence[Entry] = await self.load(key, messages)
        if not self._hot.is_whole(key) and not _is_enough(ForLines(limit), entries):
            work = partial(self.disk.read, key, ForLines(limit), max_bytes=_LINES_BYTES)
            entries = (await self._refusing(key, self._thread.submit(work))).entries
        return lines(entries, limit)

    def update(self, key: str, state: SessionState, *, is_active: bool = False) -> None:
        """Put what is now known of a session in place of what was known before."""
        name, _ = parse_key(key)
        scope = self.scopes[name].with_session(key, state)
        self.scopes[name] = scope.pointing_to(key) if is_active else scope

    def forget(self, key: str) -> None:
        """Take a session out of memory and index; its number is not given to another."""
        name, _ = parse_key(key)
        self.scopes[name] = self.scopes[name].without(key)
        self._hot.drop(key)

    def drop_scope(self, name: str) -> None:
        """Forget a scope without sessions, and its numbers with it."""
        self.scopes.drop(name)

    async def delete_file(self, key: str, heir: str | None = None) -> None:
        """Delete a transcript, once what its `heir` knows is durable. What the disk will not let go is doomed."""
        try:
            if self._journal is not None:
                await self._journal.forget({key: _ALL})
            await asyncio.to_thread(self._delete_file, key, heir)
        except (OSError, SpoolFull) as trouble:
            self.doomed.add(key)
            self._index_is_behind = True
            log.error("transcript_not_deleted", session=key, reason=str(trouble))  # noqa: TRY400 - says it all
        else:
            self._index_is_behind |= key in self.doomed
            self.doomed.discard(key)

    def _delete_file(self, key: str, heir: str | None) -> None:
        if heir is not None:
            flushing.sync_heir(self.disk, heir)
        self._thread.call(partial(self.disk.delete, key))

    async def flush(self) -> None:
        """Make everything durable, and write the index if it has changed."""
        if not self._is_recovered:
            return
        async with self._flushing:
            journaled, self._journaled = self._journaled, {}
            self._index_is_behind |= self.scopes.is_changed
            listing = self._listing() if self._index_is_behind else None
            flushed = await self._syncing.submit(partial(flushing.flush, self.disk, self._thread.call, listing))
            if listing is not None:
                self.scopes.settle(flushed.encoded, listing.changed, listing.dropped)
            self._index_is_behind &= not flushed.is_written
            self.failures = self.failures + 1 if flushed.trouble else 0
            await self._forget_journaled(journaled, is_durable=flushed.trouble is None)

    @asynccontextmanager
    async def held_still(self) -> AsyncIterator[Mapping[str, int]]:
        """Keep flushes waiting; give the sizes of the transcripts. The journal has all that they may lack by then."""
        async with self._flushing:
            yield await self.on_disk(self.disk.sizes)

    async def _forget_journaled(self, journaled: dict[str, int], *, is_durable: bool) -> None:
        """Drop from the journal what a flush has made durable, or keep it in mind for the next one."""
        if self._journal is None or not journaled:
            return
        try:
            if is_durable:
                await self._journal.forget(journaled)
                return
        except SpoolFull:
            log.debug("journal_not_shortened", sessions=len(journaled))
        self._journaled = {**journaled, **self._journaled}

    def _listing(self) -> flushing.Listing:
        return flushing.Listing(
            members=self.scopes.members(),
            changed=self.scopes.changed(),
            dropped=self.scopes.dropped(),
            doomed=frozenset(self.doomed),
        )

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
            state = fold.advance(state, entry)
        self.update(key, msgspec.structs.replace(state, size=state.size + len(data)), is_active=is_active)
        self._hot.extend(key, sealed, len(data))
        if key in self._loading:
            self._loading[key].since.extend(sealed)
            self._loading[key].since_size += len(data)

    def _seal(self, entries: Sequence[Entry], *, after: int) -> tuple[list[Entry], list[bytes]]:
        now = self._clock()
        pairs = [seal(entry, seq=seq, now=now) for seq, entry in enumerate(entries, after + 1)]
        return [entry for entry, _ in pairs], [line for _, line in pairs]

    def _persist_later(self, key: str, data: bytes, *, upto: int, is_new: bool = False) -> None:
        """Write through to the transcript what the journal has; since it has it, nobody needs to wait."""
        self._journaled[key] = upto
        self._thread.entrust(partial(self.disk.append, key, data, is_new=is_new), partial(self._not_persisted, key))

    def _not_persisted(self, key: str, trouble: Exception) -> None:
        """Forget a session that cannot be written; whoever comes next is told. Any other trouble is the disk's own."""
        if isinstance(trouble, FileNotFoundError) and self.find(key) is not None:
            self._gone(key, "is gone from the disk")
        else:
            log.error("transcript_not_written", session=key, reason=str(trouble))

    async def _persist(self, key: str, data: bytes, *, is_new: bool = False) -> None:
        """Write through to the transcript, and be refused when that cannot be."""
        try:
            await self._thread.submit(partial(self.disk.append, key, data, is_new=is_new))
        except FileNotFoundError as trouble:
            raise self._gone(key, "is gone from the disk") from trouble
        except Newer as trouble:
            raise _too_new(key, trouble) from trouble

    async def _write_checkpoint(self, key: str) -> None:
        """Write down what all adds up to. What was appended is written already: nothing here is worth failing for."""
        try:
            if self.state(key).has_summary:
                await self.load(key, 1)
            await self._append(key, partial(self._checkpoint, key))
        except (Refused, SpoolFull) as refusal:
            log.debug("checkpoint_not_written", session=key, reason=str(refusal))

    def _checkpoint(self, key: str) -> list[Entry]:
        entries, state = self._hot.get(key), self.state(key)
        if not _is_checkpoint_due(state) or (entries is None and state.has_summary):
            return []
        summary = standing_summary(entries or ()) if state.has_summary else None
        return [e.Checkpoint(key=key, state=state, summary=summary)]

    async def _read(self, key: str, messages: int) -> list[Entry]:
        while (loading := self._loading.get(key)) is not None and loading.messages < messages:
            await self._refusing(key, asyncio.shield(loading.reading))
        if loading is None:
            state = self.state(key)
            work = partial(_find, self.disk, key, ForHistory(messages, state), state.size)
            loading = self._loading[key] = _Loading(messages, self._thread.submit(work))
            loading.reading.add_done_callback(partial(self._loaded, key, loading))
        await self._refusing(key, asyncio.shield(loading.reading))
        self.state(key)
        return loading.entries

    async def _refusing(self, key: str, reading: asyncio.Future[_T]) -> _T:
        """Wait for a reading; `Refused` with a sentence when it fails."""
        try:
            return await reading
        except FileNotFoundError as trouble:
            raise self._gone(key, "is gone from the disk") from trouble
        except Unreadable as trouble:
            raise self._gone(key, "could not be read and was set aside") from trouble
        except Newer as trouble:
            raise _too_new(key, trouble) from trouble
        except OSError as trouble:
            raise Refused(
                f"The disk could not be read ({trouble.strerror}). Try again, or start over with /new."
            ) from trouble

    def _loaded(self, key: str, loading: _Loading, reading: asyncio.Future[_Found]) -> None:
        """Keep what was read. The disk thread works in order, so just what was appended `since` is not in it."""
        del self._loading[key]
        state = self.find(key)
        if reading.cancelled() or reading.exception() or state is None:
            return
        found = reading.result().reading
        loading.entries = [*found.entries, *loading.since]
        self._correct(key, state, loading, reading.result().state)
        messages = None if found.is_whole else loading.messages
        self._hot.put(key, loading.entries, found.taken + loading.since_size, messages=messages)

    def _correct(self, key: str, state: SessionState, loading: _Loading, found: SessionState | None) -> None:
        """Believe the file where it says anything else than we thought, but never give out a seq twice."""
        if found is not None:
            for entry in loading.since:
                found = fold.advance(found, entry)
            state = msgspec.structs.replace(found, size=found.size + loading.since_size)
        highest = max((entry.seq for entry in loading.entries), default=0)
        if found is not None or highest > state.seq:
            self.update(key, msgspec.structs.replace(state, seq=max(highest, state.seq)))

    def _gone(self, key: str, what: str) -> Refused:
        """Forget a session whose file is of no use, as recovery would."""
        _, number = parse_key(key)
        self.forget(key)
        log.error("session_gone", session=key, reason=what)
        return Refused(f"The record of session {number} {what}. Your next message starts a new session.")


def _find(disk: Disk, key: str, enough: Sufficiency, expected: int) -> _Found:
    """Read the end of a session; when the file has not the size that we `expected`, add it up anew."""
    reading = disk.read(key, enough)
    size, waiting = disk.snapshot(key)
    if size + len(waiting) == expected:
        return _Found(reading, None)
    name = file_name(key)
    state = recovery.summed_up(disk.read(key, ForState(lambda other: file_name(other) == name)))
    return _Found(reading, msgspec.structs.replace(state, size=size + len(waiting)))


def _is_checkpoint_due(state: SessionState) -> bool:
    return state.seq - state.checkpoint >= _CHECKPOINT_ENTRIES or state.size - state.checkpoint_at >= _CHECKPOINT_BYTES


def _follow(then: Then, refusal: BaseException | None) -> None:
    if refusal is None:
        then()


def _is_enough(enough: Sufficiency, entries: Sequence[Entry]) -> bool:
    for entry in reversed(entries):
        enough.add(entry)
    return enough.is_enough


def _too_new(key: str, trouble: Newer) -> Refused:
    _, number = parse_key(key)
    return Refused(f"Session {number} cannot be used: {trouble}. Update Gatehouse, or start another with /new.")
