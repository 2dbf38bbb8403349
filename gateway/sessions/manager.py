"""`SessionManager`: the one owner of the session files, their numbers and their order."""

from __future__ import annotations

import asyncio
import builtins
import threading
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TypeVar
from uuid import uuid4

import structlog

from config import SessionSettings
from gateway.contract import Address
from gateway.dialogue import Message
from gateway.errors import CannotStart, Refused
from gateway.sessions import entries as e
from gateway.sessions import fold, upkeep
from gateway.sessions.counting import last_turn
from gateway.sessions.disk import Disk
from gateway.sessions.encoding import Damaged, decode
from gateway.sessions.entries import Entry
from gateway.sessions.index import Scope
from gateway.sessions.journal import Journal
from gateway.sessions.ledger import Also, Ledger, nothing_else
from gateway.sessions.meta import Session, SessionMeta, Undone, meta_of
from gateway.sessions.names import parse_key, session_key
from gateway.sessions.portable import BLOCK, Arrival, Departure
from gateway.sessions.recovery import RecoveryReport
from gateway.sessions.search import Searched, SearchResult, search
from gateway.sessions.spoken import Spoken
from gateway.sessions.state import SessionStatus
from gateway.sessions.upkeep import IsBusy, Leaving, OnLeaving, SweepReport
from gateway.sessions.verification import VerifyReport, verify
from gateway.spool import Operation

__all__ = ["SessionManager"]

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_SWEPT_PER_CALL = 2000
_SWEPT_AT_ONCE = 50
"""Scopes that are looked at before others get their turn on the event loop."""

_REOPENED = (SessionStatus.COMPLETED, SessionStatus.CANCELLED)

_T = TypeVar("_T")


class SessionManager:
    """Use it in this order: `open`, `recover`, anything else, `close`.

    Nobody else writes these files or allots `seq`. What takes more than one step is decided without a pause between
    looking and changing, so whoever comes next finds it done.
    """

    def __init__(
        self,
        disk: Disk,
        settings: SessionSettings,
        clock: Callable[[], datetime],
        *,
        is_busy: IsBusy = upkeep.never_busy,
        on_leaving: OnLeaving = upkeep.nobody_takes,
        journal: Journal | None = None,
    ) -> None:
        self.settings = settings
        """May be replaced at any time."""
        self._ledger = Ledger(disk, clock, journal)
        self._clock = clock
        self.is_busy = is_busy
        """As `settings`: whoever runs the turns may come later than the sessions."""
        self._on_leaving = on_leaving
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sessions-reader")
        """For what reads much and may take its time."""
        self._to_sweep: builtins.list[str] = []

    @classmethod
    async def open(
        cls,
        directory: Path,
        settings: SessionSettings,
        clock: Callable[[], datetime],
        *,
        is_busy: IsBusy = upkeep.never_busy,
        on_leaving: OnLeaving = upkeep.nobody_takes,
        journal: Journal | None = None,
    ) -> SessionManager:
        """Make the folders. `CannotStart` when they cannot be used.

        `is_busy` tells which sessions have turns in flight, and are not to be pruned; `on_leaving` is the archiver;
        `journal` has every entry before its transcript has it, and may be left out where nothing is written.
        """
        manager = cls(Disk(directory), settings, clock, is_busy=is_busy, on_leaving=on_leaving, journal=journal)
        try:
            await manager._ledger.on_disk(manager._ledger.disk.prepare)
        except OSError as trouble:
            await manager.close()
            raise _unusable(directory, trouble) from trouble
        return manager

    async def close(self) -> None:
        """Flush, and end the threads. Nothing may be called afterwards."""
        await self._ledger.close()
        await asyncio.to_thread(self._reader.shutdown)

    @property
    def trouble(self) -> str | None:
        """What keeps sessions from being written, as a sentence for the operator; None when all is well."""
        return self._ledger.disk.trouble

    @property
    def scope_count(self) -> int:
        return len(self._ledger.scopes)

    @property
    def session_count(self) -> int:
        return self._ledger.scopes.sessions

    async def recover(self) -> RecoveryReport:
        """Put back what only the journal has, and find out which sessions there are. Has to be done first, and once."""
        try:
            report = await self._ledger.recover()
        except OSError as trouble:
            raise _unusable(self._ledger.disk.transcripts, trouble) from trouble
        await self._delete_doomed()
        log.info("sessions_recovered", **report.counts())
        return report

    async def flush(self) -> None:
        """Make everything durable, and write the index if it has changed.

        Failure is logged, told by `trouble`, and mended by a later flush; `next_flush` tells when to try.
        """
        await self._ledger.flush()

    def held_still(self) -> AbstractAsyncContextManager[Mapping[str, int]]:
        """Keep flushes waiting, for a short while; give the size of each transcript by the name of its file.

        What the journal holds inside, on top of the transcripts up to these sizes, is one moment of all sessions.
        """
        return self._ledger.held_still()

    def next_flush(self, interval: float) -> float:
        """Return the seconds to wait before the next flush: `interval`, or less and ever more while flushes fail."""
        failures = self._ledger.failures
        return interval if failures == 0 else min(interval, 2.0 ** min(failures - 1, 16))

    def active(self, scope: str) -> SessionMeta | None:
        """Return the scope's active session, whatever its status; creates nothing."""
        found = self._ledger.scopes[scope]
        key = found.active_session_key
        return None if key is None else meta_of(key, found.sessions[key])

    def list(self, scope: str) -> builtins.list[SessionMeta]:
        """Return the scope's sessions, newest first."""
        found = self._ledger.scopes[scope]
        return [meta_of(key, found.sessions[key]) for key in found.ordered_sessions]

    async def resolve_active(
        self, scope: str, *, agent: str, origin: Address, also: Also = nothing_else
    ) -> SessionMeta:
        """Return the session that a message to `scope` belongs to; a new one where there is none that is open.

        `also` is committed with whatever this writes; when that fails, nothing has happened.
        """
        active = self.active(scope)
        if active is not None and active.status is SessionStatus.ACTIVE:
            await self._ledger.commit(also(active))
            return active
        return await self.start_new(scope, agent=agent, origin=origin, also=also)

    async def start_new(
        self, scope: str, *, agent: str, origin: Address, title: str | None = None, also: Also = nothing_else
    ) -> SessionMeta:
        """Start a session and make it the active one."""
        self._ledger.insist_on_recovery()
        found = self._ledger.scopes[scope]
        key = session_key(scope, found.highest_number + 1)
        begun = self._opening(key, found.epoch + 1, agent, origin)
        if title and title.strip():
            begun.append(e.Title(value=title))
        state = await self._ledger.begin(key, begun, also)
        await self._rotated(scope, found.active_session_key)
        await self.prune(scope)
        return meta_of(key, state)

    async def resume(self, scope: str, number: int, *, also: Also = nothing_else) -> SessionMeta:
        """Make session `number` the active one; `Refused` when the scope has none of that number.

        A completed or cancelled one is opened again. One in error can be read, and the next message starts another.
        """
        key = session_key(scope, number)
        if number < 1 or key not in self._ledger.sessions(scope):
            raise Refused(f"There is no session {number} here. /session list shows what there is.")
        await self.load(key)
        state = self._ledger.state(key)
        steps: builtins.list[Entry] = []
        if state.status in _REOPENED:
            steps.append(e.Status(value=SessionStatus.ACTIVE, by="resume"))
        found = self._ledger.scopes[scope]
        if found.active_session_key != key:
            steps.append(e.Activated(key=key, epoch=found.epoch + 1, highest_number=found.highest_number))
        operations = also(meta_of(key, state))
        await self._ledger.append(key, steps, is_active=True, also=operations)
        if found.active_session_key != key:
            await self._rotated(scope, found.active_session_key)
        return meta_of(key, self._ledger.state(key))

    async def set_title(self, key: str, title: str, *, also: Sequence[Operation] = ()) -> SessionMeta:
        return await self._note(key, e.Title(value=title), also)

    async def set_workspace(self, key: str, workspace: str, *, also: Sequence[Operation] = ()) -> SessionMeta:
        return await self._note(key, e.Workspace(value=workspace), also)

    async def set_agent(self, key: str, agent: str, *, also: Sequence[Operation] = ()) -> SessionMeta:
        """Let another agent answer, with its own model, from the next turn on."""
        await self.append(key, [e.Agent(value=agent), e.Model(value="")], also=also)
        return meta_of(key, self._ledger.state(key))

    async def set_model(self, key: str, model: str, *, also: Sequence[Operation] = ()) -> SessionMeta:
        """Let another model answer from the next turn on; an empty name means the agent's own."""
        return await self._note(key, e.Model(value=model), also)

    async def set_status(
        self, key: str, status: SessionStatus, *, by: str = "", why: str = "", also: Sequence[Operation] = ()
    ) -> SessionMeta:
        return await self._note(key, e.Status(value=status, by=by, why=why), also)

    async def clear(self, key: str, *, also: Sequence[Operation] = ()) -> SessionMeta:
        """Let the history start afresh. Nothing is destroyed: it stays in the transcript, and in what is exported."""
        return await self._note(key, e.Clear(), also)

    async def undo(
        self, key: str, *, also: Callable[[Undone], Sequence[Operation]] = lambda _undone: ()
    ) -> Undone | None:
        """Take back the newest turn that counts; None when there is none, and then `also` is not committed."""
        session = await self.load(key)
        undo = last_turn(session.entries)
        if undo is None:
            return None
        said = (x.content for x in session.entries if isinstance(x, e.User) and x.turn == undo.undone)
        undone = Undone(turn=undo.undone, said="\n\n".join(said))
        await self.append(key, [undo], also=also(undone))
        return undone

    async def _note(self, key: str, entry: Entry, also: Sequence[Operation]) -> SessionMeta:
        await self.append(key, [entry], also=also)
        return meta_of(key, self._ledger.state(key))

    async def delete(self, key: str) -> None:
        """Remove a session for good: file, memory and index. `Refused` when there is none.

        A turn that still runs in it cannot write to it any more. When it was the active one, the newest other of its
        scope becomes active.
        """
        self._ledger.state(key)
        await self._remove(key, Leaving.DELETED)

    async def prune(self, scope: str, limit: int | None = None, *, is_busy: IsBusy | None = None) -> builtins.list[str]:
        """Delete the least recently used sessions beyond `limit`, or `backlog_limit`; return their keys.

        Neither the active session goes nor one with a turn in flight. `start_new` does this by itself.
        """
        wanted = self.settings.backlog_limit if limit is None else limit
        victims = upkeep.surplus(self._ledger.scopes[scope], wanted, is_busy or self.is_busy)
        for key in victims:
            await self._remove(key, Leaving.PRUNED)
        return victims

    async def sweep(self, *, is_busy: IsBusy | None = None, expires: bool = True) -> SweepReport:
        """Remove what is older than `ttl_days`, complete what is idle, and try again to delete what would not go.

        Without `expires` nothing is removed for its age: for when the clock may be wrong.

        One call looks at some thousand scopes at most; the next one goes on from there.
        """
        removed: builtins.list[str] = []
        completed: builtins.list[str] = []
        for at, name in enumerate(self._next_to_sweep()):
            if at % _SWEPT_AT_ONCE == 0:
                await asyncio.sleep(0)
            removed += await self._expire(name, is_busy or self.is_busy) if expires else []
            completed += await self._complete(name, is_busy or self.is_busy)
            if expires and upkeep.is_forgotten(self._ledger.scopes[name], self.settings, self._clock()):
                self._ledger.drop_scope(name)
        await self._delete_doomed()
        return SweepReport(
            expired=tuple(removed),
            completed=tuple(completed),
            undeletable=len(self._ledger.doomed),
            is_done=not self._to_sweep,
        )

    async def _expire(self, name: str, is_busy: IsBusy) -> builtins.list[str]:
        old = upkeep.expired(self._ledger.scopes[name], self.settings, self._clock(), is_busy)
        return [key for key in old if await self._managed(self._remove(key, Leaving.EXPIRED), key)]

    async def _complete(self, name: str, is_busy: IsBusy) -> builtins.list[str]:
        idle = upkeep.idle(self._ledger.scopes[name], self.settings, self._clock(), is_busy)
        step = e.Status(value=SessionStatus.COMPLETED, by=fold.IDLE, why="Nobody wrote for a while.")
        return [key for key in idle if await self._managed(self.append(key, [step]), key)]

    async def _managed(self, work: Awaitable[object], key: str) -> bool:
        """Tell whether something worked that nobody has asked for, and nobody waits for."""
        try:
            await work
        except Refused as refusal:
            log.warning("session_not_swept", session=key, reason=str(refusal))
            return False
        return True

    def _next_to_sweep(self) -> builtins.list[str]:
        if not self._to_sweep:
            self._to_sweep = builtins.list(self._ledger.scopes)
        names = self._to_sweep[-_SWEPT_PER_CALL:]
        del self._to_sweep[-_SWEPT_PER_CALL:]
        return names

    async def _rotated(self, scope: str, before: str | None) -> None:
        """Tell the archiver that another session took the place of `before`."""
        state = self._ledger.sessions(scope).get(before) if before else None
        if before and state:
            await self._on_leaving(meta_of(before, state), Leaving.ROTATED)

    async def _remove(self, key: str, why: Leaving) -> None:
        """Take a session out of index and memory at once, then off the disk, after what others have to know of it."""
        name, _ = parse_key(key)
        await self._on_leaving(meta_of(key, self._ledger.state(key)), why)
        if key not in self._ledger.sessions(name):
            return
        was = self._ledger.scopes[name]
        self._ledger.forget(key)
        heir = await self._pass_on(name, was)
        await self._ledger.delete_file(key, heir)
        log.info("session_removed", session=key, why=why)

    async def _pass_on(self, name: str, was: Scope) -> str | None:
        """Let a session that stays know the highest number, and be the active one if there is none; return its key."""
        left = self._ledger.scopes[name]
        heir = left.active_session_key or next(iter(left.ordered_sessions), None)
        if heir is None:
            return None
        knows = max(state.highest_number for state in left.sessions.values()) >= left.highest_number
        if knows and was.active_session_key in (heir, None):
            return None
        step = e.Activated(key=heir, epoch=left.epoch + 1, highest_number=left.highest_number)
        try:
            await self._ledger.append(heir, [step], is_active=True)
        except Refused as trouble:
            log.warning("number_not_passed_on", session=heir, reason=str(trouble))
        return heir

    async def _delete_doomed(self) -> None:
        for key in [key for key in self._ledger.doomed if key not in self._ledger.sessions(parse_key(key)[0])]:
            await self._ledger.delete_file(key)

    async def load(self, key: str) -> Session:
        """Return a session with its last entries: all that its history can be made of.

        `Refused` when it is not there or cannot be read.
        """
        entries = await self._ledger.load(key, self._window)
        return Session(key=key, meta=meta_of(key, self._ledger.state(key)), entries=entries)

    async def look_up(self, key: str) -> SessionMeta:
        """Return what is known of a session, once its end has been read; `Refused` as `load`."""
        await self._ledger.reach(key, self._window)
        return meta_of(key, self._ledger.state(key))

    @property
    def _window(self) -> int:
        """How many messages before the current turn the model sees."""
        return min(self.settings.max_messages, self.settings.context_messages or self.settings.max_messages)

    async def history(self, key: str, *, turn: str | None = None) -> builtins.list[Message]:
        """Return what the model is to see of a session, the whole of `turn` included."""
        before, current = await self.divided(key, turn=turn)
        return [*before, *current]

    async def divided(
        self, key: str, *, turn: str | None = None
    ) -> tuple[builtins.list[Message], builtins.list[Message]]:
        """Return the two parts of `history`: what was said before the turn `turn`, and that turn."""
        return await self._ledger.divided(key, self._window, turn=turn, max_chars=self.settings.context_chars)

    async def lines(self, key: str, limit: int) -> builtins.list[Spoken]:
        """Return the last `limit` lines that a person sees of a session, oldest first."""
        return await self._ledger.lines(key, limit, self._window)

    async def append(
        self, key: str, entries: Sequence[Entry], *, also: Sequence[Operation] = ()
    ) -> builtins.list[Entry]:
        """Add entries to a session; return them with their `seq` and `ts`. `also` is committed with them.

        Their order is that of the calls. When the journal does not take them, nothing has happened. When the disk
        refuses them afterwards they are kept, and tried again with the next append or flush; `trouble` says so. Once
        this was called, being cancelled does not take them back.
        """
        return await self._ledger.append(key, entries, also=also)

    def scopes(self) -> Iterator[str]:
        """Return the names of all scopes that there are now; `list` tells the sessions of each."""
        return iter(tuple(self._ledger.scopes))

    async def search(
        self,
        scope: str,
        words: str,
        *,
        limit: int = 10,
        max_bytes: int = 64 * 1024 * 1024,
        max_seconds: float = 3.0,
    ) -> SearchResult:
        """Find lines of this scope's sessions that hold all of `words`, whatever their case, newest first."""
        states = sorted(self._ledger.sessions(scope).items(), key=lambda item: item[1].epoch, reverse=True)
        files = [
            Searched(path=self._ledger.disk.path(key), number=state.number, title=state.title) for key, state in states
        ]
        cancelled = threading.Event()
        deadline = monotonic() + max_seconds
        try:
            return await self._on_reader(
                partial(
                    search,
                    files,
                    words.split(),
                    limit=limit,
                    max_bytes=max_bytes,
                    is_over=lambda: cancelled.is_set() or monotonic() > deadline,
                )
            )
        finally:
            cancelled.set()

    async def export_lines(self, key: str) -> AsyncIterator[bytes]:
        """Yield the lines of a transcript as they are, newlines included, damaged and unknown ones too.

        What is appended meanwhile is not among them.
        """
        self._ledger.state(key)
        size, waiting = await self._ledger.on_disk(self._ledger.disk.snapshot, key)
        if size:
            departure = await self._on_reader(Departure, self._ledger.disk.path(key), size)
            try:
                while lines := await self._on_reader(departure.lines):
                    for line in lines:
                        yield line
            finally:
                departure.close()
        for line in waiting.splitlines(keepends=True):
            yield line

    async def entries(self, key: str) -> AsyncIterator[Entry]:
        """Yield all entries of a session from its first, but for damaged ones, without holding them all in memory."""
        async for line in self.export_lines(key):
            try:
                yield decode(line)
            except Damaged:
                continue

    async def import_lines(self, scope: str | None, lines: AsyncIterable[bytes]) -> SessionMeta:
        """Take in what `export_lines` gave, byte for byte; it keeps its key, its number and its id.

        `Refused` when there is such a session already, when it is of another scope than `scope`, or no session at
        all. It becomes the active session only where its scope has none.
        """
        self._ledger.insist_on_recovery()
        arrival = await self._on_reader(Arrival, self._ledger.disk.transcripts)
        try:
            async for data in _in_blocks(lines):
                await self._on_reader(arrival.write, data)
            header, state = await self._on_reader(arrival.finish)
            self._insist_on_place(scope, header)
            was = self._ledger.scopes[header.scope]
            self._ledger.update(header.key, state, is_active=was.active_session_key is None)
            await self._place(arrival, header.key, was)
        finally:
            await self._on_reader(arrival.close)
        return meta_of(header.key, self._ledger.state(header.key))

    async def _place(self, arrival: Arrival, key: str, was: Scope) -> None:
        try:
            await self._ledger.on_disk(self._ledger.disk.place, key, arrival)
        except OSError as trouble:
            self._ledger.forget(key)
            raise Refused(f"The session could not be stored: {trouble.strerror}.") from trouble
        active = was.active_session_key
        if active is not None and self._ledger.state(key).epoch > was.epoch:
            # By its epoch the arrival would pass for the active one, should the index ever be lost.
            found = self._ledger.scopes[parse_key(key)[0]]
            step = e.Activated(key=active, epoch=found.epoch + 1, highest_number=found.highest_number)
            await self.append(active, [step])

    def _insist_on_place(self, scope: str | None, header: e.Header) -> None:
        if scope is not None and header.scope != scope:
            raise Refused(f"This is a session of another chat ({header.scope}), so it cannot be imported here.")
        if header.key in self._ledger.sessions(header.scope) or header.key in self._ledger.doomed:
            raise Refused(f"There is a session {header.number} there already. Delete it first, to import this one.")

    async def verify(self) -> VerifyReport:
        """Look over index and transcripts, after a flush; before `recover`, over what an earlier run has left."""
        await self.flush()
        return await self._on_reader(verify, self._ledger.disk.index_path, self._ledger.disk.transcripts)

    def _opening(self, key: str, epoch: int, agent: str, origin: Address) -> builtins.list[Entry]:
        """Return the first entries of a session that becomes the active one of its scope."""
        scope, number = parse_key(key)
        header = e.Header(
            version=e.FORMAT,
            id=str(uuid4()),
            key=key,
            scope=scope,
            number=number,
            created=self._clock(),
            agent=agent,
            origin=_origin(origin),
            epoch=epoch,
            highest_number=number,
        )
        return [header, e.Activated(key=key, epoch=epoch, highest_number=number)]

    async def _on_reader(self, work: Callable[..., _T], *arguments: object) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._reader, partial(work, *arguments))


def _unusable(folder: Path, trouble: OSError) -> CannotStart:
    return CannotStart(
        f"The folder {folder} cannot be used for sessions ({trouble.strerror}). "
        "Give it to the user that runs Gatehouse, or set gateway.data_dir to another place."
    )


async def _in_blocks(lines: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Put many short lines together to fewer long pieces."""
    block: builtins.list[bytes] = []
    size = 0
    async for line in lines:
        block.append(line)
        size += len(line)
        if size >= BLOCK:
            yield b"".join(block)
            block, size = [], 0
    yield b"".join(block)


def _origin(address: Address) -> e.Origin:
    return e.Origin(
        channel=address.channel,
        account=address.account,
        chat_id=address.peer,
        kind=address.kind.value,
        thread=address.thread,
    )
