"""Operations on sessions in a database: the changes to their rows that are committed with those of the spool."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from uuid import UUID

import msgspec

from config import Repo
from gateway.database.connection import Connection
from gateway.database.row_statement import RowStatement
from gateway.sessions.keys import derived_id, packed_id, parse_key
from gateway.sessions.state import SessionState, UtcTime
from gateway.sessions.storage.codec import DamagedEntry, decode
from gateway.sessions.storage.search import folded_content
from gateway.sessions.storage.transcript import lines_forwards
from gateway.spool import Operation, WrongState
from gateway.spool.rows import to_micros

SESSION_COLUMNS = ("key", "scope", "number", "id", "agent", "repo", "status", "created_us", "updated_us", "state")
ENTRY_COLUMNS = ("session", "seq", "type", "at_us", "line", "folded")

_UPDATE_SESSION = RowStatement(
    "UPDATE session SET agent = ?, repo = ?, status = ?, updated_us = ?, state = ? WHERE key = ?",
    ("text", "text", "text", "bigint", "text", "text"),
    table="session",
    key=(5,),
)
_INSERT_SESSION = RowStatement(
    f"INSERT INTO session ({', '.join(SESSION_COLUMNS)}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - constants only
    ("text", "text", "bigint", "text[]::uuid", "text", "text", "text", "bigint", "bigint", "text"),
    table="session",
    key=(0,),
)
_INSERT_ENTRY = RowStatement(
    f"INSERT INTO entry ({', '.join(ENTRY_COLUMNS)}) VALUES (?, ?, ?, ?, ?, ?)",  # noqa: S608 - constants only
    ("text", "bigint", "text", "bigint", "text", "text"),
    table="session",
    key=(0,),
)


class _EntryHead(msgspec.Struct):
    type: str
    seq: int
    ts: UtcTime
    content: msgspec.Raw = msgspec.Raw()


_decode_head = msgspec.json.Decoder(_EntryHead).decode
_encode_state = msgspec.json.Encoder().encode


class StoreEntries(Operation, frozen=True, kw_only=True):
    """Append entries to a session, and set its state to that after them. The first entry creates the session."""

    session: str
    first_seq: int
    lines: tuple[bytes, ...]
    state: SessionState

    def apply(self, connection: Connection) -> None:
        if self.first_seq == 1:
            insert_session(connection, self.session, self.state)
        else:
            _insert_repo(connection, self.state)
            state = self.state
            values = (state.agent, state.repo or None, state.status, to_micros(state.updated_at), _encode(state))
            if not connection.execute(_UPDATE_SESSION, (*values, self.session)).rowcount:
                raise WrongState(f"{self.session} cannot get entries: it is unknown.")
        insert_entries(connection, self.session, self.lines)


class ImportSession(Operation, frozen=True, kw_only=True):
    """Add a session with the lines of an imported file. Lines that are no entries are left out."""

    session: str
    state: SessionState
    path: Path

    def apply(self, connection: Connection) -> None:
        insert_session(connection, self.session, self.state)
        insert_entries(connection, self.session, distinct_entries(lines_forwards(self.path)))


class RemoveSession(Operation, frozen=True, kw_only=True):
    """Delete a session with all its entries, even if it is archived."""

    session: str

    def apply(self, connection: Connection) -> None:
        connection.execute("DELETE FROM entry WHERE session = ?", (self.session,))
        connection.execute("DELETE FROM session WHERE key = ?", (self.session,))


class IndexMessages(Operation, frozen=True, kw_only=True):
    """Add messages of a SQLite database to the index of the search. Until then they are searched one by one."""

    limit: int

    def apply(self, connection: Connection) -> None:
        pending = "SELECT session, seq FROM search_pending ORDER BY session, seq LIMIT ?"
        rows = connection.execute(pending, (self.limit,)).fetchall()
        sessions = dict.fromkeys((session,) for session, _ in rows)
        connection.executemany("INSERT INTO search_session (session) VALUES (?) ON CONFLICT DO NOTHING", sessions)
        connection.executemany(
            "INSERT INTO search_text (rowid, folded) SELECT (s.id << 32) | e.seq, e.folded "
            "FROM entry e JOIN search_session s ON s.session = e.session WHERE e.session = ? AND e.seq = ?",
            rows,
        )
        connection.executemany("DELETE FROM search_pending WHERE session = ? AND seq = ?", rows)


class MarkArchived(Operation, frozen=True, kw_only=True):
    """Archive a session. Its rows stay where they are."""

    session: str
    at: datetime
    why: str

    def apply(self, connection: Connection) -> None:
        archived = connection.execute(
            "UPDATE session SET archived_us = ?, archived_why = ? WHERE key = ? AND archived_us IS NULL",
            (to_micros(self.at), self.why, self.session),
        )
        if not archived.rowcount:
            raise WrongState(f"{self.session} cannot be archived: it is unknown, or archived already.")


class MarkRestored(Operation, frozen=True, kw_only=True):
    """Take a session out of the archive."""

    session: str

    def apply(self, connection: Connection) -> None:
        restored = connection.execute(
            "UPDATE session SET archived_us = NULL, archived_why = NULL WHERE key = ? AND archived_us IS NOT NULL",
            (self.session,),
        )
        if not restored.rowcount:
            raise WrongState(f"{self.session} cannot be restored: it is not archived.")


class SaveRepos(Operation, frozen=True, kw_only=True):
    """Store the configured repositories. Others stay: sessions may refer to them."""

    repos: tuple[Repo, ...]

    def apply(self, connection: Connection) -> None:
        for repo in self.repos:
            connection.execute(
                "INSERT INTO repo (id, name, path) VALUES (?, ?, ?) "
                "ON CONFLICT (id) DO UPDATE SET name = excluded.name, path = excluded.path",
                (repo.id, repo.name, str(repo.path)),
            )


def insert_session(connection: Connection, key: str, state: SessionState) -> None:
    _insert_repo(connection, state)
    connection.execute(_INSERT_SESSION, session_row(key, state))


def session_row(key: str, state: SessionState) -> tuple[object, ...]:
    """Return the values of `SESSION_COLUMNS`."""
    scope, number = parse_key(key)
    return (
        *(key, scope, number, row_id(state.id or derived_id(key)), state.agent, state.repo or None, str(state.status)),
        *(to_micros(state.created_at), to_micros(state.updated_at), _encode(state)),
    )


def entry_row(key: str, line: bytes) -> tuple[str, int, str, int, str, str | None]:
    """Return the values of `ENTRY_COLUMNS` for a line. Raises `ValueError` if that is not an entry."""
    head = _decode_head(line)
    text = line.removesuffix(b"\n").decode()
    return key, head.seq, head.type, to_micros(head.ts), text, folded_content(head.type, head.content)


def row_id(session_id: str) -> str:
    """Return the id of a session as its row has it: a UUID, even if an imported session has another kind of id."""
    return str(UUID(bytes=packed_id(session_id)))


def insert_entries(connection: Connection, key: str, lines: Iterable[bytes]) -> None:
    for line in lines:
        connection.execute(_INSERT_ENTRY, entry_row(key, line))


def distinct_entries(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines that are entries, one for each seq. A file may have damaged lines, and some twice."""
    last = 0
    for line in lines:
        try:
            seq = decode(line).seq
        except DamagedEntry:
            continue
        if seq > last:
            last = seq
            yield line


def _insert_repo(connection: Connection, state: SessionState) -> None:
    """Make sure that the repository of a session exists: its settings may have been removed since."""
    if state.repo:
        connection.execute(
            "INSERT INTO repo (id, name, path) VALUES (?, ?, '') ON CONFLICT DO NOTHING", (state.repo, state.repo)
        )


def _encode(state: SessionState) -> str:
    return _encode_state(state).decode()
