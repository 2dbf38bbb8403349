"""The content of a storage as it is copied and compared: sessions with their lines, and rows of the spool."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from typing import Any, Protocol

import msgspec

from gateway.database.connection import Cursor, Parameters
from gateway.sessions.state import SessionState
from gateway.spool.copies import TABLES

Row = Sequence[Any]  # Any: the types of the columns.

PRIMARY_KEYS: Mapping[str, tuple[str, ...]] = {
    "seen": ("id",),
    "inbox": ("id",),
    "outbox": ("id",),
    "drafts": ("turn",),
    "facts": ("name",),
    "usage": ("day", "person", "model"),
    "agent_usage": ("day", "person", "model", "agent"),
    "reminders": ("id",),
    "schedules": ("id",),
    "schedule_runs": ("schedule", "number"),
    "deletions": ("session",),
}
"""Their order is the same in each engine: they compare text by its bytes."""

UNFINISHED_COPY = "storage.unfinished_copy"
"""The fact that marks a database as an unfinished copy. Its value names the source.

Facts whose names start with this one are never copied themselves.
"""

ROWS_PER_PAGE = 500
_BINARY = {"inbound", "receipt", "message", "about"}

_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSession:
    """A session of a storage. `lines` can be read once, and only before the next session is asked for."""

    key: str
    state: SessionState
    lines: Iterator[bytes]
    archived_at: datetime | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Checksum:
    """The number of lines or rows, and a digest of all of them in order."""

    count: int
    digest: bytes


class ChecksumCounter:
    """Passes lines or rows on, and computes their checksum on the way."""

    def __init__(self) -> None:
        self.count = 0
        self._digest = blake2b(digest_size=16)

    def lines(self, session: "StoredSession") -> Iterator[bytes]:
        """Include whether the session is archived."""
        archived = (session.archived_at, session.why) if session.archived_at else None
        self._digest.update(_encode(archived))
        for line in session.lines:
            self.count += 1
            self._digest.update(line)
            yield line

    def rows(self, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            self.count += 1
            self._digest.update(_encode(row))
            yield row

    def result(self) -> Checksum:
        return Checksum(self.count, self._digest.digest())


class Queries(Protocol):
    """A connection that is only read."""

    def execute(self, sql: str, parameters: Parameters = ..., /) -> Cursor: ...


class StorageReader(Protocol):
    """Reads a storage that does not change during the copy, and changes nothing itself."""

    left_out: int
    """Lines of transcripts that `sessions` has left out so far: they are no entries, or are there twice."""
    unreadable: list[str]
    """Names of transcripts and of archived sessions that `sessions` could not read at all."""

    @property
    def identity(self) -> str:
        """Names the storage for people, without a password. It tells whether two copies have the same source."""

    def session_count(self) -> int:
        """Return about how many sessions there are, for showing progress."""

    def sessions(self) -> Iterator[StoredSession]:
        """Yield all sessions, archived ones too."""

    def repos(self) -> list[Row]:
        """Return the rows of the table `repo`."""

    def rows(self, table: str) -> Iterator[Row]:
        """Yield the rows of a table of the spool by primary key."""

    def close(self) -> None: ...


class StorageWriter(Protocol):
    """Writes a copy into a storage."""

    @property
    def identity(self) -> str: ...

    def start(self, source: str) -> None:
        """Mark the storage as an unfinished copy. Raises `Refused` if it has other data."""

    def has(self, session: StoredSession) -> bool:
        """Return True if an interrupted copy has written this session, as it is now."""

    def add(self, session: StoredSession, lines: Iterator[bytes]) -> None: ...

    def finish_sessions(self, keys: Iterable[str], repos: list[Row]) -> None:
        """Make the sessions durable, and remove those that an interrupted copy has written but are not in `keys`."""

    def write_table(self, table: str, rows: Iterator[Row]) -> None:
        """Replace all rows of a table of the spool."""

    def finish_tables(self) -> None:
        """Make the tables durable."""

    def reader(self) -> StorageReader:
        """Return a reader of everything that was written."""

    def discard(self, keys: Iterable[str]) -> None:
        """Remove sessions that turned out to be wrong, so that the next run copies them again."""

    def finish(self) -> None:
        """Remove the mark: the copy is complete."""


def read_table(connection: Queries, table: str) -> Iterator[Row]:
    """Yield the rows of a table of the spool by primary key, in pages. Leaves out the mark of an unfinished copy."""
    columns, key = TABLES[table], PRIMARY_KEYS[table]
    places = [columns.index(name) for name in key]
    order, marks = ", ".join(key), ", ".join("?" * len(key))
    select = f"SELECT {', '.join(columns)} FROM {table}"  # noqa: S608 - constants only
    where, last = "", ()
    while page := connection.execute(f"{select}{where} ORDER BY {order} LIMIT {ROWS_PER_PAGE}", last).fetchall():
        for row in page:
            if table != "facts" or not row[0].startswith(UNFINISHED_COPY):
                yield tuple(map(_comparable, columns, row))
        where, last = f" WHERE ({order}) > ({marks})", tuple(page[-1][at] for at in places)
        if len(page) < ROWS_PER_PAGE:
            return


def _comparable(column: str, value: Any) -> Any:  # noqa: ANN401 - the types of the columns.
    """Return a value as every engine can store it."""
    if isinstance(value, str):
        # SQLite keeps text in a binary column as text, and PostgreSQL has no NUL in text.
        return value.encode() if column in _BINARY else value.replace("\0", "\ufffd")
    return value
