"""The rehearsal of an upgrade: this version on a copy of the present data, step by step.

1. The configuration is read, and every agent and channel of it opened, without a connection.
2. The data is found, and its format compared with what this version knows.
3. There has to be room for the copy, which is made then. A gateway that is running goes on.
4. The copy is migrated, and every session and every memory file in it is read.
5. A gateway starts with the copy. It has no channels, no tools, and only the offline responder as a model.
6. It answers a message in the session that was used last.
7. The copy is deleted.

A step that fails ends the rehearsal. The present data is only read.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager, suppress
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from heapq import nlargest
from pathlib import Path
from time import monotonic
from typing import Protocol
from uuid import uuid4

from msgspec import Struct

from config import ConfigError, Loaded, LogLevel, Settings, StorageEngine, StorageSettings
from config.types import API_CHANNEL
from gateway import __version__
from gateway.build import open_daemon
from gateway.contract import Address, Inbound, PeerKind, Sender
from gateway.daemon import Daemon
from gateway.data_dir import delete_rehearsals
from gateway.database import migrate
from gateway.database.postgres import PostgresConnection, connection_options, summary
from gateway.database.sqlite import SqliteReader
from gateway.doctor.configuration import check_config
from gateway.errors import CannotStart, GatehouseError, Refused
from gateway.memory.store import MemoryStore
from gateway.observability.recent_log import RecentLog
from gateway.routing import DEFAULT_AGENT, Routed
from gateway.sessions import Entry, SessionStatus, TurnOutcome
from gateway.sessions.entries import TurnEnd
from gateway.sessions.keys import parse_key
from gateway.sessions.state import SessionState
from gateway.spool import schema
from gateway.spool.database import open_database
from gateway.storage_copy.contents import StorageReader
from gateway.storage_copy.database import DatabaseReader
from gateway.storage_copy.files import FileReader
from gateway.text.plain import count, in_bytes
from gateway.upgrade.data_copy import (
    MEMORY,
    SPOOL,
    PresentData,
    copied_data,
    find_data,
    in_whole,
    require_room,
    spool_version,
)
from gateway.upgrade.isolation import isolated

STEPS = ("configuration", "data", "space", "copy", "migration", "sessions", "start", "message", "deletion")
START_TIMEOUT = 600.0
MESSAGE_TIMEOUT = 120.0
"""Seconds until the answer. Work that was recovered in the same session comes first."""
_CANDIDATES = 20
"""Sessions, the last used first, of which the first one without other work gets the message."""
_SHOWN = 3
"""How many names of a list are shown."""
_QUESTION = "How many messages are there in this conversation?"
"""The offline responder answers with what it sees of the history."""


class StepState(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


class Step(Struct, kw_only=True):
    """A step and its result. `detail` is for people."""

    name: str
    state: StepState = StepState.OK
    detail: str = ""
    seconds: float = 0.0

    def warn(self, detail: str) -> None:
        self.state = StepState.WARNING
        self.detail = f"{self.detail} {detail}".lstrip()


class Report(Struct, kw_only=True):
    """What a rehearsal has found. `version` is the one that was checked: that of this program."""

    version: str = __version__
    data: str = ""
    found: str = ""
    """The format of the data before the upgrade."""
    steps: list[Step] = []

    @property
    def is_ok(self) -> bool:
        """Whether every step was taken, and none has failed."""
        return all(step.state in {StepState.OK, StepState.WARNING} for step in self.steps)


class LoadSettings(Protocol):
    def __call__(self, *, resolves: bool) -> Loaded: ...


class _Stopped(Exception):
    """A step has failed, so the others are skipped."""


class Rehearsal:
    """Rehearses an upgrade to this version. `recent` gets the log of this process."""

    def __init__(
        self,
        load: LoadSettings,
        load_storage: Callable[[], StorageSettings],
        *,
        recent: RecentLog,
        scratch: Path | None = None,
        on_step: Callable[[Step], None] = lambda _: None,
    ) -> None:
        """`load_storage` loads the table [storage] alone, with its secrets. The copy is made in `scratch`."""
        self.report = Report()
        self._load = load
        self._load_storage = load_storage
        self._recent = recent
        self._scratch = scratch
        self._on_step = on_step

    async def run(self) -> Report:
        with suppress(_Stopped):
            with self._step("configuration") as step:
                settings = await asyncio.to_thread(self._check_config, step)
            parent = self._scratch or settings.gateway.data_dir
            with self._step("data") as step:
                data = await asyncio.to_thread(find_data, settings)
                self.report.data, self.report.found = data.place, data.format
                step.detail = _describe(data)
            with self._step("space") as step:
                await asyncio.to_thread(_make_room, data, parent, step)
            await self._rehearse(settings, data, parent)
        done = {step.name for step in self.report.steps}
        for name in STEPS:
            if name not in done:
                self._add(Step(name=name, state=StepState.SKIPPED, detail="An earlier step has failed."))
        return self.report

    async def _rehearse(self, settings: Settings, data: PresentData, parent: Path) -> None:
        stack = AsyncExitStack()
        try:
            with self._step("copy") as step:
                directory, storage = await stack.enter_async_context(copied_data(settings, data, parent))
                step.detail = f"Copied the data{' of the running gateway' if data.is_running else ''}."
            with self._step("migration") as step:
                await in_whole(partial(_migrate, directory, storage, step))
            with self._step("sessions") as step:
                contents = await in_whole(partial(_read, directory, storage))
                contents.describe(step)
            with self._step("start") as step:
                daemon = await stack.enter_async_context(_started(isolated(settings, storage, directory)))
                self._describe_start(daemon, contents, step)
            with self._step("message") as step:
                step.detail = await _ask(daemon, contents.newest)
        finally:
            with self._step("deletion") as step:
                await stack.aclose()
                step.detail = "Deleted the copy."

    def _check_config(self, step: Step) -> Settings:
        report = check_config(partial(self._load, resolves=True), is_running=True)
        if report.settings is None:
            # The secrets of a service are often in its own environment only.
            loaded = self._load(resolves=False)
            settings, warnings = loaded.settings, loaded.warnings
            keys = ", ".join(problem.key for problem in report.problems[:_SHOWN])
            step.warn(f"Read {loaded.source}. These secrets are not known here, so no channel was opened: {keys}.")
        elif report.problems:
            raise ConfigError(report.problems)
        else:
            settings, warnings = report.settings, report.warnings
            step.detail = f"Read {report.source}."
        for warning in warnings:
            step.warn(f"{warning[:1].upper()}{warning[1:]}.")
        if settings.storage.engine is StorageEngine.FILES:
            return settings
        if missing := migrate.missing_extra(settings.storage):
            raise Refused(missing)
        return settings.model_copy(update={"storage": self._load_storage()})

    def _describe_start(self, daemon: Daemon, contents: "_Contents", step: Step) -> None:
        found = daemon.sessions.session_count
        if found < contents.sessions:
            raise Refused(f"{count(contents.sessions - found, 'session')} of {contents.sessions:,} are missing.")
        step.detail = f"A gateway started with {found:,} sessions."
        errors = [line.event for line in self._recent.lines(level=LogLevel.ERROR)]
        if errors:
            step.warn(f"Its log has {count(len(errors), 'error')}: {_listed(sorted(set(errors)))}.")

    @contextmanager
    def _step(self, name: str) -> Iterator[Step]:
        """Take a step. Raises `_Stopped` if it fails."""
        step, began = Step(name=name), monotonic()
        failure: Exception | None = None
        try:
            yield step
        except Exception as error:  # noqa: BLE001 - a bug of this version is what a rehearsal is there to find.
            step.state, step.detail, failure = StepState.FAILED, _reason(error), error
        step.seconds = round(monotonic() - began, 3)
        self._add(step)
        if failure is not None:
            raise _Stopped from failure

    def _add(self, step: Step) -> None:
        self.report.steps = [*self.report.steps, step]
        self._on_step(step)


def _reason(failure: Exception) -> str:
    """Return the reason of a failure as sentences, without the values that a traceback would show."""
    error: BaseException = failure
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, GatehouseError | ConfigError):
        return str(error)
    if isinstance(error, TimeoutError):
        return "It takes too long."
    if isinstance(error, OSError):
        return f"{error.filename or 'The system'}: {error.strerror or error}."
    if isinstance(error, sqlite3.Error) or hasattr(error, "sqlstate"):
        return f"The database: {summary(error).rstrip('.')}."
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f" at {Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace else ""
    return f"Internal error: {type(error).__name__}{where}. Please report this bug."


def _describe(data: PresentData) -> str:
    state = "running" if data.is_running else "not running"
    newest = {True: " It is the newest format.", False: " It has to be migrated.", None: ""}[data.is_current]
    return f"{data.place} has {data.format}.{newest} The gateway is {state}."


def _make_room(data: PresentData, parent: Path, step: Step) -> None:
    """Delete the copies of killed rehearsals, and require room for the next one."""
    try:
        if leftovers := delete_rehearsals(parent):
            step.detail = f"Deleted the copy of {count(len(leftovers), 'interrupted rehearsal')}. "
    except (OSError, CannotStart) as error:
        step.warn(f"The copy of an interrupted rehearsal can't be deleted: {str(error).rstrip('.')}. ")
    in_database = f", and up to {in_bytes(data.database_bytes)} in the database" if data.database_bytes else ""
    step.detail += f"{require_room(data.bytes_needed, parent)}{in_database}."


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


def _migrate(directory: Path, storage: StorageSettings, step: Step) -> None:
    """Migrate the copy as a start does."""
    if storage.engine is not StorageEngine.FILES:
        step.detail = _migrated("schema", migrate.upgrade(storage), migrate.HEAD)
        return
    before = spool_version(directory / SPOOL, is_copy=True)
    connection, damaged = open_database(directory / SPOOL)
    connection.close()
    if damaged is not None:
        raise Refused(
            "The spool is damaged. A start would set it aside, and continue without the messages that wait in it."
        )
    if not before:
        step.warn("There is no spool, so a start makes a new one.")
    else:
        step.detail = _migrated("spool format", str(before), str(len(schema.MIGRATIONS)))


def _migrated(what: str, before: str | None, after: str) -> str:
    return f"Nothing to migrate ({what} {after})." if before == after else f"Migrated {what} {before} to {after}."


class _Contents(Struct, kw_only=True):
    """What is in the copy, as this version reads it."""

    sessions: int = 0
    archived: int = 0
    entries: int = 0
    left_out: int = 0
    unreadable: tuple[str, ...] = ()
    statements: int = 0
    problems: tuple[str, ...] = ()
    newest: tuple[tuple[str, SessionState], ...] = ()
    """The keys and states of sessions that take a message, the last used first."""

    def describe(self, step: Step) -> None:
        archived = f" and {self.archived:,} archived" if self.archived else ""
        step.detail = f"Read {self.sessions:,} sessions{archived} with {self.entries:,} entries"
        step.detail += f", and {count(self.statements, 'statement')} of the memory." if self.statements else "."
        if self.left_out:
            step.warn(f"{count(self.left_out, 'line')} of transcripts can't be read, or are there twice.")
        if self.unreadable:
            step.warn(f"{count(len(self.unreadable), 'file')} can't be read: {_listed(self.unreadable)}.")
        for problem in self.problems[:_SHOWN]:
            step.warn(problem)


def _read(directory: Path, storage: StorageSettings) -> _Contents:
    """Read every session and every memory file of the copy."""
    match storage.engine:
        case StorageEngine.FILES:
            with closing(FileReader(directory)) as files:
                contents = _read_sessions(files)
        case StorageEngine.SQLITE:
            with closing(SqliteReader(storage.path)) as rows:
                contents = _read_sessions(DatabaseReader(rows, ""))
        case _:
            options = connection_options(storage)
            options["statement_timeout"] = 0.0
            with closing(PostgresConnection(storage.url, **options)) as rows_of_server:
                contents = _read_sessions(DatabaseReader(rows_of_server, ""))
    memory = directory / MEMORY
    if memory.is_dir():
        # Notes of the first versions are a file with the name of the folder that they move to.
        names = {each.name.removesuffix(".jsonl") for each in memory.iterdir() if not each.name.startswith(".")}
        for name in sorted(names):
            found = MemoryStore(memory / name).read()
            contents.statements += len(found.statements)
            contents.problems += found.problems
    return contents


def _read_sessions(reader: StorageReader) -> _Contents:
    contents = _Contents()
    candidates: list[tuple[datetime, str, SessionState]] = []
    for session in reader.sessions():
        contents.entries += sum(1 for _ in session.lines)
        if session.archived_at is not None:
            contents.archived += 1
            continue
        contents.sessions += 1
        state = session.state
        # Those with a repository need it, and are answered by other programs.
        if state.status is SessionStatus.ACTIVE and not state.workspace and not state.repo:
            candidates.append((state.last_accessed, session.key, state))
            if len(candidates) > 100 * _CANDIDATES:
                candidates = nlargest(_CANDIDATES, candidates, key=lambda each: each[:2])
    contents.left_out, contents.unreadable = reader.left_out, tuple(reader.unreadable)
    newest = nlargest(_CANDIDATES, candidates, key=lambda each: each[:2])
    contents.newest = tuple((key, state) for _, key, state in newest)
    return contents


@asynccontextmanager
async def _started(settings: Settings) -> AsyncIterator[Daemon]:
    """Run a gateway on the copy, and end it without waiting for its work."""
    async with open_daemon(settings, listen=False) as daemon:
        ready = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(daemon.run(ready=ready.set), name="rehearsal")
            try:
                async with asyncio.timeout(START_TIMEOUT):
                    await ready.wait()
                yield daemon
            finally:
                daemon.stop()
                daemon.stop()
                await running


class _TurnWatch:
    """Follows a session until a turn in it ends."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[TurnOutcome] = asyncio.get_running_loop().create_future()
        self.turn = ""

    def on_entries(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            if isinstance(entry, TurnEnd) and entry.turn == self.turn and not self.ended.done():
                self.ended.set_result(entry.outcome)

    def on_text(self, turn: str, delta: str) -> None:
        """Ignore drafts."""

    def on_removed(self) -> None:
        if not self.ended.done():
            self.ended.set_exception(Refused("The session was removed while the message was answered."))


async def _ask(daemon: Daemon, newest: Sequence[tuple[str, SessionState]]) -> str:
    """Have a message answered in the session that was used last and has no other work. Returns a sentence."""
    agents = daemon.live.settings.agents
    free = (
        (key, state)
        for key, state in newest
        if state.agent in agents and daemon.sessions.find(key) is not None and not daemon.lanes.is_busy(key)
    )
    key, state = next(free, (None, None))
    scope = f"agent:{DEFAULT_AGENT}:rehearsal" if key is None else parse_key(key)[0]
    agent = DEFAULT_AGENT if state is None else state.agent
    message = uuid4().hex
    inbound = Inbound(
        address=Address(channel=API_CHANNEL, kind=PeerKind.DIRECT, peer="rehearsal"),
        sender=Sender(id="rehearsal", name="rehearsal", is_owner=True),
        event_id=message,
        message_id=message,
        text=_QUESTION,
        sent_at=datetime.now(UTC),
        is_prompt=True,
    )
    watch = _TurnWatch()
    async with asyncio.timeout(MESSAGE_TIMEOUT):
        job = await daemon.intake.accept_prompt(inbound, Routed(agent=agent, scope=scope), into=key)
        watch.turn = job.turn
        # The turn may have ended already: what is in the transcript by now comes first.
        with daemon.sessions.feed.followed(job.session, watch):
            async for entry in daemon.sessions.entries(job.session):
                watch.on_entries([entry])
            outcome = await watch.ended
    if outcome is not TurnOutcome.ANSWERED:
        raise Refused(f"The message was not answered: its turn has {outcome}.")
    if state is None:
        return "A message in a new session was answered."
    return f"A message in the session that was used last, of {count(state.messages, 'message')}, was answered."
