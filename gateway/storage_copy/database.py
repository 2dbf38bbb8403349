"""A database as the source or the target of a copy."""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import groupby
from operator import itemgetter
from threading import Event, Thread
from typing import Any, Protocol, Self
from uuid import uuid4

import msgspec
import structlog

from gateway.database import lease
from gateway.database.connection import Cursor, Parameters
from gateway.database.postgres import PostgresConnection
from gateway.errors import Refused
from gateway.sessions.keys import file_name
from gateway.sessions.state import SessionState
from gateway.sessions.storage.codec import DamagedEntry, decode
from gateway.sessions.storage.row_operations import ENTRY_COLUMNS, SESSION_COLUMNS, entry_row, session_row
from gateway.spool.copies import TABLES
from gateway.spool.rows import from_micros, to_micros
from gateway.storage_copy.contents import UNFINISHED_COPY, Queries, Row, StoredSession, read_table
from gateway.storage_copy.transcript_lines import TranscriptLines

log: structlog.stdlib.BoundLogger = structlog.get_logger()

SESSIONS_PER_PAGE = 500
PAGE_BYTES = 4 * 1024 * 1024
"""A page of entries is about this large."""
_MIN_ENTRIES, _MAX_ENTRIES = 16, 5000
BATCH_BYTES = 4 * 1024 * 1024
BATCH_ENTRIES = 10_000
"""A transaction of the target has at least so many bytes or entries, and ends behind a session."""

_ARCHIVED_COLUMNS = (*SESSION_COLUMNS, "archived_us", "archived_why")

_SEARCH_INDEX = f"{UNFINISHED_COPY}.index"
"""The fact that the index of the search was dropped. Its value is the statement that creates it."""

_END = "\U0010ffff"
"""Behind all keys."""

_decode_state = msgspec.json.Decoder(SessionState).decode


class DatabaseReader:
    """Reads a database at one moment: `connection` is in a transaction that sees no later changes."""

    def __init__(self, connection: Queries, identity: str) -> None:
        self.identity = identity
        self.left_out = 0
        self.unreadable: list[str] = []
        self._connection = connection

    def close(self) -> None:
        pass  # The connection belongs to the caller.

    def session_count(self) -> int:
        (count,) = self._connection.execute("SELECT count(*) FROM session").fetchone()
        return int(count)

    def repos(self) -> list[Row]:
        return self._connection.execute("SELECT id, name, path FROM repo ORDER BY id").fetchall()

    def rows(self, table: str) -> Iterator[Row]:
        return read_table(self._connection, table)

    def sessions(self) -> Iterator[StoredSession]:
        """Yield the sessions by key. Both tables are read in that order, so each is read once."""
        transcripts = groupby(self._entries(), key=itemgetter(0))
        key_of_lines, rows = next(transcripts, (_END, iter(())))
        for key, archived_us, why, encoded in self._session_rows():
            while key_of_lines < key:
                key_of_lines, rows = next(transcripts, (_END, iter(())))
            lines = self._lines(rows) if key_of_lines == key else iter(())
            try:
                state = _decode_state(encoded)
            except (ValueError, RecursionError):
                state = self._rebuilt_state(key)
            archived_at = None if archived_us is None else from_micros(archived_us)
            yield StoredSession(key=key, state=state, lines=lines, archived_at=archived_at, why=why or "")

    def _lines(self, rows: Iterable[Row]) -> Iterator[bytes]:
        for _, _, text in rows:
            line = text.encode() + b"\n"
            try:
                decode(line)
            except DamagedEntry:  # Another program has written it.
                self.left_out += 1
            else:
                yield line

    def _session_rows(self) -> Iterator[Any]:  # Any: the types of the columns.
        last = ""
        while page := self._connection.execute(
            "SELECT key, archived_us, archived_why, state FROM session WHERE key > ? ORDER BY key LIMIT ?",
            (last, SESSIONS_PER_PAGE),
        ).fetchall():
            yield from page
            last = page[-1][0]

    def _entries(self) -> Iterator[tuple[str, int, str]]:
        session, seq, limit = "", 0, 256
        while page := self._connection.execute(
            "SELECT session, seq, line FROM entry WHERE (session, seq) > (?, ?) ORDER BY session, seq LIMIT ?",
            (session, seq, limit),
        ).fetchall():
            yield from page
            session, seq, _ = page[-1]
            size = sum(len(line) for _, _, line in page) // len(page) + 1
            limit = min(max(PAGE_BYTES // size, _MIN_ENTRIES), _MAX_ENTRIES)

    def _rebuilt_state(self, key: str) -> SessionState:
        rows = self._connection.execute("SELECT line FROM entry WHERE session = ? ORDER BY seq", (key,)).fetchall()
        return TranscriptLines(file_name(key), lambda: (line.encode() + b"\n" for (line,) in rows)).state()


class RowTarget(Protocol):
    """A connection that inserts many rows quickly."""

    def execute(self, sql: str, parameters: Parameters = ..., /) -> Cursor: ...

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None: ...

    def begin(self) -> None: ...

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def continue_ids(self, table: str) -> None:
        """Let the ids of new rows start after the highest one."""

    def drop_search_index(self) -> str | None:
        """Drop the index of the search if that makes the copy faster. Returns the statement that creates it again."""


class SqliteTarget:
    """The file of a SQLite database that the caller has locked."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._connection.execute("PRAGMA wal_autocheckpoint = 1000").fetchall()

    def execute(self, sql: str, parameters: Parameters = (), /) -> Cursor:
        return self._connection.execute(sql, parameters)

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        marks = ", ".join("?" * len(columns))
        self._connection.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows)  # noqa: S608 - constants only

    def begin(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        self._connection.execute("COMMIT")

    def rollback(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def continue_ids(self, table: str) -> None:
        pass  # SQLite takes the highest one plus one.

    def drop_search_index(self) -> None:
        return None  # The gateway adds new messages to the index in its own time.


class PostgresTarget:
    """A PostgreSQL database whose lease we hold. Each transaction ends with the fence."""

    def __init__(self, connection: PostgresConnection, boot: str) -> None:
        self._connection = connection
        self._boot = boot

    def execute(self, sql: str, parameters: Parameters = (), /) -> Cursor:
        return self._connection.execute(sql, parameters)

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        self._connection.copy_in(table, columns, rows)

    def begin(self) -> None:
        self._connection.begin()

    def commit(self) -> None:
        # At the end, because it locks the row until the commit, and the lease has to be renewed until then.
        try:
            lease.fence(self._connection, self._boot, 0, after=0)
        except lease.LeaseLost:
            raise Refused("Another gateway has taken over the database. Stop it, and run the command again.") from None
        self._connection.commit()

    def rollback(self) -> None:
        self._connection.rollback()

    def continue_ids(self, table: str) -> None:
        self._connection.execute(
            f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), greatest(max(id), 1), max(id) IS NOT NULL) "  # noqa: S608 - constants only
            f"FROM {table}"
        )

    def drop_search_index(self) -> str | None:
        # The index of a full table is built several times as fast as one that grows with it.
        (definition,) = self._connection.execute("SELECT pg_get_indexdef(to_regclass('entry_search'))").fetchone()
        if definition is not None:
            self._connection.execute("DROP INDEX entry_search")
        return None if definition is None else str(definition)


class DatabaseWriter:
    """Writes a copy into a database, several sessions in one transaction."""

    def __init__(self, target: RowTarget, identity: str, *, batch_entries: int = BATCH_ENTRIES) -> None:
        self.identity = identity
        self._target = target
        self._batch_entries = batch_entries
        self._sessions: list[Row] = []
        self._entries: list[Row] = []
        self._bytes = 0
        self._is_open = False
        self._present: dict[str, bytes] = {}

    def start(self, source: str) -> None:
        found = self._target.execute("SELECT value FROM facts WHERE name = ?", (UNFINISHED_COPY,)).fetchone()
        if found is None:
            for table in ("session", *TABLES):
                if self._target.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() is not None:  # noqa: S608 - constants only
                    raise Refused(
                        f"The database {self.identity} already has data (in the table {table}). Name an empty one. "
                        "Nothing was changed."
                    )
            self._target.begin()
            self._set_fact(UNFINISHED_COPY, source)
            if (statement := self._target.drop_search_index()) is not None:
                self._set_fact(_SEARCH_INDEX, statement)
            self._target.commit()
        elif found[0] != source:
            raise Refused(
                f"The database {self.identity} has an unfinished copy of {found[0]}. Name an empty one, or finish that "
                "copy. Nothing was changed."
            )
        last = ""
        while page := self._target.execute(
            "SELECT key, archived_us, archived_why, state FROM session WHERE key > ? ORDER BY key LIMIT ?",
            (last, SESSIONS_PER_PAGE),
        ).fetchall():
            self._present |= {row[0]: _digest(row) for row in page}
            last = page[-1][0]

    def has(self, session: StoredSession) -> bool:
        return self._present.get(session.key) == _digest(_stored_columns(session))

    def add(self, session: StoredSession, lines: Iterator[bytes]) -> None:
        if self._present.pop(session.key, None) is not None:  # The source has changed since the interrupted copy.
            self._flush()
            self._delete(session.key)
        archived = None if session.archived_at is None else to_micros(session.archived_at)
        why = session.why if session.archived_at is not None else None
        self._sessions.append((*session_row(session.key, session.state), archived, why))
        for line in lines:
            self._entries.append(entry_row(session.key, line))
            self._bytes += len(line)
            if self._bytes >= BATCH_BYTES:
                self._flush()
        if len(self._entries) >= self._batch_entries or self._is_open:
            self._commit()

    def finish_sessions(self, keys: Iterable[str], repos: list[Row]) -> None:
        self._commit()
        self._target.begin()
        for repo in repos:
            self._target.execute(
                "INSERT INTO repo (id, name, path) VALUES (?, ?, ?) "
                "ON CONFLICT (id) DO UPDATE SET name = excluded.name, path = excluded.path",
                repo,
            )
        for key in self._present.keys() - set(keys):
            self._delete(key)
        self._target.commit()

    def write_table(self, table: str, rows: Iterator[Row]) -> None:
        self._begin()
        if table == "facts":
            self._target.execute("DELETE FROM facts WHERE name NOT IN (?, ?)", (UNFINISHED_COPY, _SEARCH_INDEX))
        else:
            self._target.execute(f"DELETE FROM {table}")  # noqa: S608 - constants only
        self._target.insert(table, TABLES[table], rows)
        if table in {"seen", "inbox", "outbox"}:
            self._target.continue_ids(table)

    def finish_tables(self) -> None:
        self._commit()

    def reader(self) -> DatabaseReader:
        return DatabaseReader(self._target, self.identity)

    def discard(self, keys: Iterable[str]) -> None:
        self._begin()
        for key in keys:
            self._delete(key)
        self._commit()

    def finish(self) -> None:
        """Remove the mark, and build the index of the search."""
        self._begin()
        found = self._target.execute("SELECT value FROM facts WHERE name = ?", (_SEARCH_INDEX,)).fetchone()
        if found is not None:
            self._target.execute(found[0])
        self._target.execute("DELETE FROM facts WHERE name IN (?, ?)", (UNFINISHED_COPY, _SEARCH_INDEX))
        self._commit()

    def _set_fact(self, name: str, value: str) -> None:
        self._target.execute("INSERT INTO facts (name, value) VALUES (?, ?)", (name, value))

    def _begin(self) -> None:
        if not self._is_open:
            self._target.begin()
            self._is_open = True

    def _flush(self) -> None:
        """Insert what was added. A long session takes several flushes, and all are in one transaction."""
        self._begin()
        sessions, entries = self._sessions, self._entries
        self._sessions, self._entries, self._bytes = [], [], 0
        for repo in {row[SESSION_COLUMNS.index("repo")] for row in sessions} - {None}:
            self._target.execute(
                "INSERT INTO repo (id, name, path) VALUES (?, ?, '') ON CONFLICT DO NOTHING", (repo, repo)
            )
        if sessions:
            self._target.insert("session", _ARCHIVED_COLUMNS, sessions)
        if entries:
            self._target.insert("entry", ENTRY_COLUMNS, entries)

    def _commit(self) -> None:
        self._flush()
        self._target.commit()
        self._is_open = False

    def _delete(self, key: str) -> None:
        self._target.execute("DELETE FROM entry WHERE session = ?", (key,))
        self._target.execute("DELETE FROM session WHERE key = ?", (key,))


def _stored_columns(session: StoredSession) -> Row:
    row = session_row(session.key, session.state)
    archived = None if session.archived_at is None else to_micros(session.archived_at)
    why = session.why if session.archived_at is not None else None
    return session.key, archived, why, row[SESSION_COLUMNS.index("state")]


def _digest(row: Row) -> bytes:
    return blake2b(msgspec.msgpack.encode(tuple(row)), digest_size=16).digest()


class HeldLease:
    """A context manager that holds the lease of a PostgreSQL database, on a connection and a thread of its own."""

    def __init__(self, connection: PostgresConnection, holder: lease.Holder) -> None:
        self.boot = uuid4().hex
        self._connection = connection
        self._holder = holder
        self._end = Event()
        self._thread = Thread(target=self._renew, name="lease", daemon=True)

    def __enter__(self) -> Self:
        self._connection.begin()
        try:
            lease.take(self._connection, self.boot, self._holder)
        except BaseException:
            self._connection.rollback()
            raise
        self._connection.commit()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        try:
            lease.release(self._connection, self.boot)
        except Exception as error:  # noqa: BLE001 - the lease expires by itself.
            log.debug("lease_not_released", reason=str(error))

    def _renew(self) -> None:
        while not self._end.wait(lease.RENEWAL_INTERVAL):
            try:
                lease.last_batch(self._connection, self.boot, at_least=0)
            except Exception as error:  # noqa: BLE001 - the fence of the next transaction notices a lost lease.
                log.debug("lease_not_renewed", reason=str(error))
                return
