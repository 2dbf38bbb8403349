"""The search index of transcripts, also of archived ones: a SQLite database with FTS5 beside them.

It is a cache. What it lacks is searched by reading the transcripts. If it is lost, damaged or of another version, it is
built again in the background. It is written after a flush, and only its checkpoints need an fsync.
"""

import json
import os
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from time import monotonic, sleep
from typing import NamedTuple, TypeVar

import structlog
from msgspec import Struct

from gateway.private_files import CREATE, FILE_MODE, open_private, opened, require_file
from gateway.sessions.keys import file_name
from gateway.sessions.storage.archive import ArchiveFiles
from gateway.sessions.storage.archived_transcript import ArchivedTranscript, DamagedArchive
from gateway.sessions.storage.search import (
    MAX_MATCHES,
    MESSAGES_PER_PLACE,
    ROWS_PER_STEP,
    match_all,
    sampled_places,
    searched_text,
)

log: structlog.stdlib.BoundLogger = structlog.get_logger()

VERSION = 1
MESSAGES_PER_STEP = 128
"""Messages that one transaction adds. A search waits for it."""
BLOCK = 64 * 1024
CHECKED_BYTES = 256
"""Bytes before the end of the indexed part. If they change, another program has replaced the transcript."""
MAX_PAUSE = 0.02

_OFFSET_BITS = 36
"""The bits of a row's id that are the offset of a line. Those above are the number of the transcript."""

_SCHEMA = f"""
CREATE TABLE transcript (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, size INTEGER NOT NULL, checked BLOB NOT NULL
);
CREATE VIRTUAL TABLE search_text USING fts5(
    folded, columnsize=0, detail=none, tokenize='trigram case_sensitive 1'
);
PRAGMA user_version = {VERSION};
"""
_CHOSEN = "SELECT id, name, size FROM transcript WHERE name IN (SELECT value FROM json_each(?))"

_T = TypeVar("_T")


class Matches(Struct, frozen=True, kw_only=True):
    """`sizes`: how much of each transcript is indexed. `offsets`: lines that may contain the words; None: too many."""

    sizes: dict[str, int]
    offsets: dict[str, list[int]] | None


class _Source(NamedTuple):
    """A transcript by the name of its file, and the archived file that has it if there is no such file."""

    name: str
    archived: Path | None


class SearchIndex:
    """Searches run in one thread, and changes in others. Each step holds the lock for some milliseconds."""

    def __init__(self, path: Path, transcripts: Path, archive: ArchiveFiles) -> None:
        self._path = path
        self._transcripts = transcripts
        self._archive = archive
        # The archived transcript that is being indexed. Unpacking goes on where the last step has ended.
        self._unpacked: ArchivedTranscript | None = None
        self._lock = Lock()
        self._connection: sqlite3.Connection | None = None
        self._is_closed = False
        self.is_complete = False
        """Whether `update_all` has looked at all transcripts since the index was opened."""

    def update_all(self) -> None:
        """Index what is missing of all transcripts. This may take minutes, and leaves time for others in between."""
        self.is_complete = True
        with suppress(OSError):
            self._update(self._sources())

    def update(self, keys: Iterable[str]) -> None:
        """Index what is missing of the transcripts of these sessions."""
        self._update(_Source(file_name(key), self._archive.path(key)) for key in keys)

    def _sources(self) -> Iterator[_Source]:
        with os.scandir(self._transcripts) as files:
            for file in files:
                if file.name.endswith(".jsonl"):
                    yield _Source(file.name, None)
        for name in self._archive.names():
            yield _Source(name.transcript, self._archive.path_of(name))

    def _update(self, sources: Iterator[_Source]) -> None:
        current = next(sources, None)

        def step(connection: sqlite3.Connection) -> None:
            nonlocal current
            left = MESSAGES_PER_STEP
            connection.execute("BEGIN")
            while left > 0 and current is not None:
                is_whole, count = self._index_block(connection, current)
                left -= 1 + count
                if is_whole:
                    current = next(sources, None)
            connection.execute("COMMIT")

        try:
            while current is not None and not self._is_closed:
                started = monotonic()
                try:
                    self._run(step)
                except (OSError, sqlite3.Error) as error:  # Searches read the transcripts instead.
                    self.is_complete = False
                    log.warning("search_index_not_written", reason=str(error))
                    return
                sleep(min(MAX_PAUSE, monotonic() - started))
        finally:
            self._close_unpacked()

    def _index_block(self, connection: sqlite3.Connection, source: _Source) -> tuple[bool, int]:
        """Index the next lines of a transcript. Return whether it is whole now, and how many messages were added."""
        try:
            with opened(self._transcripts / source.name) as descriptor:
                size = os.fstat(descriptor).st_size
                return _index_lines(connection, source.name, size, partial(os.pread, descriptor))
        except FileNotFoundError:
            if source.archived is None:
                return True, 0
        except OSError:  # It cannot be read.
            return True, 0
        try:
            return self._index_archived(connection, source.name, source.archived)
        except (OSError, DamagedArchive):  # It was restored or deleted, or cannot be read.
            return True, 0

    def _index_archived(self, connection: sqlite3.Connection, name: str, path: Path) -> tuple[bool, int]:
        unpacked = self._unpacked
        if unpacked is None or unpacked.path != path:
            self._close_unpacked()
            unpacked = self._unpacked = ArchivedTranscript(path)
        # A session whose file is gone was deleted, and its text may have been removed from the index since.
        elif not path.exists():
            return True, 0
        known = connection.execute("SELECT size FROM transcript WHERE name = ?", (name,)).fetchone()
        if known is not None and known[0] == unpacked.size:  # It has not changed since it was archived.
            return True, 0
        return _index_lines(connection, name, unpacked.size, unpacked.read)

    def _close_unpacked(self) -> None:
        if self._unpacked is not None:
            self._unpacked.close()
            self._unpacked = None

    def purge(self, names: Sequence[str]) -> None:
        """Remove all text of deleted sessions from the files. Raises `OSError`."""

        def remove(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN")
            for number, _, _ in connection.execute(_CHOSEN, (json.dumps(names),)).fetchall():
                _remove(connection, number)
            connection.execute("COMMIT")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

        if not self._path.exists():
            return
        try:
            self._run(remove)
        except sqlite3.Error as error:
            raise OSError(f"The search index can't be changed: {error}") from error

    def sample(self, names: Sequence[str], words: Sequence[str]) -> tuple[int, list[int]]:
        """Return the size of a sample of the messages, and how many of them contain each of the folded `words`."""
        counts = "count(*)" + ", count(*) FILTER (WHERE instr(folded, ?))" * len(words)

        def find(connection: sqlite3.Connection) -> list[tuple[int, ...]]:
            found = connection.execute(_CHOSEN, (json.dumps(names),)).fetchall()
            return [
                connection.execute(
                    f"SELECT {counts} FROM (SELECT folded FROM search_text WHERE rowid >= ? AND rowid < ? LIMIT ?)",  # noqa: S608 - constants only
                    (
                        *words,
                        *(found[at][0] << _OFFSET_BITS | offset, (found[at][0] + 1) << _OFFSET_BITS),
                        MESSAGES_PER_PLACE,
                    ),
                ).fetchone()
                for at, offset in sampled_places([size for _, _, size in found])
            ]

        size, *contain = map(sum, zip(*(self._read(find) or [(0,) * (1 + len(words))]), strict=True))
        return size, contain

    def matches(self, names: Sequence[str], words: Sequence[str], compared: Sequence[str] = ()) -> Matches | None:
        """Find the lines that may contain all of the folded `words`, and that contain those that are `compared`.

        None: the index cannot tell.
        """
        match = match_all(words)
        if not match:
            return None

        def find(connection: sqlite3.Connection) -> Matches:
            chosen = json.dumps(names)
            found = {number: (name, size) for number, name, size in connection.execute(_CHOSEN, (chosen,))}
            offsets: defaultdict[str, list[int]] = defaultdict(list)
            rows: list[tuple[int, int]] = []
            if found:
                rows = connection.execute(
                    "SELECT rowid >> ?, rowid & ? FROM search_text WHERE search_text MATCH ? AND rowid BETWEEN ? AND ? "  # noqa: S608 - constants only
                    "AND rowid >> ? IN (SELECT id FROM transcript WHERE name IN (SELECT value FROM json_each(?))) "
                    f"{_contains(compared)} LIMIT ?",
                    (
                        *(_OFFSET_BITS, (1 << _OFFSET_BITS) - 1, match),
                        *(min(found) << _OFFSET_BITS, (max(found) + 1) << _OFFSET_BITS),
                        *(_OFFSET_BITS, chosen, *compared, MAX_MATCHES + 1),
                    ),
                ).fetchall()
            for number, offset in rows:
                offsets[found[number][0]].append(offset)
            sizes = dict(found.values())
            return Matches(sizes=sizes, offsets=offsets if len(rows) <= MAX_MATCHES else None)

        return self._read(find)

    def offsets(self, name: str, words: Sequence[str], compared: Sequence[str] = ()) -> Iterator[int]:
        """Yield the offsets of the lines of a transcript that `matches` would find, the last one first."""
        match = match_all(words)
        before = 1 << _OFFSET_BITS

        def find(connection: sqlite3.Connection) -> list[tuple[int]]:
            return connection.execute(
                "SELECT s.rowid & ? FROM transcript t CROSS JOIN search_text s "  # noqa: S608 - constants only
                "WHERE t.name = ? AND s.search_text MATCH ? AND s.rowid >= t.id << ? AND s.rowid < (t.id << ?) + ? "
                f"{_contains(compared)} ORDER BY s.rowid DESC LIMIT ?",
                (
                    *((1 << _OFFSET_BITS) - 1, name, match),
                    *(_OFFSET_BITS, _OFFSET_BITS, before, *compared, ROWS_PER_STEP),
                ),
            ).fetchall()

        while found := self._read(find) or []:
            for (offset,) in found:
                yield offset
            before = found[-1][0]

    def close(self) -> None:
        """End a running update, and close the file."""
        self._is_closed = True
        with self._lock:
            self._disconnect()

    def _read(self, work: Callable[[sqlite3.Connection], _T]) -> _T | None:
        """Run a query. None: the index cannot answer, so the transcripts have to be read."""
        if not self._path.exists():
            return None
        try:
            return self._run(work)
        except (OSError, sqlite3.Error) as error:
            log.warning("search_index_not_read", reason=str(error))
            return None

    def _run(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        with self._lock:
            if self._is_closed:
                raise OSError("The search index is closed")
            try:
                if self._connection is None:
                    self._connection = self._open()
                return work(self._connection)
            except sqlite3.Error as error:
                if self._connection is not None and self._connection.in_transaction:
                    with suppress(sqlite3.Error):
                        self._connection.execute("ROLLBACK")
                if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                    self._discard(str(error))
                raise

    def _open(self) -> sqlite3.Connection:
        """Open the file. One of another version is replaced."""
        for path in self._files():
            require_file(path)  # SQLite would follow a link, and might wait for a pipe.
        try:
            os.close(open_private(self._path, CREATE))
        except FileExistsError:
            self._path.chmod(FILE_MODE)
        connection = _connect(self._path)
        try:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version == VERSION:
                return connection
            if connection.execute("SELECT count(*) FROM sqlite_master").fetchone() != (0,):
                connection.close()
                self._discard(f"it has version {version}")
                os.close(open_private(self._path, CREATE))
                connection = _connect(self._path)
            connection.executescript(_SCHEMA)
        except BaseException:
            connection.close()
            raise
        return connection

    def _discard(self, reason: str) -> None:
        """Delete the files. The next flush builds the index again."""
        log.warning("search_index_discarded", reason=reason)
        self._disconnect()
        self.is_complete = False
        for path in self._files():
            path.unlink(missing_ok=True)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _files(self) -> tuple[Path, ...]:
        return tuple(self._path.with_name(f"{self._path.name}{suffix}") for suffix in ("", "-wal", "-shm"))


def _contains(words: Sequence[str]) -> str:
    return "AND instr(folded, ?) " * len(words)


def line_at(descriptor: int, offset: int) -> bytes:
    """Return the line that starts at an offset, without its newline."""
    parts: list[bytes] = []
    while block := os.pread(descriptor, BLOCK, offset):
        line, newline, _ = block.partition(b"\n")
        parts.append(line)
        if newline:
            break
        offset += len(block)
    return b"".join(parts)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    # With a WAL, NORMAL is consistent after a power cut, and fsyncs only with a checkpoint.
    for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "secure_delete = ON"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    return connection


def _index_lines(
    connection: sqlite3.Connection, name: str, whole: int, read: Callable[[int, int], bytes]
) -> tuple[bool, int]:
    """Index the next lines of a transcript of the size `whole`. `read` takes a number of bytes and an offset."""
    known = connection.execute("SELECT id, size, checked FROM transcript WHERE name = ?", (name,)).fetchone()
    if known is not None and _check(read, known[1]) != known[2]:
        _remove(connection, known[0])
        known = None
    number, start, _ = known or (None, 0, b"")
    data, end = b"", 0
    while not end and (block := read(BLOCK, start + len(data))):
        data += block
        end = data.rfind(b"\n") + 1
    if not end:
        return True, 0
    if number is None:
        insert = "INSERT INTO transcript (name, size, checked) VALUES (?, 0, x'') RETURNING id"
        (number,) = connection.execute(insert, (name,)).fetchone()
    rows: list[tuple[int, str]] = []
    offset = start
    for line in data[: end - 1].split(b"\n"):
        if (text := searched_text(line)) is not None:
            rows.append((number << _OFFSET_BITS | offset, text))
        offset += len(line) + 1
    connection.executemany("INSERT INTO search_text (rowid, folded) VALUES (?, ?)", rows)
    connection.execute(
        "UPDATE transcript SET size = ?, checked = ? WHERE id = ?", (start + end, _check(read, start + end), number)
    )
    return start + end >= whole, len(rows)


def _check(read: Callable[[int, int], bytes], size: int) -> bytes:
    """Return a digest of the bytes before `size`."""
    start = max(0, size - CHECKED_BYTES)
    return blake2b(read(size - start, start), digest_size=16).digest()


def _remove(connection: sqlite3.Connection, number: int) -> None:
    connection.execute(
        "DELETE FROM search_text WHERE rowid BETWEEN ? AND ?",
        (number << _OFFSET_BITS, ((number + 1) << _OFFSET_BITS) - 1),
    )
    connection.execute("DELETE FROM transcript WHERE id = ?", (number,))
