"""Shared by the tests of databases: plain connections of both kinds, and rows for entries of transcripts."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from config import StorageEngine, StorageSettings
from gateway.sessions.entries import Entry
from gateway.sessions.storage.codec import stamp

SESSION = "5c1dd4f6-0f3b-4d5e-9a57-3f4b8b8e3a11"
START = datetime(2026, 11, 18, 9, 30, 0, 123456, tzinfo=UTC)


class Sql:
    """A connection of `sqlite3` or psycopg, with `?` as the placeholder."""

    def __init__(self, connection: Any) -> None:  # noqa: ANN401 - either of both.
        self._connection = connection

    def __call__(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        if not isinstance(self._connection, sqlite3.Connection):
            statement = statement.replace("?", "%s")
        cursor = self._connection.execute(statement, parameters or None if not self.is_sqlite else parameters)
        return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    @property
    def is_sqlite(self) -> bool:
        return isinstance(self._connection, sqlite3.Connection)


@contextmanager
def connected(storage: StorageSettings) -> Iterator[Sql]:
    """Yield a connection that commits each statement, and enforces foreign keys."""
    if storage.engine is StorageEngine.SQLITE:
        with closing(sqlite3.connect(storage.path, isolation_level=None)) as file:
            file.execute("PRAGMA foreign_keys = ON")
            yield Sql(file)
    else:
        with psycopg.connect(storage.url, autocommit=True) as server:
            yield Sql(server)


def microseconds(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def store_session(sql: Sql, key: str, *, session_id: str = SESSION, repo: str | None = None, **columns: object) -> None:
    row: dict[str, object] = {
        "key": key,
        "scope": key.partition("#")[0],
        "number": 1,
        "id": session_id,
        "agent": "main",
        "repo": repo,
        "status": "active",
        "created_us": microseconds(START),
        "updated_us": microseconds(START + timedelta(hours=1)),
        "state": "{}",
        **columns,
    }
    if repo is not None:
        sql("INSERT INTO repo (id, name, path) VALUES (?, ?, '/src') ON CONFLICT DO NOTHING", repo, repo.title())
    marks = ", ".join("?" * len(row))
    sql(f"INSERT INTO session ({', '.join(row)}) VALUES ({marks})", *row.values())  # noqa: S608 - column names.


def store_entries(sql: Sql, key: str, entries: Sequence[Entry], *, first_seq: int = 1) -> list[Entry]:
    """Insert entries as a gateway does, and return them as they were stored."""
    stored = []
    for seq, entry in enumerate(entries, start=first_seq):
        stamped, line = stamp(entry, seq=seq, now=START + timedelta(seconds=seq))
        stored.append(stamped)
        kind = type(entry).__struct_config__.tag
        text = line.decode().removesuffix("\n")
        insert = "INSERT INTO entry (session, seq, type, at_us, line) VALUES (?, ?, ?, ?, ?)"
        sql(insert, key, seq, kind, microseconds(stamped.ts), text)
    return stored
