"""Sessions as rows of a database: one row for each entry, and one for each session. Those are the index.

Every change is an operation of the spool, so its commit changes everything or nothing, and nothing has to be flushed
or replayed. An archived session stays where it is: only its row says that it is archived.
"""

import errno
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from threading import local
from typing import Any, Protocol

import msgspec
import structlog

from config.files import write_atomically
from gateway.aio import WorkerThread
from gateway.bounded import BoundedDict
from gateway.data_dir import unusable
from gateway.database.connection import Cursor, Parameters
from gateway.sessions import index, recovery
from gateway.sessions.entries import Header
from gateway.sessions.index import Scope, SessionIndex
from gateway.sessions.keys import file_name
from gateway.sessions.recovery import Recovered, RecoveryReport
from gateway.sessions.session import SessionMeta
from gateway.sessions.state import SessionState
from gateway.sessions.storage.archive import ArchivedSession
from gateway.sessions.storage.archived_transcript import DamagedArchive
from gateway.sessions.storage.codec import DamagedEntry, UnreadableTranscript, decode
from gateway.sessions.storage.disk import LOST, Disk
from gateway.sessions.storage.interface import Arrival
from gateway.sessions.storage.journal import Journal, JournalLines
from gateway.sessions.storage.row_operations import (
    ImportSession,
    IndexMessages,
    MarkArchived,
    MarkRestored,
    RemoveSession,
    StoreEntries,
    row_id,
)
from gateway.sessions.storage.row_search import PostgresSearch, RowSearch, SqliteSearch, candidates
from gateway.sessions.storage.search import SearchDeadline, SearchResult, fold, lookup, sampled_places, search
from gateway.sessions.storage.tail import EnoughForHistory, NeverStop, StopCondition
from gateway.sessions.storage.transcript import TranscriptTail, collect
from gateway.sessions.storage.transfer_files import ImportFile
from gateway.sessions.storage.verify import MAX_LISTED_PROBLEMS, SessionProblem, VerifyReport
from gateway.spool import Operation, SpoolBroken, SpoolUnavailable
from gateway.spool.rows import from_micros, to_micros

log: structlog.stdlib.BoundLogger = structlog.get_logger()

FIRST_ROWS = 128
"""Entries that the first step of a read fetches. Most histories need no second step."""
MORE_ROWS = 512
SESSIONS_PER_STEP = 1000
EXPIRED_PER_SWEEP = 500
MAX_MIRRORED = 10_000
MESSAGES_PER_COMMIT = 128
"""Messages that are added to the index of the search with one commit, which takes a few milliseconds."""

_NO_SEQ = 1 << 62

# These follow the primary key and end after so many rows, even if they run into the next session. PostgreSQL may think
# that a session is short, as most are. It would sort all rows of a long one if it were free to.
_PREVIOUS = """
    SELECT seq, line FROM (
        SELECT session, seq, line FROM entry WHERE (session, seq) < (?, ?) ORDER BY session DESC, seq DESC LIMIT ?
    ) AS previous WHERE session = ? ORDER BY seq DESC
"""
_NEXT = """
    SELECT seq, line FROM (
        SELECT session, seq, line FROM entry WHERE (session, seq) > (?, ?) ORDER BY session, seq LIMIT ?
    ) AS following WHERE session = ? AND seq <= ? ORDER BY seq
"""

_ROWS_OF_SCOPE = "SELECT scope, number, key, archived_us, state FROM session WHERE scope = ? ORDER BY number"
_ARCHIVED = "SELECT key, archived_us, archived_why, state FROM session WHERE archived_us IS NOT NULL"

_decode_state = msgspec.json.Decoder(SessionState).decode


class ReaderConnection(Protocol):
    """A connection for the queries of one thread. Raises `OSError` if the database cannot be read at the moment."""

    def execute(self, sql: str, parameters: Parameters = ..., /) -> Cursor: ...

    def begin_snapshot(self) -> None:
        """Let all later queries see the same moment, until the connection is closed."""

    def close(self) -> None: ...


class RowArchive:
    """The archived sessions: rows of the same tables."""

    def __init__(self, rows: "Rows") -> None:
        self._rows = rows

    def contains(self, key: str) -> bool:
        return bool(self._rows.all("SELECT 1 FROM session WHERE key = ? AND archived_us IS NOT NULL", (key,)))

    def in_scope(self, scope: str) -> list[ArchivedSession]:
        found = self._rows.all(f"{_ARCHIVED} AND scope = ? ORDER BY number DESC", (scope,))
        return [session for row in found if (session := _read_archived(row)) is not None]

    def find(self, key: str) -> ArchivedSession | None:
        return self._find("key = ?", key)

    def find_by_id(self, session_id: str) -> ArchivedSession | None:
        found = self._find("id = ?", row_id(session_id))
        return found if found is not None and found.state.id == session_id else None

    def _find(self, condition: str, value: str) -> ArchivedSession | None:
        for row in self._rows.all(f"{_ARCHIVED} AND {condition}", (value,)):
            if (session := _read_archived(row)) is None:
                raise DamagedArchive("its state is damaged")
            return session
        return None

    def transcript(self, key: str) -> Iterator[bytes]:
        reader = RowExport(self._rows, key, _NO_SEQ, 0)
        while lines := reader.lines():
            yield b"".join(lines)

    def transcript_names(self) -> list[str]:
        return [file_name(key) for (key,) in self._rows.all("SELECT key FROM session WHERE archived_us IS NOT NULL")]

    def expired(self, before: datetime, shards: Sequence[int] | None = None) -> list[str]:
        condition, values = ("", ()) if shards is None else ("AND gatehouse_shard(scope) = ANY(?)", (shards,))
        found = self._rows.all(
            f"SELECT key FROM session WHERE archived_us < ? {condition} ORDER BY archived_us LIMIT ?",  # noqa: S608 - constants only
            (to_micros(before), *values, EXPIRED_PER_SWEEP),
        )
        return [key for (key,) in found]

    def delete(self, key: str) -> None:
        pass  # There are no copies.


def _read_archived(row: Sequence[Any]) -> ArchivedSession | None:  # Any: the types of the columns.
    key, at, why, state = row
    try:
        return ArchivedSession(key=key, archived_at=from_micros(at), why=why, state=_decode_state(state))
    except msgspec.DecodeError as error:
        log.warning("archived_session_unreadable", session=key, reason=str(error))
        return None


class Rows:
    """Queries, each on the connection of its thread."""

    def __init__(self, connect: Callable[[], ReaderConnection]) -> None:
        self._connect = connect
        self._local = local()
        self._connections: list[ReaderConnection] = []

    def all(self, sql: str, parameters: Sequence[object] = ()) -> list[Any]:  # Any: the types of the columns.
        connection: ReaderConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._connect()
            self._connections.append(connection)
        return connection.execute(sql, parameters).fetchall()

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    def lines_backwards(self, key: str) -> Iterator[bytes]:
        """Yield the lines of a session without their newlines, the last one first."""
        before, limit = _NO_SEQ, FIRST_ROWS
        while True:
            found = self.all(_PREVIOUS, (key, before, limit, key))
            for _, line in found:
                yield line.encode()
            if len(found) < limit:
                return
            before, limit = found[-1][0], MORE_ROWS


class RowExport:
    """The lines of a session from the entry after `after` to the entry `end`, read in steps."""

    def __init__(self, rows: Rows, key: str, end: int, after: int) -> None:
        self._rows = rows
        self._key = key
        self._end = end
        self._after = after

    def lines(self) -> list[bytes]:
        found = self._rows.all(_NEXT, (self._key, self._after, MORE_ROWS, self._key, self._end))
        if found:
            self._after = found[-1][0]
        elif self._after < self._end < _NO_SEQ:
            raise FileNotFoundError(errno.ENOENT, "The session is gone")  # It was deleted since the start.
        return [line.encode() + b"\n" for _, line in found]

    def close(self) -> None:
        pass


class InPlace:
    """A session that returns from the archive without being moved."""

    def close(self) -> None:
        pass


class DatabaseStorage:
    """`connect` opens a connection for reading. `folder` is for the files of imports.

    `mirror` gets a copy of each transcript as a file, for people. It is never read, and a session that is not used
    after a start may be missing there.
    """

    waiting = 0

    def __init__(
        self,
        connect: Callable[[], ReaderConnection],
        folder: Path,
        *,
        row_search: type[SqliteSearch | PostgresSearch],
        mirror: Disk | None = None,
    ) -> None:
        self.connect = connect
        self._rows = Rows(connect)
        self.row_search: RowSearch = row_search(self._rows.all)
        self._folder = folder
        self.mirror = mirror
        # Sessions whose file in the mirror has all lines.
        self._mirrored = BoundedDict[str, None](MAX_MIRRORED)
        self.archive = RowArchive(self._rows)

    @property
    def trouble(self) -> str | None:
        return None if self.mirror is None else self.mirror.trouble

    def prepare(self) -> None:
        if self.mirror is not None:
            try:
                self.mirror.prepare()
            except OSError as error:
                raise unusable(self.mirror.directory, error) from error
        with suppress(OSError):  # The database is away at the moment.
            if not self.row_search.has_index():
                log.warning(
                    "search_index_missing",
                    reason="The database lacks the extension pg_trgm, so searches are slow. See docs/storage.md.",
                )

    def close(self) -> None:
        self._rows.close()
        if self.mirror is not None:
            self.mirror.close()

    def flusher(self, index: SessionIndex, thread: WorkerThread, journal: Journal | None) -> "DatabaseFlusher":  # noqa: ARG002 - the index needs no flush.
        return DatabaseFlusher(self, thread, journal)

    def replay(self, key: str, lines: JournalLines) -> int:  # noqa: ARG002 - nothing is journaled.
        return 0

    def recover(self, now: datetime, deleted: frozenset[str], shards: Sequence[int] | None = None) -> Recovered:
        scopes: dict[str, bytes] = {}
        session_count = 0
        repaired: list[str] = []
        rows = self._session_rows() if shards is None else chain(*map(self._session_rows_of, shards))
        for name, scope in self._grouped(rows, now, repaired):
            session_count += len(scope.sessions)
            scopes[name] = index.encode_scope(scope)
        return Recovered(
            scopes=scopes,
            undeleted=deleted,
            is_index_outdated=False,
            report=RecoveryReport(scopes=len(scopes), sessions=session_count, repaired=len(repaired)),
        )

    def scopes(self, now: datetime, name: str | None = None) -> Iterator[tuple[str, Scope]]:
        """Yield all scopes, or the one of that name, also those of other nodes of a cluster."""
        rows = self._session_rows() if name is None else self._rows.all(_ROWS_OF_SCOPE, (name,))
        return self._grouped(rows, now, [])

    def archived_scopes(self) -> list[str]:
        """Return the scopes that have archived sessions, also those of other nodes of a cluster."""
        return [
            scope for (scope,) in self._rows.all("SELECT DISTINCT scope FROM session WHERE archived_us IS NOT NULL")
        ]

    def keys(self) -> list[str]:
        """Return the keys of all sessions, also the archived ones, and those of other nodes of a cluster."""
        return [row[2] for row in self._session_rows()]

    def query(self, sql: str, parameters: Sequence[object] = ()) -> list[Any]:  # Any: the types of the columns.
        return self._rows.all(sql, parameters)

    def _grouped(
        self, found: Iterable[Any], now: datetime, repaired: list[str]
    ) -> Iterator[tuple[str, Scope]]:  # Any: the types of the columns.
        """Yield the scopes that rows of sessions belong to. Adds sessions without a readable state to `repaired`."""
        for scope, rows in groupby(found, key=itemgetter(0)):
            sessions: dict[str, SessionState] = {}
            archived: list[int] = []
            for _, number, key, archived_at, stored in rows:
                if archived_at is not None:
                    archived.append(number)
                    continue
                try:
                    sessions[key] = _decode_state(stored)
                except msgspec.DecodeError as error:
                    log.warning("session_state_rebuilt", session=key, reason=str(error))
                    sessions[key] = self._rebuilt_state(key)
                    repaired.append(key)
            # The states have the epochs and the highest number. So they tell which session is the active one.
            grouped = recovery.group_by_scope(sessions, {}, set(), {scope: archived} if archived else {}, now)
            yield from grouped.items()

    def _session_rows(self) -> Iterator[Any]:  # Any: the types of the columns.
        scope, number = "", 0
        while found := self._rows.all(
            "SELECT scope, number, key, archived_us, state FROM session WHERE (scope, number) > (?, ?) "
            "ORDER BY scope, number LIMIT ?",
            (scope, number, SESSIONS_PER_STEP),
        ):
            yield from found
            scope, number = found[-1][:2]

    def _session_rows_of(self, shard: int) -> Iterator[Any]:  # Any: the types of the columns.
        scope, number = "", 0
        while found := self._rows.all(
            "SELECT scope, number, key, archived_us, state FROM session "
            "WHERE gatehouse_shard(scope) = ? AND (scope, number) > (?, ?) ORDER BY scope, number LIMIT ?",
            (shard, scope, number, SESSIONS_PER_STEP),
        ):
            yield from found
            scope, number = found[-1][:2]

    def _rebuilt_state(self, key: str) -> SessionState:
        """Return the state of a session from all of its entries."""
        return recovery.state_from(self.read(key))

    def append_operations(
        self, key: str, first_seq: int, lines: Sequence[bytes], state: Callable[[], SessionState]
    ) -> Sequence[Operation]:
        return [StoreEntries(session=key, first_seq=first_seq, lines=tuple(lines), state=state())]

    def removal_operations(self, key: str) -> Sequence[Operation]:
        return [RemoveSession(session=key)]

    def archive_operations(self, session: ArchivedSession) -> Sequence[Operation]:
        return [MarkArchived(session=session.key, at=session.archived_at, why=session.why)]

    def restore_operations(self, key: str) -> Sequence[Operation]:
        return [MarkRestored(session=key)]

    def import_operations(self, key: str, state: SessionState, arrival: ImportFile) -> Sequence[Operation]:
        return [ImportSession(session=key, state=state, path=arrival.path)]

    def append(self, key: str, data: bytes, *, is_new: bool = False) -> None:
        """Append lines to the file of the mirror. The first time, the whole file is written: it may lack some.

        A mirror that fails does not concern the session. The next lines try again.
        """
        if self.mirror is None:
            return
        try:
            if is_new or key in self._mirrored:
                self.mirror.append(key, data, is_new=is_new)
            else:
                write_atomically(self.mirror.path(key), b"".join(self.archive.transcript(key)))
            self._mirrored[key] = None
        except (*LOST, OSError) as error:
            self._mirrored.pop(key, None)
            log.warning("mirror_not_written", session=key, reason=str(error))

    def read(self, key: str, stop: StopCondition | None = None, *, max_bytes: int | None = None) -> TranscriptTail:
        found = collect(chain([b""], self._rows.lines_backwards(key)), stop or NeverStop(), max_bytes)
        if not found.entries:
            raise UnreadableTranscript(f"{key} has no entries")
        return TranscriptTail(
            entries=found.entries,
            size=found.taken,
            taken=found.taken,
            is_whole=found.is_whole,
            damaged=found.damaged,
        )

    def read_tail(self, key: str, messages: int, expected: SessionState) -> tuple[TranscriptTail, SessionState | None]:
        return self.read(key, EnoughForHistory(messages, expected)), None

    def read_header(self, key: str) -> Header | None:
        for _, line in self._rows.all(_NEXT, (key, -1, 1, key, _NO_SEQ)):
            try:
                entry = decode(line.encode())
            except DamagedEntry:
                return None
            return entry if isinstance(entry, Header) else None
        return None

    def recreate(self, key: str, data: bytes) -> None:  # noqa: ARG002 - committed rows are not lost.
        raise UnreadableTranscript(f"{key} has no entries")

    def snapshot(self, key: str) -> tuple[int, bytes]:
        for end, _ in self._rows.all(_PREVIOUS, (key, _NO_SEQ, 1, key)):
            return end, b""
        raise FileNotFoundError(errno.ENOENT, "The session is gone")

    def export(self, key: str, end: int, after: int) -> RowExport:
        return RowExport(self._rows, key, end, after)

    def whole_size(self, key: str) -> int:  # noqa: ARG002 - nothing is copied.
        return 0

    def copy_to_archive(self, session: ArchivedSession, size: int) -> None:
        pass  # Its row will say that it is archived.

    def open_import(self) -> ImportFile:
        return ImportFile(self._folder, is_kept=False)

    def place(self, key: str, arrival: ImportFile) -> None:
        pass  # The commit has given the session its place.

    def extract(self, key: str) -> tuple[SessionState, Arrival]:
        found = self.archive.find(key)
        if found is None:
            raise DamagedArchive("it is not there any more")
        return found.state, InPlace()

    def place_durably(self, key: str, arrival: Arrival) -> None:
        pass  # The commit gives the session its place.

    def unlink(self, key: str) -> None:
        pass  # Nothing was placed.

    def remains(self, key: str) -> bool:
        return bool(self._rows.all("SELECT 1 FROM session WHERE key = ?", (key,)))

    def before_change(self) -> None:
        pass  # There is no mark on the index.

    def search(
        self,
        sessions: Sequence[SessionMeta],
        words: Sequence[str],
        *,
        rare: Sequence[str],
        counted: Sequence[str],
        limit: int,
        width: int,
        max_bytes: int,
        deadline: SearchDeadline,
    ) -> SearchResult:
        searched = candidates(self._rows.all, self.row_search, sessions, *lookup(words, rare))
        return search(
            searched, words, counted=counted, limit=limit, width=width, max_bytes=max_bytes, deadline=deadline
        )

    def sample(self, sessions: Sequence[SessionMeta], words: Sequence[str]) -> tuple[int, list[int]]:
        places = [(sessions[index].key, seq) for index, seq in sampled_places([each.seq for each in sessions])]
        return self.row_search.sample(places, [fold(word) for word in words])

    def verify(self) -> VerifyReport:
        """Decode all entries, and compare the row of each session with them."""
        problems: list[SessionProblem] = []
        scopes: set[str] = set()
        counts = {"entries": 0, "transcripts": 0, "archived": 0}
        for scope, _, key, archived_at, stored in self._session_rows():
            scopes.add(scope)
            counts["transcripts" if archived_at is None else "archived"] += 1
            last = size = 0
            for line in self.archive.transcript(key):
                for each in line.splitlines(keepends=True):
                    size += len(each)
                    try:
                        entry = decode(each)
                    except DamagedEntry as damage:
                        detail = f"The entry after {last} is damaged: {damage}."
                        problems.append(SessionProblem(kind="damaged_line", where=key, detail=detail))
                        continue
                    counts["entries"] += 1
                    if last and entry.seq != last + 1:
                        detail = f"Entry {entry.seq} comes after {last}."
                        problems.append(SessionProblem(kind="seq_gap", where=key, detail=detail))
                    last = entry.seq
            try:
                state = _decode_state(stored)
            except msgspec.DecodeError as error:
                problems.append(SessionProblem(kind="bad_index", where=key, detail=f"Its state is damaged: {error}."))
                continue
            if (state.seq, state.size) != (last, size):
                detail = (
                    f"It ends with entry {last} and has {size} bytes, but its row says {state.seq} and {state.size}."
                )
                problems.append(SessionProblem(kind="stale_index", where=key, detail=detail))
        return VerifyReport(
            scopes=len(scopes),
            archived=counts["archived"],
            transcripts=counts["transcripts"],
            entries=counts["entries"],
            unknown_entries=0,
            problem_count=len(problems),
            problems=tuple(problems[:MAX_LISTED_PROBLEMS]),
        )


class DatabaseFlusher:
    """A database needs no flush. This only removes the last copies of deleted text."""

    def __init__(self, storage: DatabaseStorage, thread: WorkerThread, journal: Journal | None) -> None:
        self.unflushed: dict[str, int] = {}
        self.undeleted: set[str] = set()
        self.unpurged: set[str] = set()
        self.failures = 0
        self._storage = storage
        self._thread = thread
        self._journal = journal

    def start(self, undeleted: Collection[str], *, is_index_outdated: bool) -> None:  # noqa: ARG002 - it never is.
        self.undeleted = set(undeleted)

    async def flush(self) -> None:
        await self._purge()
        await self._index_messages()

    async def _purge(self) -> None:
        self.unflushed.clear()
        if self.unpurged and self._journal is not None:
            try:
                self.unpurged -= set(await self._journal.purge(frozenset(self.unpurged)))
            except (OSError, SpoolUnavailable, SpoolBroken) as error:  # The next flush tries again.
                log.warning("deleted_text_not_purged", sessions=len(self.unpurged), reason=str(error))

    async def _index_messages(self) -> None:
        """Add new messages to the index of the search, in small commits that others can share."""
        if self._journal is None:
            return
        try:
            pending = await self._thread.submit(self._storage.row_search.pending)
            for _ in range(0, pending, MESSAGES_PER_COMMIT):
                await self._journal.commit(IndexMessages(limit=MESSAGES_PER_COMMIT))
        except (OSError, SpoolUnavailable, SpoolBroken) as error:  # They are found all the same.
            log.warning("messages_not_indexed", reason=str(error))

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[Mapping[str, int]]:
        yield {}

    async def delete_transcript(self, key: str, successor: str | None = None, *, is_archived: bool = False) -> bool:  # noqa: ARG002 - its number is in a row.
        mirror = self._storage.mirror
        if mirror is not None:
            try:
                await self._thread.submit(mirror.unlink if is_archived else mirror.delete, key)
            except OSError as error:
                log.error("transcript_not_deleted", session=key, reason=str(error))  # noqa: TRY400 - the reason is enough.
                return False
        return True

    async def finish(self) -> None:
        await self._purge()

    def stop(self) -> None:
        pass  # There is no thread.
