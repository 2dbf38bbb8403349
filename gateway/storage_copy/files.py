"""Sessions in files as the source or the target of a copy."""

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from shutil import copyfile
from uuid import uuid4

import msgspec
import structlog
from msgspec.structs import replace

from config.files import fsync_directory, make_private_directory, write_atomically
from gateway.data_dir import UNFINISHED_COPY_FILE
from gateway.errors import Refused
from gateway.private_files import CREATE, open_private, opened, prepare_private_folder, read_private, write_all
from gateway.sessions import index
from gateway.sessions.keys import file_name, parse_key
from gateway.sessions.recovery import group_by_scope
from gateway.sessions.state import SessionState
from gateway.sessions.storage.archive import (
    ArchivedName,
    ArchivedSession,
    ArchiveFiles,
    read_with_id,
    transcript_of,
)
from gateway.sessions.storage.archived_transcript import DamagedArchive
from gateway.sessions.storage.codec import UnreadableTranscript
from gateway.sessions.storage.transcript import lines_forwards
from gateway.spool import schema
from gateway.spool.copies import TABLES
from gateway.storage_copy.contents import Row, StoredSession, read_table
from gateway.storage_copy.transcript_lines import RawLines, TranscriptLines, split_lines

log: structlog.stdlib.BoundLogger = structlog.get_logger()

SPOOL = "spool.db"
_SMALL = 1024 * 1024
"""A transcript up to this size is read once, and held in memory."""
_WRITE_BYTES = 256 * 1024
_COPY = ".backup-"
"""The next backup removes copies of the spool that a killed process has left."""

_encode_state = msgspec.json.Encoder().encode
_decode_state = msgspec.json.Decoder(SessionState).decode


class FileReader:
    """Reads a data directory that the caller has locked. Call `close` at the end.

    Nothing is repaired. Entries that a crash has left in the journal count as if they were in the transcripts.
    """

    def __init__(self, directory: Path, identity: str = "") -> None:
        self.identity = identity or f"files:{directory.resolve()}"
        self.left_out = 0
        self.unreadable: list[str] = []
        self._directory = directory
        self._transcripts = directory / "sessions/transcripts"
        self._archive = ArchiveFiles(directory / "sessions/archive")
        self._copies: list[Path] = []
        self._spool = self._open_spool()

    def close(self) -> None:
        self._spool.close()
        for path in self._copies:
            path.unlink(missing_ok=True)

    def session_count(self) -> int:
        return len(self._sizes()) + sum(1 for _ in self._archived_names())

    def repos(self) -> list[Row]:
        return []  # The settings have them.

    def rows(self, table: str) -> Iterator[Row]:
        return read_table(self._spool, table)

    def sessions(self) -> Iterator[StoredSession]:
        contents = self._index()
        journaled = {file_name(key): key for (key,) in self._spool.execute("SELECT DISTINCT session FROM notes")}
        deleted = {*contents.doomed, *(key for (key,) in self._spool.execute("SELECT session FROM deletions"))}
        gone = set(map(file_name, deleted))
        names = {**self._sizes(), **dict.fromkeys(journaled, 0)}
        present = names.keys() - gone
        for scope in contents.scopes.values():
            for key, state in _listed(scope).items():
                name = file_name(key)
                if names.pop(name, None) is not None and name in present:
                    yield from self._live(name, journaled.get(name), state)
        for name in sorted(names.keys() & present):
            yield from self._live(name, journaled.get(name), None)
        for archived in self._archived_names():
            # A crash can leave a session in both places. Then its transcript is newer.
            if archived.transcript not in present and archived.transcript not in gone:
                yield from self._archived(self._archive.path_of(archived))

    def _live(self, name: str, journal_key: str | None, known: SessionState | None) -> Iterator[StoredSession]:
        path = self._transcripts / name
        raw: RawLines = partial(lines_forwards, path)
        size = -1
        try:
            with suppress(FileNotFoundError):
                size = path.lstat().st_size
            if 0 <= size <= _SMALL:
                small = list(lines_forwards(path))
                raw = partial(iter, small)
            elif size < 0:
                raw = partial(iter, ())
            if journal_key is not None:
                raw = partial(_with_journal, raw, self._journal(journal_key))
            lines = TranscriptLines(name, raw)
            trusted = known is not None and known.size == size and known.id and journal_key is None
            state = known if known is not None and trusted else self._folded(lines, known)
            yield self._stored(lines, state, is_small=size <= _SMALL)
        except (UnreadableTranscript, OSError) as error:
            log.warning("transcript_not_copied", file=name, reason=str(error))
            self.unreadable.append(name)

    @staticmethod
    def _folded(lines: TranscriptLines, known: SessionState | None) -> SessionState:
        state = lines.state()
        # A session keeps its id, even if its header was lost and had to be written again.
        return replace(state, id=known.id if known is not None and known.id else state.id)

    def _archived(self, path: Path) -> Iterator[StoredSession]:
        about = read_with_id(path)
        if about is None or self._archive.path(about.key) != path:
            log.warning("archived_session_not_copied", file=path.name)
            self.unreadable.append(path.name)
            return
        try:
            lines = TranscriptLines(file_name(about.key), lambda: split_lines(transcript_of(path)))
            is_small = about.state.size <= _SMALL
            yield self._stored(lines, about.state, is_small=is_small, archived_at=about.archived_at, why=about.why)
        except (DamagedArchive, UnreadableTranscript, OSError) as error:
            log.warning("archived_session_not_copied", file=path.name, reason=str(error))
            self.unreadable.append(path.name)

    def _stored(
        self,
        lines: TranscriptLines,
        state: SessionState,
        *,
        is_small: bool,
        archived_at: datetime | None = None,
        why: str = "",
    ) -> StoredSession:
        """Read all lines before the first one is copied: a transcript that cannot be read is not copied in part."""
        kept = list(lines) if is_small else lines
        size = sum(map(len, kept))
        if size != state.size and (lines.left_out or archived_at is None):
            state = replace(state, size=size)
        self.left_out += lines.left_out
        return StoredSession(key=lines.key, state=state, lines=iter(kept), archived_at=archived_at, why=why)

    def _archived_names(self) -> Iterator[ArchivedName]:
        with suppress(FileNotFoundError):
            yield from self._archive.names()

    def _sizes(self) -> dict[str, int]:
        try:
            with os.scandir(self._transcripts) as files:
                return {
                    file.name: file.stat(follow_symlinks=False).st_size
                    for file in files
                    if file.name.endswith(".jsonl") and not file.name.startswith(".")
                }
        except FileNotFoundError:
            return {}

    def _index(self) -> index.RawIndex:
        try:
            return index.decode_raw(read_private(self._directory / "sessions/index.json"))
        except (OSError, ValueError, RecursionError):  # The transcripts have everything.
            return index.decode_raw(b'{"scopes":{}}')

    def _journal(self, key: str) -> list[tuple[int, bytes]]:
        return self._spool.execute("SELECT seq, line FROM notes WHERE session = ? ORDER BY seq", (key,)).fetchall()

    def _open_spool(self) -> sqlite3.Connection:
        """Open the spool without changing its files. If it has a WAL, or is of an older version, open a copy of it."""
        path = self._directory / SPOOL
        wal = path.with_name(f"{SPOOL}-wal")
        if not path.exists():
            connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            schema.migrate(connection)
            return connection
        options = "mode=ro&immutable=1"
        if (wal.exists() and wal.stat().st_size) or _is_older(path):
            copy = self._directory / f"{_COPY}{uuid4().hex}"
            for source, target in ((path, copy), (wal, copy.with_name(f"{copy.name}-wal"))):
                if source.exists():
                    self._copies.append(target)
                    os.close(open_private(target, CREATE))
                    copyfile(source, target)
            self._copies.append(copy.with_name(f"{copy.name}-shm"))
            path, options = copy, "mode=rw"
        connection = sqlite3.connect(
            f"{path.as_uri()}?{options}", uri=True, isolation_level=None, check_same_thread=False
        )
        if self._copies:
            schema.migrate(connection)
        return connection


def _listed(scope: index.EncodedScope) -> dict[str, SessionState]:
    try:
        return index.decode_scope(scope).sessions
    except (ValueError, RecursionError):  # The transcripts have everything.
        return {}


def _is_older(path: Path) -> bool:
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        try:
            return schema.version_of(connection) < len(schema.MIGRATIONS)
        except schema.Newer as newer:
            raise Refused(f"The spool {path} was written by a newer Gatehouse (its format is {newer}).") from newer
        except (schema.NotOurs, sqlite3.DatabaseError) as error:
            raise Refused(
                f"The spool {path} is damaged ({error}). Start and stop the gateway once, which sets it aside."
            ) from error


def _with_journal(raw: RawLines, journal: list[tuple[int, bytes]]) -> Iterator[bytes]:
    """Yield the lines of a transcript before those of the journal, then the latter."""
    first = journal[0][0]
    for line in raw():
        if (seq := _seq_of(line)) is not None and seq >= first:
            break
        yield line if line.endswith(b"\n") else line + b"\n"
    yield from (line for _, line in journal)


class _Head(msgspec.Struct):
    seq: int


_decode_head = msgspec.json.Decoder(_Head).decode


def _seq_of(line: bytes) -> int | None:
    try:
        return _decode_head(line).seq
    except (ValueError, RecursionError):
        return None


@dataclass(slots=True)
class _NewScope:
    sessions: dict[str, bytes]
    archived: list[int]


class FileWriter:
    """Writes a copy as files of a data directory that the caller has locked.

    Only if it `is_durable`, the files are on the disk before the copy counts as complete.
    """

    def __init__(self, directory: Path, *, is_durable: bool = True) -> None:
        self.identity = f"files:{directory.resolve()}"
        self._is_durable = is_durable
        self._directory = directory
        self._transcripts = directory / "sessions/transcripts"
        self._index = directory / "sessions/index.json"
        # Everything is synced at once, before the mark is removed: 100,000 calls of fsync would take minutes.
        self._archive = ArchiveFiles(directory / "sessions/archive", fsync=lambda _: None)
        self._mark = directory / UNFINISHED_COPY_FILE
        self._scopes: dict[str, _NewScope] = {}
        self._session_count = 0
        self._unfinished_spool = directory / f".{SPOOL}.copy"
        self._spool: sqlite3.Connection | None = None

    def start(self, source: str) -> None:
        if self._mark.exists():
            if read_private(self._mark).decode(errors="replace") != source:
                raise Refused(
                    f"{self._directory} has an unfinished copy of another storage. Name another folder, or delete it."
                )
        else:
            if has_sessions(self._directory):
                raise Refused(
                    f"{self._directory} already has sessions or a spool. Name an empty folder with --data-dir, or add "
                    "--replace to move them aside. Nothing was changed."
                )
            write_atomically(self._mark, source.encode())
        prepare_private_folder(self._directory / "sessions")
        prepare_private_folder(self._transcripts)
        self._archive.prepare()
        for outdated in (self._directory / "sessions").glob("search.db*"):  # The gateway builds it again.
            outdated.unlink()
        self._index.unlink(missing_ok=True)
        self._index.with_suffix(".clean").unlink(missing_ok=True)

    def has(self, session: StoredSession) -> bool:
        path = self._path(session)
        if session.archived_at is not None:
            about = read_with_id(path) if path.exists() else None
            is_there = about is not None and about == _about(session)
        else:
            is_there = path.is_file() and path.stat().st_size == session.state.size
        if is_there:
            self._remember(session)
        return is_there

    def add(self, session: StoredSession, lines: Iterator[bytes]) -> None:
        path = self._transcripts / file_name(session.key)
        unfinished = self._transcripts / f".{path.name}.copy"
        unfinished.unlink(missing_ok=True)
        size = 0
        with opened(unfinished, CREATE) as descriptor:
            for block in _blocks(lines):
                write_all(descriptor, block)
                size += len(block)
        if session.archived_at is None:
            unfinished.replace(path)
        else:
            self._archive.write(_about(session), unfinished, size)
            unfinished.unlink()
        self._remember(session)

    def finish_sessions(self, keys: Iterable[str], repos: list[Row]) -> None:
        del repos  # The settings have them.
        wanted = {name for found in self._scopes.values() for name in map(file_name, found.sessions)}
        for path in self._transcripts.iterdir():
            if path.name.endswith((".jsonl", ".copy")) and path.name not in wanted:
                path.unlink()
        archived = set(map(self._archive.path, keys))
        for name in list(self._archive.names()):
            if self._archive.path_of(name) not in archived or name.transcript in wanted:
                self._archive.path_of(name).unlink()
        now = datetime.now(UTC)
        self._session_count = sum(len(found.sessions) for found in self._scopes.values())
        index.write(self._index, self._encoded_scopes(now), (), lambda _: None)
        self._scopes.clear()  # The verification needs the memory.

    def write_table(self, table: str, rows: Iterator[Row]) -> None:
        columns = TABLES[table]
        if self._spool is None:
            self._unfinished_spool.unlink(missing_ok=True)
            os.close(open_private(self._unfinished_spool, CREATE))
            self._spool = sqlite3.connect(self._unfinished_spool, isolation_level=None, check_same_thread=False)
            self._spool.execute("PRAGMA auto_vacuum = INCREMENTAL").fetchall()
            self._spool.execute("PRAGMA synchronous = OFF").fetchall()  # See `finish_tables`.
            schema.migrate(self._spool)
            self._spool.execute("BEGIN IMMEDIATE")
        marks = ", ".join("?" * len(columns))
        self._spool.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows)  # noqa: S608 - constants only

    def finish_tables(self) -> None:
        assert self._spool is not None  # noqa: S101 - all tables were written before.
        self._spool.execute("COMMIT")
        self._spool.close()
        self._spool = None
        self._unfinished_spool.replace(self._directory / SPOOL)
        self._sync()

    def reader(self) -> FileReader:
        return FileReader(self._directory)

    def discard(self, keys: Iterable[str]) -> None:
        for key in keys:
            (self._transcripts / file_name(key)).unlink(missing_ok=True)
            self._archive.delete(key)

    def finish(self) -> None:
        index.mark_clean(self._index, self._transcripts, self._session_count)
        self._sync()
        self._mark.unlink()

    def _sync(self) -> None:
        if self._is_durable:
            os.sync()

    def _path(self, session: StoredSession) -> Path:
        if session.archived_at is not None:
            return self._archive.path(session.key)
        return self._transcripts / file_name(session.key)

    def _remember(self, session: StoredSession) -> None:
        """Keep what the index has to say, encoded: that takes much less memory."""
        scope, number = parse_key(session.key)
        found = self._scopes.setdefault(scope, _NewScope({}, []))
        if session.archived_at is None:
            found.sessions[session.key] = _encode_state(session.state)
        else:
            found.archived.append(number)

    def _encoded_scopes(self, now: datetime) -> Iterator[tuple[str, bytes]]:
        for name, found in self._scopes.items():
            states = {key: _decode_state(state) for key, state in found.sessions.items()}
            archived = {name: found.archived} if found.archived else {}
            for scope in group_by_scope(states, {}, set(), archived, now).values():
                yield name, index.encode_scope(scope)


def has_sessions(directory: Path) -> bool:
    """Return True if a data directory has a spool, transcripts or archived sessions."""
    folders = (directory / "sessions/transcripts").glob("*.jsonl"), (directory / "sessions/archive").glob("*/*.gz")
    return (directory / SPOOL).exists() or any(chain(*folders))


def move_aside(directory: Path, now: datetime) -> Path:
    """Move the sessions and the spool of a data directory to a new folder beside it, or in it if that is impossible."""
    target = directory.parent / f"{directory.name}.before-migrate-{now:%Y%m%dT%H%M%SZ}"
    if not os.access(directory.parent, os.W_OK):
        target = directory / target.name
    make_private_directory(target)
    for path in (directory / "sessions", *directory.glob("spool.*")):
        with suppress(FileNotFoundError):
            path.rename(target / path.name)
    fsync_directory(directory)
    return target


def _about(session: StoredSession) -> ArchivedSession:
    assert session.archived_at is not None  # noqa: S101 - only archived sessions have a file there.
    return ArchivedSession(key=session.key, archived_at=session.archived_at, why=session.why, state=session.state)


def _blocks(lines: Iterable[bytes]) -> Iterator[bytes]:
    block = bytearray()
    for line in lines:
        block += line
        if len(block) >= _WRITE_BYTES:
            yield bytes(block)
            block.clear()
    if block:
        yield bytes(block)
