"""Reads what a daemon under test has stored, with each storage engine: rows of the spool, and transcripts."""

import json
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from gateway.database.postgres import PostgresConnection, ReconnectingPostgres
from gateway.database.sqlite import SqliteReader
from gateway.memory import MemoryStore
from gateway.sessions import VerifyReport
from gateway.sessions.keys import file_name
from gateway.sessions.storage.archive import ArchiveFiles, transcript_of
from gateway.sessions.storage.database import DatabaseStorage, ReaderConnection
from gateway.sessions.storage.row_search import PostgresSearch, SqliteSearch
from gateway.sessions.storage.verify import verify
from tests.crash.daemon_spec import DaemonSpec

Entry = dict[str, Any]  # Any: entries have different fields.
Row = tuple[Any, ...]  # Any: columns have different types.

_TABLES = ("seen", "inbox", "outbox", "drafts", "facts", "reminders", "deletions", "session", "entry")


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxMessage:
    event: str
    text: str
    state: str
    session: str
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxReply:
    key: str
    state: str
    chat: str
    """Empty after the delivery: the text and the address are dropped."""


def rows(spec: DaemonSpec, statement: str) -> list[Row]:
    """Return the rows of a query that all engines understand."""
    if spec.is_postgres:
        with psycopg.connect(spec.storage, autocommit=True) as postgres:
            return postgres.execute(statement.encode()).fetchall()
    with closing(sqlite3.connect(f"file:{spec.database_file}?mode=ro", uri=True)) as connection:
        return connection.execute(statement).fetchall()


def inbox(spec: DaemonSpec) -> list[InboxMessage]:
    """Return the accepted messages in their order."""
    found = []
    for inbound, state, session, attempts in rows(
        spec, "SELECT inbound, state, session, attempts FROM inbox ORDER BY id"
    ):
        message = json.loads(inbound)
        found.append(
            InboxMessage(
                event=message["event_id"], text=message["text"], state=state, session=session, attempts=attempts
            )
        )
    return found


def outbox(spec: DaemonSpec) -> list[OutboxReply]:
    return [
        OutboxReply(key=key, state=state, chat=json.loads(message).get("address", {}).get("peer", ""))
        for key, state, message in rows(spec, "SELECT key, state, message FROM outbox ORDER BY id")
    ]


def transcripts(spec: DaemonSpec) -> dict[str, list[Entry]]:
    """Return the entries of all sessions, also of archived ones, by the name of the transcript."""
    lines = _lines_in_files(spec.data_dir) if spec.has_files else _lines_in_rows(spec)
    return {name: [json.loads(line) for line in found] for name, found in lines.items()}


def _lines_in_files(data_dir: Path) -> dict[str, list[bytes]]:
    archive = ArchiveFiles(data_dir / "sessions/archive")
    contents = {path.name: path.read_bytes() for path in sorted((data_dir / "sessions/transcripts").glob("*.jsonl"))}
    for name in archive.names():
        assert name.transcript not in contents, f"{name.transcript} is in two places"
        contents[name.transcript] = b"".join(transcript_of(archive.path_of(name)))
    return {name: content.splitlines() for name, content in contents.items()}


def _lines_in_rows(spec: DaemonSpec) -> dict[str, list[bytes]]:
    found: defaultdict[str, list[bytes]] = defaultdict(list)
    for key, line in rows(spec, "SELECT session, line FROM entry ORDER BY session, seq"):
        found[file_name(key)].append(line.encode())
    return found


def verified(spec: DaemonSpec) -> VerifyReport:
    """Return what `gatehouse sessions verify` reports."""
    if spec.has_files:
        folder = spec.data_dir / "sessions"
        return verify(folder / "index.json", folder / "transcripts", ArchiveFiles(folder / "archive"))
    connect: Callable[[], ReaderConnection] = (
        partial(ReconnectingPostgres, partial(PostgresConnection, spec.storage))
        if spec.is_postgres
        else partial(SqliteReader, spec.database_file)
    )
    row_search = PostgresSearch if spec.is_postgres else SqliteSearch
    with closing(DatabaseStorage(connect, spec.data_dir, row_search=row_search)) as storage:
        return storage.verify()


def remembered(spec: DaemonSpec) -> dict[str, list[tuple[str, str]]]:
    """Return the texts and the origins of all statements by the name of the folder of their scope."""
    folders = [path for path in (spec.data_dir / "memory").glob("*") if path.is_dir()]
    found = {folder.name: MemoryStore(folder).read() for folder in folders}
    assert not any(memory.problems for memory in found.values())
    return {name: [(each.text, each.origin) for each in memory.statements] for name, memory in found.items()}


def places_with(spec: DaemonSpec, word: str) -> Iterator[str]:
    """Yield the files and tables that contain `word`. PostgreSQL overwrites the space of deleted rows when it likes."""
    for path in spec.data_dir.rglob("*"):
        if path.is_file() and word.encode() in path.read_bytes():
            yield path.name
    if spec.is_postgres:
        for table in _TABLES:
            if any(word in _as_text(value) for row in rows(spec, f"SELECT * FROM {table}") for value in row):  # noqa: S608 - constants only
                yield table


def _as_text(value: object) -> str:
    return bytes(value).decode(errors="replace") if isinstance(value, bytes | memoryview) else str(value)
