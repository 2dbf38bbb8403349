"""`SessionManager`: the one owner of the session files, their numbers and their order."""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from functools import partial
from pathlib import Path
from uuid import uuid4

import structlog

from config import SessionSettings
from gateway.contract import Address
from gateway.conversation import Message
from gateway.data_dir import unusable
from gateway.errors import Refused
from gateway.sessions import entries as e
from gateway.sessions import retention
from gateway.sessions.entries import Entry
from gateway.sessions.history import VisibleLine, undo_last_turn
from gateway.sessions.journal import Journal
from gateway.sessions.keys import parse_key, session_key
from gateway.sessions.recovery import RecoveryReport
from gateway.sessions.retention import IsBusy, Leaving, OnLeaving, Removal, Sweeping, SweepReport
from gateway.sessions.session import Session, SessionMeta, UndoneTurn, meta_of
from gateway.sessions.state import SessionState, SessionStatus
from gateway.sessions.storage.codec import DamagedEntry, decode
from gateway.sessions.storage.disk import Disk
from gateway.sessions.storage.search import SearchDeadline, SearchedFile, SearchResult, search
from gateway.sessions.storage.threads import Reader
from gateway.sessions.storage.verify import VerifyReport, verify
from gateway.sessions.store import Also, SessionStore, Then, nothing_else, nothing_more
from gateway.sessions.transfer import Transfer
from gateway.spool import Operation


def first_entries(key: str, *, epoch: int, agent: str, origin: Address, created: datetime, title: str) -> list[Entry]:
    """Return the first entries of a session that becomes the active one of its scope."""
    scope, number = parse_key(key)
    header = e.Header(
        version=e.FORMAT,
        id=str(uuid4()),
        key=key,
        scope=scope,
        number=number,
        created=created,
        agent=agent,
        origin=_origin(origin),
        epoch=epoch,
        highest_number=number,
    )
    named = [e.Title(value=title)] if title.strip() else []
    return [header, e.Activated(key=key, epoch=epoch, highest_number=number), *named]


def _origin(address: Address) -> e.Origin:
    return e.Origin(
        channel=address.channel,
        account=address.account,
        chat_id=address.peer,
        kind=address.kind.value,
        thread=address.thread,
    )


log: structlog.stdlib.BoundLogger = structlog.get_logger()

_REOPENED = (SessionStatus.COMPLETED, SessionStatus.CANCELLED)


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
        is_busy: IsBusy = retention.never_busy,
        on_leaving: OnLeaving = retention.no_archiver,
        journal: Journal | None = None,
    ) -> None:
        self.settings = settings
        """May be replaced at any time."""
        self._ledger = SessionStore(disk, clock, journal)
        self._clock = clock
        self.is_busy = is_busy
        """As `settings`: whoever runs the turns may come later than the sessions."""
        self._reader = Reader()
        self._removal = Removal(self._ledger, on_leaving)
        self._sweeping = Sweeping(self._ledger, self._removal, clock)
        self._transfer = Transfer(self._ledger, self._reader)

    @classmethod
    async def open(
        cls,
        directory: Path,
        settings: SessionSettings,
        clock: Callable[[], datetime],
        *,
        is_busy: IsBusy = retention.never_busy,
        on_leaving: OnLeaving = retention.no_archiver,
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
            raise unusable(directory, trouble.strerror) from trouble
        return manager

    async def close(self) -> None:
        """Flush, and end the threads. Nothing may be called afterwards."""
        await self._ledger.close()
        await self._reader.close()

    @property
    def trouble(self) -> str | None:
        """What keeps sessions from being written, as a sentence for the operator; None when all is well."""
        return self._ledger.disk.trouble

    @property
    def scope_count(self) -> int:
        return len(self._ledger.books.scopes)

    @property
    def session_count(self) -> int:
        return self._ledger.books.scopes.sessions

    async def recover(self) -> RecoveryReport:
        """Put back what only the journal has, and find out which sessions there are. Has to be done first, and once."""
        try:
            report = await self._ledger.recover()
        except OSError as trouble:
            raise unusable(self._ledger.disk.transcripts, trouble.strerror) from trouble
        await self._removal.delete_doomed()
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
        return self._ledger.durability.held_still()

    def next_flush(self, interval: float) -> float:
        """Return the seconds to wait before the next flush: `interval`, or less and ever more while flushes fail."""
        failures = self._ledger.durability.failures
        return interval if failures == 0 else min(interval, 2.0 ** min(failures - 1, 16))

    def active(self, scope: str) -> SessionMeta | None:
        """Return the scope's active session, whatever its status; creates nothing."""
        found = self._ledger.books.scopes[scope]
        key = found.active_session_key
        return None if key is None else meta_of(key, found.sessions[key])

    def open_one(self, scope: str) -> SessionMeta | None:
        """Return the session that the next message of a scope goes to; None where that has to be a new one."""
        active = self.active(scope)
        return active if active is not None and active.status is SessionStatus.ACTIVE else None

    def next_number(self, scope: str) -> int:
        """Return the number that the next new session of a scope gets."""
        return self._ledger.books.scopes[scope].highest_number + 1

    def list(self, scope: str) -> builtins.list[SessionMeta]:
        """Return the scope's sessions, newest first."""
        found = self._ledger.books.scopes[scope]
        return [meta_of(key, found.sessions[key]) for key in found.ordered_sessions]

    async def resolve_active(
        self, scope: str, *, agent: str, origin: Address, also: Also = nothing_else, then: Then = nothing_more
    ) -> SessionMeta:
        """Return the session that a message to `scope` belongs to; a new one where there is none that is open.

        `also` is committed with whatever this writes, and `then` follows that, also when whoever waits is cancelled;
        when it fails, nothing has happened.
        """
        active = self.open_one(scope)
        if active is not None:
            await self._ledger.commit(also(active), then)
            return active
        return await self.start_new(scope, agent=agent, origin=origin, also=also, then=then)

    async def start_new(
        self,
        scope: str,
        *,
        agent: str,
        origin: Address,
        title: str | None = None,
        also: Also = nothing_else,
        then: Then = nothing_more,
    ) -> SessionMeta:
        """Start a session and make it the active one."""
        self._ledger.insist_on_recovery()
        found = self._ledger.books.scopes[scope]
        key = session_key(scope, found.highest_number + 1)
        begun = first_entries(
            key, epoch=found.epoch + 1, agent=agent, origin=origin, created=self._clock(), title=title or ""
        )
        state = await self._ledger.begin(key, begun, also, then)
        await self._removal.rotated(scope, found.active_session_key)
        await self.prune(scope)
        return meta_of(key, state)

    async def resume(self, scope: str, number: int, *, also: Also = nothing_else) -> SessionMeta:
        """Make session `number` the active one; `Refused` when the scope has none of that number.

        A completed or cancelled one is opened again. One in error can be read, and the next message starts another.
        """
        key = session_key(scope, number)
        if number < 1 or key not in self._ledger.books.sessions(scope):
            raise Refused(f"There is no session {number} here. /session list shows what there is.")
        await self.load(key)
        state = self._ledger.books.state(key)
        steps: builtins.list[Entry] = []
        if state.status in _REOPENED:
            steps.append(e.Status(value=SessionStatus.ACTIVE, by="resume"))
        found = self._ledger.books.scopes[scope]
        if found.active_session_key != key:
            steps.append(e.Activated(key=key, epoch=found.epoch + 1, highest_number=found.highest_number))
        operations = also(meta_of(key, state))
        await self._ledger.append(key, steps, is_active=True, also=operations)
        if found.active_session_key != key:
            await self._removal.rotated(scope, found.active_session_key)
        return self._now_known(key, state)

    async def set_title(self, key: str, title: str, *, also: Sequence[Operation] = ()) -> SessionMeta:
        return await self._note(key, [e.Title(value=title)], also)

    async def set_workspace(self, key: str, workspace: str, *, also: Sequence[Operation] = ()) -> SessionMeta:
        return await self._note(key, [e.Workspace(value=workspace)], also)

    async def set_agent(self, key: str, agent: str, *, also: Sequence[Operation] = ()) -> SessionMeta:
        """Let another agent answer, with its own model, from the next turn on."""
        return await self._note(key, [e.Agent(value=agent), e.Model(value="")], also)

    async def set_model(self, key: str, model: str, *, also: Sequence[Operation] = ()) -> SessionMeta:
        """Let another model answer from the next turn on; an empty name means the agent's own."""
        return await self._note(key, [e.Model(value=model)], also)

    async def set_status(
        self, key: str, status: SessionStatus, *, by: str = "", why: str = "", also: Sequence[Operation] = ()
    ) -> SessionMeta:
        return await self._note(key, [e.Status(value=status, by=by, why=why)], also)

    async def clear(self, key: str, *, also: Sequence[Operation] = ()) -> SessionMeta:
        """Let the history start afresh. Nothing is destroyed: it stays in the transcript, and in what is exported."""
        return await self._note(key, [e.Clear()], also)

    async def undo(
        self, key: str, *, also: Callable[[UndoneTurn], Sequence[Operation]] = lambda _undone: ()
    ) -> UndoneTurn | None:
        """Take back the newest turn that counts; None when there is none, and then `also` is not committed."""
        session = await self.load(key)
        undo = undo_last_turn(session.entries)
        if undo is None:
            return None
        said = (x.content for x in session.entries if isinstance(x, e.User) and x.turn == undo.undone)
        undone = UndoneTurn(turn=undo.undone, said="\n\n".join(said))
        await self.append(key, [undo], also=also(undone))
        return undone

    async def _note(self, key: str, entries: Sequence[Entry], also: Sequence[Operation]) -> SessionMeta:
        before = self._ledger.books.state(key)
        await self.append(key, entries, also=also)
        return self._now_known(key, before)

    def _now_known(self, key: str, before: SessionState) -> SessionMeta:
        """Return what is known of a session to which something was added: it may have been deleted behind that."""
        return meta_of(key, self._ledger.books.find(key) or before)

    async def delete(self, key: str) -> None:
        """Remove a session for good: file, memory and index. `Refused` when there is none.

        A turn that still runs in it cannot write to it any more. When it was the active one, the newest other of its
        scope becomes active.
        """
        self._ledger.books.state(key)
        await self._removal.remove(key, Leaving.DELETED)

    async def prune(self, scope: str, limit: int | None = None, *, is_busy: IsBusy | None = None) -> builtins.list[str]:
        """Delete the least recently used sessions beyond `limit`, or `backlog_limit`; return their keys.

        Neither the active session goes nor one with a turn in flight. `start_new` does this by itself.
        """
        wanted = self.settings.backlog_limit if limit is None else limit
        return await self._removal.prune(scope, wanted, is_busy or self.is_busy)

    async def sweep(self, *, is_busy: IsBusy | None = None, expires: bool = True) -> SweepReport:
        """Remove what is older than `ttl_days`, complete what is idle, and try again to delete what would not go.

        Without `expires` nothing is removed for its age: for when the clock may be wrong.

        One call looks at some thousand scopes at most; the next one goes on from there.
        """
        return await self._sweeping.sweep(self.settings, is_busy or self.is_busy, expires=expires)

    async def load(self, key: str) -> Session:
        """Return a session with its last entries: all that its history can be made of.

        `Refused` when it is not there or cannot be read.
        """
        entries = await self._ledger.ends.load(key, self._window)
        return Session(key=key, meta=meta_of(key, self._ledger.books.state(key)), entries=entries)

    def find(self, key: str) -> SessionMeta | None:
        """Return what is known of a session without reading it."""
        state = self._ledger.books.find(key)
        return None if state is None else meta_of(key, state)

    async def look_up(self, key: str) -> SessionMeta:
        """Return what is known of a session, once its end has been read; `Refused` as `load`."""
        await self._ledger.ends.reach(key, self._window)
        return meta_of(key, self._ledger.books.state(key))

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
        return await self._ledger.ends.divided(key, self._window, turn=turn, max_chars=self.settings.context_chars)

    async def lines(self, key: str, limit: int) -> builtins.list[VisibleLine]:
        """Return the last `limit` lines that a person sees of a session, oldest first."""
        return await self._ledger.ends.lines(key, limit, self._window)

    async def append(
        self,
        key: str,
        entries: Sequence[Entry],
        *,
        also: Sequence[Operation] = (),
        then: Then = nothing_more,
    ) -> builtins.list[Entry]:
        """Add entries to a session; return them with their `seq` and `ts`. `also` is committed with them.

        Their order is that of the calls. When the journal does not take them, nothing has happened. When the disk
        refuses them afterwards they are kept, and tried again with the next append or flush; `trouble` says so. Once
        this was called, being cancelled does not take them back, and `then` follows all the same.
        """
        return await self._ledger.append(key, entries, also=also, then=then)

    def scopes(self) -> Iterator[str]:
        """Return the names of all scopes that there are now; `list` tells the sessions of each."""
        return iter(tuple(self._ledger.books.scopes))

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
        states = sorted(self._ledger.books.sessions(scope).items(), key=lambda item: item[1].epoch, reverse=True)
        path = self._ledger.disk.path
        files = [SearchedFile(path=path(key), number=state.number, title=state.title) for key, state in states]
        if not files:
            return SearchResult(hits=(), stopped_early=False)
        with SearchDeadline(max_seconds) as patience:
            work = partial(search, files, words.split(), limit=limit, max_bytes=max_bytes, is_over=patience.is_over)
            return await self._reader.do(work)

    def export_lines(self, key: str) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a transcript as they are, newlines included, damaged and unknown ones too.

        What is appended meanwhile is not among them.
        """
        return self._transfer.lines_out(key)

    async def entries(self, key: str) -> AsyncIterator[Entry]:
        """Yield all entries of a session from its first, but for damaged ones, without holding them all in memory."""
        async for line in self.export_lines(key):
            try:
                yield decode(line)
            except DamagedEntry:
                continue

    async def import_lines(self, scope: str | None, lines: AsyncIterable[bytes]) -> SessionMeta:
        """Take in what `export_lines` gave, byte for byte; it keeps its key, its number and its id.

        `Refused` when there is such a session already, when it is of another scope than `scope`, or no session at
        all. It becomes the active session only where its scope has none.
        """
        return await self._transfer.lines_in(scope, lines)

    async def verify(self) -> VerifyReport:
        """Look over index and transcripts, after a flush; before `recover`, over what an earlier run has left."""
        await self.flush()
        return await self._reader.do(verify, self._ledger.disk.index_path, self._ledger.disk.transcripts)
