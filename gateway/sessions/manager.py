"""`SessionManager`: the API of all sessions for the rest of the gateway."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, aclosing, nullcontext
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType

import structlog
from msgspec.structs import replace

from config import SessionSettings
from gateway.aio import WorkerThread
from gateway.bounded import BoundedDict
from gateway.contract import Address, PeerKind
from gateway.conversation import Message
from gateway.errors import CannotStart, Refused
from gateway.sessions import entries as e
from gateway.sessions import transfer
from gateway.sessions.archiver import ArchivedCopy, Archiver, LeavingOperations
from gateway.sessions.directory import SessionDirectory
from gateway.sessions.entries import Entry
from gateway.sessions.feed import SessionFeed
from gateway.sessions.history import VisibleLine
from gateway.sessions.index import Scope
from gateway.sessions.keys import parse_key, session_key
from gateway.sessions.recovery import RecoveryReport
from gateway.sessions.retention import (
    IsBusy,
    Leaving,
    OnLeaving,
    RemoveFiles,
    Retention,
    SweepReport,
    ignore_leaving,
    never_busy,
    no_files,
    no_operations,
    surplus_apart,
    surplus_sessions,
)
from gateway.sessions.session import APART, NewSession, Session, SessionEnded, SessionMeta, meta_of, new_header
from gateway.sessions.shared_directory import SharedDirectory
from gateway.sessions.state import SessionState, SessionStatus
from gateway.sessions.storage.archive import ArchivedSession
from gateway.sessions.storage.database import DatabaseStorage
from gateway.sessions.storage.files import FileStorage
from gateway.sessions.storage.interface import SessionStorage
from gateway.sessions.storage.journal import Journal
from gateway.sessions.storage.search import SNIPPET_WIDTH, SearchDeadline, SearchResult
from gateway.sessions.storage.verify import VerifyReport
from gateway.sessions.store import SessionStore, Then
from gateway.shards import Shards
from gateway.spool import Operation

log: structlog.stdlib.BoundLogger = structlog.get_logger()


# Scopes that are listed before other tasks may run.
SCOPES_AT_ONCE = 50

# Deleted sessions that are remembered, for turns that are still running in them.
MAX_DELETED = 1000


class SessionManager:
    """The owner of the session files. Call `open`, `recover`, then anything else, and `close` at the end.

    No other code writes these files or assigns a `seq`. Each method looks and changes without an `await` between, so
    the next caller sees the result. Many methods take `also`: operations to commit together with the change.
    """

    def __init__(
        self,
        storage: SessionStorage,
        settings: SessionSettings,
        clock: Callable[[], datetime],
        *,
        on_leaving: OnLeaving = ignore_leaving,
        leaving_operations: LeavingOperations = no_operations,
        remove_files: RemoveFiles = no_files,
        journal: Journal | None = None,
        shards: Shards | None = None,
    ) -> None:
        # May be replaced at any time.
        self.settings = settings
        # By scope, the newest session that the start has lost. The next new session of the scope says so.
        self.lost: dict[str, int] = {}
        self.recovered_at = clock()
        self._clock = clock
        self._deleted = BoundedDict[str, None](MAX_DELETED)
        self.feed = SessionFeed()
        """Tells its followers about entries that were appended."""
        self._store = SessionStore(storage, clock, journal, self.feed)
        # For long reads that must not delay appends.
        self._reader = WorkerThread("sessions-reader")
        self.archive = Archiver(self._store, self._reader, leaving_operations)
        """Lists and restores archived sessions."""
        self.shards = shards
        self.directory = SessionDirectory(self._store, self._reader)
        if shards is not None and isinstance(storage, DatabaseStorage):
            self.directory = SharedDirectory(self._store, self._reader, storage, shards)
        """Finds sessions of all scopes by their ids, and lists them by filters."""
        self._retention = Retention(self._store, self.archive, clock, on_leaving, remove_files, leaving_operations)

    @classmethod
    async def open(
        cls,
        storage: SessionStorage | Path,
        settings: SessionSettings,
        clock: Callable[[], datetime],
        *,
        on_leaving: OnLeaving = ignore_leaving,
        leaving_operations: LeavingOperations = no_operations,
        remove_files: RemoveFiles = no_files,
        journal: Journal | None = None,
        shards: Shards | None = None,
    ) -> SessionManager:
        """Open the sessions in a storage, or in the files of a folder. Raises `CannotStart` if they cannot be used.

        `on_leaving` is called with sessions that stop being used, and `leaving_operations` are committed with the
        change by which they do. `remove_files` deletes the attachments of a deleted session. `journal` makes every
        append durable; without it, entries survive a crash of the process but not a power cut. `shards` are those of
        this node of a cluster.
        """
        if isinstance(storage, Path):
            storage = FileStorage(storage)
        manager = cls(
            storage,
            settings,
            clock,
            on_leaving=on_leaving,
            leaving_operations=leaving_operations,
            remove_files=remove_files,
            journal=journal,
            shards=shards,
        )
        try:
            await manager._store.storage_thread.submit(storage.prepare)
        except CannotStart:
            await manager.close()
            raise
        return manager

    async def close(self) -> None:
        """Flush, and end the threads. Call nothing afterwards."""
        await self._store.close()
        await asyncio.to_thread(self._reader.stop)

    async def recover(self) -> RecoveryReport:
        """Replay the journal and find all sessions. Call this once, before anything else."""
        report = await self._store.recover()
        self.lost, self.recovered_at = dict(map(parse_key, report.lost)), self._clock()
        await self._retention.delete_leftovers()
        log.info("sessions_recovered", **report.counts())
        return report

    def require_here(self, scope: str) -> None:
        """Raise `HeldElsewhere` if another node of a cluster owns a scope."""
        if self.shards is not None:
            self.shards.require_loaded(scope)

    def watched(self, scope: str, on_moved: Callable[[], None]) -> AbstractContextManager[None]:
        """Call `on_moved` if another node takes over a scope while inside. Raises as `require_here`."""
        return nullcontext() if self.shards is None else self.shards.watched(scope, on_moved)

    async def load_shards(self, shards: Sequence[int]) -> int:
        """Read the sessions of shards that this node of a cluster has taken, and return how many they are."""
        count = await self._store.load_shards(shards)
        await self._retention.delete_leftovers()
        return count

    async def unload_shards(self, shards: Collection[int]) -> None:
        """Forget the sessions of shards that this node of a cluster has given back."""
        await self._store.unload_shards(shards)

    @property
    def storage(self) -> SessionStorage:
        """For backups: they read a whole storage by themselves."""
        return self._store.storage

    @property
    def trouble(self) -> str | None:
        """Why sessions cannot be written at the moment, as a sentence for the operator; None: they can."""
        return self._store.storage.trouble

    @property
    def scope_count(self) -> int:
        return len(self._store.index)

    @property
    def session_count(self) -> int:
        return self._store.index.session_count

    async def flush(self) -> None:
        """Fsync all transcripts, and write the index if it has changed.

        A failure is logged and reported by `trouble`. `flush_delay` tells when to try again.
        """
        await self._store.flusher.flush()

    def flush_delay(self, interval: float) -> float:
        """Return the seconds until the next flush: `interval`, or a growing part of it while flushes fail."""
        failures = self._store.flusher.failures
        return interval if failures == 0 else min(interval, 2.0 ** min(failures - 1, 16))

    def flushes_paused(self) -> AbstractAsyncContextManager[Mapping[str, int]]:
        """Hold flushes back for a short time, and yield the size of each transcript by file name.

        Together with the journal inside, the transcripts up to these sizes are a snapshot of all sessions.
        """
        return self._store.flusher.paused()

    def scopes(self) -> Iterator[str]:
        """Return the names of all scopes that exist now."""
        return iter(tuple(self._store.index))

    async def everywhere(self, name: str | None = None) -> AsyncGenerator[Scope, None]:
        """Yield all scopes, or the one of that name. In a cluster, those of all nodes as the database has them."""
        if not isinstance(self.directory, SharedDirectory):
            for number, each in enumerate(self.scopes() if name is None else [name]):
                if number % SCOPES_AT_ONCE == 0:
                    await asyncio.sleep(0)
                yield self._store.index[each]
            return
        scopes = self.directory.storage.scopes(self._clock(), name)
        while found := await self.directory.submit(lambda: [*islice(scopes, SCOPES_AT_ONCE)]):
            for _, scope in found:
                yield scope

    async def stored_keys(self) -> builtins.list[str]:
        """Return the keys of all sessions of a cluster, also the archived ones."""
        assert isinstance(self.directory, SharedDirectory), "only a cluster has other nodes"  # noqa: S101 - for mypy.
        return await self.directory.submit(self.directory.storage.keys)

    async def archived_scopes(self) -> builtins.list[str]:
        """Return the scopes that have archived sessions, in a cluster those of all nodes."""
        if isinstance(self.directory, SharedDirectory):
            return await self.directory.submit(self.directory.storage.archived_scopes)
        return self.archive.scopes()

    def next_number(self, scope: str) -> int:
        """Return the number that the next new session of a scope gets."""
        return self._store.index[scope].highest_number + 1

    def archived_count(self, scope: str) -> int:
        """Return how many sessions of the scope are in the archive."""
        return self._store.index[scope].archived

    def list(self, scope: str) -> builtins.list[SessionMeta]:
        """Return the scope's sessions, newest first."""
        found = self._store.index[scope]
        return [meta_of(key, found.sessions[key]) for key in found.ordered_sessions]

    def last_used(self, scope: str) -> builtins.list[SessionMeta]:
        """Return the scope's sessions, the last one that was made active first."""
        found = self._store.index[scope].sessions
        return [meta_of(key, found[key]) for key in sorted(found, key=lambda key: found[key].epoch, reverse=True)]

    def active(self, scope: str) -> SessionMeta | None:
        """Return the scope's active session. It may be completed, cancelled or in error."""
        found = self._store.index[scope]
        key = found.active_session_key
        return None if key is None else meta_of(key, found.sessions[key])

    def open_session(self, scope: str) -> SessionMeta | None:
        """Return the session for the next message of a scope; None: it has to be a new one."""
        active = self.active(scope)
        return active if active is not None and active.status is SessionStatus.ACTIVE else None

    def require_open(self, key: str) -> SessionMeta:
        """Return a session that takes messages. Raises `Refused` if it has ended or does not exist."""
        state = self._store.index.require(key)
        if state.status is not SessionStatus.ACTIVE:
            raise SessionEnded(state.status)
        return meta_of(key, state)

    def take_notice(self, key: str) -> str | None:
        """Return the sentence that the next reply of a session has to begin with, once."""
        return self._store.cache.notices.pop(key, None)

    def find(self, key: str) -> SessionMeta | None:
        """Return the facts about a session without reading it."""
        state = self._store.index.find(key)
        return None if state is None else meta_of(key, state)

    async def resolve_active(self, scope: str, *, agent: str, origin: Address) -> SessionMeta:
        """Return the session for the next message of a scope. Start a new one if needed."""
        return self.open_session(scope) or await self.start_new(scope, agent=agent, origin=origin)

    async def start_new(
        self,
        scope: str,
        *,
        agent: str,
        origin: Address,
        title: str | None = None,
        notice: str = "",
        new: NewSession = NewSession(),  # noqa: B008 - it is immutable.
        opening: Sequence[Entry] = (),
        is_busy: IsBusy = never_busy,
        also: Sequence[Operation] = (),
        then: Then | None = None,
        copies: Sequence[ArchivedCopy] | None = None,
    ) -> SessionMeta:
        """Start a session and make it the active one, unless it `is_apart`. Archive the surplus, except busy sessions.

        `notice` is a sentence that the first reply begins with: why the session was started. `opening` are entries that
        it starts with. `copies` has the result of `copy_surplus`, if the caller needed to know it. `then` is called
        after the commit, even if the caller was cancelled. If the commit fails, nothing has happened.
        """
        if copies is None:
            copies = await self.copy_surplus(scope, is_busy=is_busy, is_apart=new.is_apart)
        found = self._store.index[scope]
        number, epoch = found.highest_number + 1, APART if new.is_apart else found.epoch + 1
        key = session_key(scope, number)
        header = new_header(scope, number, self._clock(), agent=agent, origin=origin, epoch=epoch, new=new)
        first: builtins.list[Entry] = [header]
        if not new.is_apart:
            first.append(e.Activated(key=key, epoch=epoch, highest_number=number))
        if title and title.strip():
            first.append(e.Title(value=title))
        self._store.cache.notices.pop(key, None)
        if notice:
            first.append(e.System(content=notice))
            # Before the commit, because `then` may start the turn that shows it.
            self._store.cache.notices[key] = notice
        first += opening
        if not new.is_apart:
            also = [*also, *self._retention.operations(found.active_session_key, Leaving.ROTATED)]
        state = await self.archive.start_new(key, first, copies, also, then)
        if not new.is_apart:
            self.lost.pop(scope, None)
            await self._retention.leave(found.active_session_key, Leaving.ROTATED)
        limit = self.settings.backlog_limit
        await self._retention.delete_empty(surplus_sessions(self._store.index[scope], limit, is_busy).empty)
        return meta_of(key, state)

    async def copy_surplus(
        self, scope: str, *, is_busy: IsBusy = never_busy, is_apart: bool = False
    ) -> builtins.list[ArchivedCopy]:
        """Copy the sessions to the archive that a new session of the scope displaces. They move with its start."""
        found, limit = self._store.index[scope], self.settings.backlog_limit
        surplus = (
            surplus_apart(found, is_busy) if is_apart else surplus_sessions(found, limit, is_busy, is_replaced=True)
        )
        return await self._retention.copy(surplus)

    async def resume(self, scope: str, number: int, *, also: Sequence[Operation] = ()) -> SessionMeta:
        """Make session `number` the active one. Raises `Refused` if the scope has no session of that number.

        A completed or cancelled session is opened again. One in error can only be read: the next message starts
        a new one.
        """
        index = self._store.index
        key = session_key(scope, number)
        if number < 1 or key not in index[scope].sessions:
            raise Refused(f"There is no session {number} here. /session list shows your sessions.")
        # Load it before anything changes: a session that cannot be read must not become the active one.
        await self.load(key)
        state = index.require(key)
        entries: builtins.list[Entry] = []
        if state.status in (SessionStatus.COMPLETED, SessionStatus.CANCELLED):
            entries.append(e.Status(value=SessionStatus.ACTIVE, by="resume"))
        found = index[scope]
        if found.active_session_key != key:
            # The new epoch is the highest of the scope, so recovery finds the active session without the index.
            entries.append(e.Activated(key=key, epoch=found.epoch + 1, highest_number=found.highest_number))
            also = [*also, *self._retention.operations(found.active_session_key, Leaving.ROTATED)]
        await self._store.append(key, entries, is_active=True, also=also)
        if found.active_session_key != key:
            await self._retention.leave(found.active_session_key, Leaving.ROTATED)
        return self._meta_or(key, state)

    async def set_title(self, key: str, title: str, *, also: Sequence[Operation] = ()) -> SessionMeta:
        return await self._append_setting(key, [e.Title(value=title)], also)

    async def set_workspace(self, key: str, workspace: str, *, also: Sequence[Operation] = ()) -> SessionMeta:
        return await self._append_setting(key, [e.Workspace(value=workspace)], also)

    async def set_agent(self, key: str, agent: str, *, also: Sequence[Operation] = ()) -> SessionMeta:
        """Let another agent answer, with its own model, from the next turn on."""
        return await self._append_setting(key, [e.Agent(value=agent), e.Model(value="")], also)

    async def set_model(self, key: str, model: str, *, also: Sequence[Operation] = ()) -> SessionMeta:
        """Use another model from the next turn on. An empty name means the agent's own model."""
        return await self._append_setting(key, [e.Model(value=model)], also)

    async def set_status(
        self, key: str, status: SessionStatus, *, by: str = "", why: str = "", also: Sequence[Operation] = ()
    ) -> SessionMeta:
        if status is not SessionStatus.ACTIVE:
            also = [*also, *self._retention.operations(key, Leaving.CLOSED)]
        meta = await self._append_setting(key, [e.Status(value=status, by=by, why=why)], also)
        if status is not SessionStatus.ACTIVE:
            await self._retention.leave(key, Leaving.CLOSED)
        return meta

    async def clear(self, key: str, *, also: Sequence[Operation] = ()) -> SessionMeta:
        """Start the history afresh. The transcript and exports keep everything."""
        return await self._append_setting(key, [e.Clear()], also)

    async def _append_setting(self, key: str, entries: Sequence[Entry], also: Sequence[Operation]) -> SessionMeta:
        before = self._store.index.require(key)
        await self._store.append(key, entries, also=also)
        return self._meta_or(key, before)

    def _meta_or(self, key: str, before: SessionState) -> SessionMeta:
        # The session may have been deleted right after the commit. Then the state before has to do.
        return meta_of(key, self._store.index.find(key) or before)

    async def append(
        self, key: str, entries: Sequence[Entry], *, also: Sequence[Operation] = (), then: Then | None = None
    ) -> builtins.list[Entry]:
        """Append entries to a session, and return them with their `seq` and `ts`. `also` is committed with them.

        If the journal refuses them, this raises and nothing has happened. If the disk refuses them later, they are kept
        and retried. Cancelling the caller does not stop a commit, and `then` is called after it.
        """
        return await self._store.append(key, entries, also=also, then=then)

    async def delete(
        self,
        key: str,
        why: Leaving = Leaving.DELETED,
        *,
        also: Sequence[Operation] = (),
        then: Then | None = None,
    ) -> None:
        """Delete a session for good, in one commit with `also`. Raises `Refused` if it does not exist.

        If the commit fails, nothing has happened. Otherwise no crash can undo it, and `then` is called. After the next
        flush no text of the session is left. A turn that is running in it can no longer write to it. If it was the
        active one, the newest other session of the scope becomes active.
        """

        def committed() -> None:
            self._deleted[key] = None
            if then is not None:
                then()

        await self._retention.delete(key, why, also=also, then=committed)

    def was_deleted(self, key: str) -> bool:
        """Return True if a session was deleted since the start. Only the last thousand are known."""
        return key in self._deleted

    async def copy_displaced(
        self, session: ArchivedSession, *, is_busy: IsBusy = never_busy
    ) -> builtins.list[ArchivedCopy]:
        """Copy the sessions to the archive that a restored `session` displaces. They move with its `restore`."""
        scope, limit = self._store.index[parse_key(session.key)[0]], self.settings.backlog_limit
        return await self._retention.copy(surplus_sessions(scope, limit, is_busy, restored=session.state))

    async def prune(self, scope: str, limit: int | None = None, *, is_busy: IsBusy = never_busy) -> builtins.list[str]:
        """Archive the least recently used sessions beyond `limit` (default: `backlog_limit`), and return their keys.

        Empty ones are deleted. The active session and busy ones (those with a turn) stay.
        """
        limit = self.settings.backlog_limit if limit is None else limit
        return await self._retention.prune(scope, limit, is_busy)

    async def archive_session(self, key: str, *, is_busy: IsBusy = never_busy) -> None:
        """Move a session to the archive on request. Raises `Refused` if it is empty, has a turn, or cannot be read."""
        await self._retention.archive(key, is_busy)

    async def sweep(
        self,
        *,
        is_busy: IsBusy = never_busy,
        expires: bool = True,
        minutes_of_agents: Mapping[str, int] = MappingProxyType({}),
    ) -> SweepReport:
        """Archive sessions older than `ttl_days`, complete idle ones, and retry failed deletions. Skip busy sessions.

        Sessions that were archived longer than `archive_days` ago are deleted. Pass `expires=False` while the clock may
        be wrong: then nothing happens because of its age. One call looks at a
        few thousand scopes at most; the next one goes on from there. `minutes_of_agents` is after how many minutes the
        sessions of some agents are idle, by their names; `session.idle_minutes` is for all others.
        """
        return await self._retention.sweep(self.settings, is_busy, expires=expires, minutes_of_agents=minutes_of_agents)

    @property
    def _window(self) -> int:
        """How many messages before the current turn the model sees."""
        return min(self.settings.max_messages, self.settings.context_messages or self.settings.max_messages)

    async def load(self, key: str) -> Session:
        """Return a session with its last entries: all that its history consists of.

        Raises `Refused` if the session does not exist or cannot be read.
        """
        entries = tuple(await self._store.cache.load(key, self._window))
        return Session(key=key, meta=meta_of(key, self._store.index.require(key)), entries=entries)

    def is_loaded(self, key: str) -> bool:
        """Return whether the history of a session is in the cache, so that `load` reads nothing."""
        return self._store.cache.get(key, self._window) is not None

    async def load_meta(self, key: str) -> SessionMeta:
        """Load a session into the cache, and return the facts about it. Raises `Refused` as `load`."""
        await self._store.cache.load(key, self._window)
        return meta_of(key, self._store.index.require(key))

    async def history(self, key: str, *, turn: str | None = None) -> builtins.list[Message]:
        """Return the messages for the model, including all of `turn`."""
        before, current = await self.split_history(key, turn=turn)
        return [*before, *current]

    async def split_history(
        self, key: str, *, turn: str | None = None
    ) -> tuple[builtins.list[Message], builtins.list[Message]]:
        """Return `history` in two parts: the messages before `turn`, and those of `turn`."""
        cache, max_chars = self._store.cache, self.settings.context_chars
        return await cache.split_history(key, self._window, turn=turn, max_chars=max_chars)

    async def lines(self, key: str, limit: int) -> builtins.list[VisibleLine]:
        """Return the last `limit` lines that a person sees of a session, oldest first."""
        return await self._store.cache.visible_lines(key, limit, self._window)

    async def search(
        self,
        sessions: builtins.list[SessionMeta],
        words: str,
        *,
        archived: Sequence[SessionMeta] = (),
        rare: Sequence[str] = (),
        counted: Sequence[str] = (),
        limit: int = 10,
        width: int = SNIPPET_WIDTH,
        max_bytes: int = 64 * 1024 * 1024,
        max_seconds: float = 3.0,
    ) -> SearchResult:
        """Find messages of these sessions that contain all `words`, ignoring case, in the order of the sessions.

        Sessions that are `archived` come after the others. Each hit has a snippet of up to `width` characters, and says
        which of the `counted` words it contains. Words that are known to be `rare` make the search faster.
        """
        # Committed lines may still wait for the storage thread, which works in order.
        await self._store.storage_thread.submit(lambda: None)
        listed = {session.key for session in sessions}
        searched = [*sessions, *(session for session in archived if session.key not in listed)]
        search = partial(self._store.storage.search, searched, words.split(), rare=rare, counted=counted)
        with SearchDeadline(max_seconds) as deadline:
            found = await self._reader.submit(
                partial(search, limit=limit, width=width, max_bytes=max_bytes, deadline=deadline)
            )
        hits = tuple(hit if hit.key in listed else replace(hit, is_archived=True) for hit in found.hits)
        return replace(found, hits=hits)

    async def frequencies(self, sessions: Sequence[SessionMeta], words: Sequence[str]) -> dict[str, float]:
        """Estimate which part of the messages of these sessions contains each word, archived sessions included.

        Empty: there are no messages, or they cannot be read now.
        """
        await self._store.storage_thread.submit(lambda: None)  # As for a search.
        try:
            size, counts = await self._reader.submit(partial(self._store.storage.sample, sessions, words))
        except OSError as error:
            log.warning("messages_not_sampled", reason=str(error))
            return {}
        return {word: count / size for word, count in zip(words, counts, strict=True)} if size else {}

    def export_lines(self, key: str) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a transcript as they are, newlines included, even damaged and unknown ones.

        Entries that are appended after the start are not included. Of an archived session, this yields blocks that end
        anywhere.
        """
        if self._store.index.find(key) is None and self._store.index[parse_key(key)[0]].archived:
            return self.archive.lines(key)
        return transfer.export_lines(self._store, self._reader, key)

    def entries(self, key: str) -> AsyncGenerator[Entry, None]:
        """Yield all entries of a session from the first one, except damaged ones. Reads them in blocks."""
        return transfer.decoded(self.export_lines(key))

    def entries_since(self, key: str, seq: int) -> AsyncGenerator[Entry, None]:
        """Yield the entries with a higher `seq`, in order and each once, up to now. Reads only what is not cached.

        Entries that are appended after the start may be included. Raises `Refused` if the session does not exist.
        """
        if self._store.index.find(key) is None and self._store.index[parse_key(key)[0]].archived:
            return transfer.entries_after(self.archive.lines(key), seq)
        return transfer.entries_since(self._store, self._reader, key, seq)

    async def origin(self, key: str) -> Address | None:
        """Return the address that the chat had in which a session was started. None if it was imported."""
        async with aclosing(self.entries(key)) as found:
            first = await anext(found, None)
        if not isinstance(first, e.Header) or first.origin is None:
            return None
        origin = first.origin
        return Address(
            channel=origin.channel,
            account=origin.account,
            kind=PeerKind(origin.kind),
            peer=origin.chat_id,
            thread=origin.thread,
        )

    async def import_lines(
        self, scope: str | None, lines: AsyncIterable[bytes], *, activates: bool = False
    ) -> SessionMeta:
        """Add a session from the lines of `export_lines`. It keeps its key, number and id.

        Raises `Refused` if that session exists already, belongs to another scope than `scope`, or is not a session. It
        becomes the active session if its scope has none, and with `activates` if its epoch is the highest there.
        """
        displaced: builtins.list[str] = []

        def displacing(key: str) -> Sequence[Operation]:
            displaced.append(key)
            return self._retention.operations(key, Leaving.ROTATED)

        meta = await transfer.import_lines(
            self._store, self._reader, scope, lines, self.require_here, activates=activates, displacing=displacing
        )
        for key in displaced:
            await self._retention.leave(key, Leaving.ROTATED)
        return meta

    async def verify(self) -> VerifyReport:
        """Flush, then check index and transcripts. Before `recover`, check the files as the last run left them."""
        await self.flush()
        return await self._reader.submit(self._store.storage.verify)
