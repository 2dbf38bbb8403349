"""The archive: one compressed file for each session that was pruned or expired. All functions block.

A file is `archive/<scope>/<number>.<name of its transcript>.gz`. It has two gzip members, a line about the session and
the transcript as it was. So a list needs only the first block of each file, and `zcat` shows everything.
"""

import os
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from itertools import islice
from pathlib import Path
from tempfile import mkstemp
from typing import NamedTuple

import msgspec
import structlog
from msgspec.structs import replace

from config.files import Fsync, fsync_directory, make_private_directory
from gateway.bounded import BoundedDict
from gateway.private_files import open_private, opened, prepare_private_folder, write_all
from gateway.sessions.keys import file_name, packed_id, parse_key
from gateway.sessions.session import SessionMeta, meta_of, with_identity
from gateway.sessions.state import SessionState, UtcTime
from gateway.sessions.storage.archived_transcript import BLOCK, GZIP, DamagedArchive
from gateway.sessions.storage.transcript import header_in

log: structlog.stdlib.BoundLogger = structlog.get_logger()

ARCHIVE_VERSION = 1
FILES_PER_SWEEP = 500
MAX_CACHED = 2_000
"""Archived sessions whose facts are kept in memory, for scopes that are listed or searched again."""

_UNFINISHED = ".archiving-"
_NAME = re.compile(r"([1-9][0-9]{0,17})\.(.+\.jsonl)\.gz")


class ArchivedSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session in the archive. `state` is its state when it was archived, and `why` a `Leaving`."""

    key: str
    archived_at: UtcTime
    why: str
    state: SessionState
    version: int = ARCHIVE_VERSION

    @property
    def meta(self) -> SessionMeta:
        return meta_of(self.key, self.state)


class ArchivedName(NamedTuple):
    """What the name of an archived file says."""

    folder: str
    number: int
    transcript: str


_decode = msgspec.json.Decoder(ArchivedSession).decode


class ArchiveFiles:
    """The files of the archive in the folder `root`."""

    def __init__(self, root: Path, fsync: Fsync = os.fsync) -> None:
        self.root = root
        self.keys_by_id: dict[bytes, str] = {}
        """By `packed_id`, the sessions that were archived since the start, and those that `find_by_id` has found.

        Some may have been restored or deleted since.
        """
        self._fsync = fsync
        # By path, the facts of a file and what tells that it was replaced.
        self._cached = BoundedDict[Path, tuple[tuple[int, int], ArchivedSession]](MAX_CACHED)
        self._are_ids_known = False
        self._unswept: Iterator[ArchivedName] | None = None

    def prepare(self) -> None:
        """Create the folder, and delete files that were incomplete when the last run ended."""
        prepare_private_folder(self.root)
        for unfinished in self.root.glob(f"{_UNFINISHED}*"):
            unfinished.unlink()

    def path(self, key: str) -> Path:
        scope, number = parse_key(key)
        return self.path_of(ArchivedName(folder_of(scope), number, file_name(key)))

    def path_of(self, name: ArchivedName) -> Path:
        return self.root / name.folder / f"{name.number}.{name.transcript}.gz"

    def write(self, session: ArchivedSession, transcript: Path, size: int) -> None:
        """Compress the first `size` bytes of a transcript. The file is durable when this returns.

        It replaces a file of the same session, which an interrupted run has left.
        """
        target = self.path(session.key)
        descriptor, name = mkstemp(dir=self.root, prefix=_UNFINISHED)
        unfinished = Path(name)
        try:
            write_all(descriptor, _compressed([msgspec.json.encode(session) + b"\n"]))
            with opened(transcript) as source:
                packer = zlib.compressobj(wbits=GZIP)
                for begin in range(0, size, BLOCK):
                    block = os.pread(source, min(BLOCK, size - begin), begin)
                    if len(block) < min(BLOCK, size - begin):
                        raise OSError(f"{transcript.name} is shorter than it was")
                    write_all(descriptor, packer.compress(block))
                    if begin + BLOCK < size:  # `ArchivedTranscript` can start here.
                        write_all(descriptor, packer.flush(zlib.Z_FULL_FLUSH))
                write_all(descriptor, packer.flush())
            self._fsync(descriptor)
            is_new_folder = not target.parent.exists()
            make_private_directory(target.parent)
            unfinished.replace(target)
        finally:
            os.close(descriptor)
            unfinished.unlink(missing_ok=True)
        fsync_directory(target.parent, self._fsync)
        if is_new_folder:
            fsync_directory(self.root, self._fsync)
        self.keys_by_id[packed_id(session.state.id)] = session.key

    def delete(self, key: str) -> None:
        """Delete the file of a session, if there is one, and the folder of its scope if that is empty."""
        path = self.path(key)
        try:
            path.unlink()
        except FileNotFoundError:
            return
        fsync_directory(path.parent, self._fsync)
        try:
            path.parent.rmdir()
        except OSError:  # It is not empty.
            return
        fsync_directory(self.root, self._fsync)

    def names(self) -> Iterator[ArchivedName]:
        """Yield the names of all archived files."""
        with os.scandir(self.root) as folders:
            for folder in folders:
                if folder.is_dir(follow_symlinks=False):
                    yield from _names(Path(folder.path))

    def in_scope(self, scope: str) -> list[ArchivedSession]:
        """Return the archived sessions of a scope, newest first. Damaged files are left out, after a log line."""
        names = sorted(_names(self.root / folder_of(scope)), key=lambda name: name.number, reverse=True)
        found = (self._read_cached(self.path_of(name)) for name in names)
        return [session for session in found if session is not None and parse_key(session.key)[0] == scope]

    def _read_cached(self, path: Path) -> ArchivedSession | None:
        try:
            facts = path.stat()
        except OSError:
            return None  # It was restored or deleted in the meantime.
        version = (facts.st_ino, facts.st_mtime_ns)
        known, session = self._cached.get(path, (None, None))
        if session is None or known != version:
            session = self.read_if_sound(path)
            if session is not None:
                self._cached[path] = version, session
        return session

    def find(self, key: str) -> ArchivedSession | None:
        """Return a session if it is in the archive. Raises `DamagedArchive`."""
        try:
            return read_about(self.path(key))
        except FileNotFoundError:
            return None

    def read_if_sound(self, path: Path) -> ArchivedSession | None:
        try:
            return read_about(path)
        except (OSError, DamagedArchive) as error:
            log.warning("archived_session_unreadable", file=path.name, reason=str(error))
            return None

    def find_by_id(self, session_id: str) -> ArchivedSession | None:
        """Return the session with this id. The first call reads a block of each file."""
        packed = packed_id(session_id)
        for _ in range(2):
            if not self._are_ids_known:
                self._read_ids()
                self._are_ids_known = True
            key = self.keys_by_id.get(packed)
            if key is None:
                return None
            found = read_with_id(self.path(key))
            if found is not None:
                return found if found.state.id == session_id else None
            # It was restored or deleted. A move may have archived it under another key before.
            self.keys_by_id.pop(packed, None)
            self._are_ids_known = False
        return None

    def _read_ids(self) -> None:
        for name in self.names():
            session = read_with_id(self.path_of(name))
            # A damaged archive may contain a session that belongs elsewhere.
            if session is not None and self.path(session.key) == self.path_of(name):
                self.keys_by_id.setdefault(packed_id(session.state.id), session.key)

    def contains(self, key: str) -> bool:
        """Return True if there is a file of a session, even a damaged one."""
        return self.path(key).exists()

    def transcript_names(self) -> list[str]:
        """Return the names that the transcripts of all sessions had."""
        return [name.transcript for name in self.names()]

    def expired(self, before: datetime, shards: object = None) -> list[str]:  # noqa: ARG002 - no cluster uses files.
        """Return keys of sessions that were archived before that time. Each call looks at the next files only."""
        if self._unswept is None:
            self._unswept = self.names()
        names = list(islice(self._unswept, FILES_PER_SWEEP))
        if len(names) < FILES_PER_SWEEP:
            self._unswept = None
        found = (self.read_if_sound(self.path_of(name)) for name in names)
        return [session.key for session in found if session is not None and session.archived_at < before]

    def any_in_folder(self, folder: str) -> ArchivedSession | None:
        """Return one session of a folder. It tells which scope the folder belongs to."""
        found = (self.read_if_sound(self.path_of(name)) for name in _names(self.root / folder))
        return next((session for session in found if session is not None), None)

    def transcript(self, key: str) -> Iterator[bytes]:
        """Yield the transcript of a session in blocks. Raises `DamagedArchive` or `OSError`."""
        yield from transcript_of(self.path(key))


def folder_of(scope: str) -> str:
    """Return the name of the folder for the archived sessions of a scope."""
    return file_name(scope).removesuffix(".jsonl")


def read_about(path: Path) -> ArchivedSession:
    """Read the first member of a file. Raises `DamagedArchive` or `OSError`."""
    about = b""
    for block, is_transcript in _members(path):
        if is_transcript:
            break
        about += block
    try:
        session = _decode(about)
        parse_key(session.key)
    except (ValueError, RecursionError) as error:
        raise DamagedArchive(f"its first line is damaged ({error})") from error
    if session.version > ARCHIVE_VERSION:
        raise DamagedArchive(f"it has version {session.version}, this Gatehouse reads {ARCHIVE_VERSION}")
    return session


def read_with_id(path: Path) -> ArchivedSession | None:
    """Read the first member of a file. If an older version wrote it, the id comes from the transcript.

    Returns None if the file cannot be read.
    """
    with suppress(OSError, DamagedArchive):
        session = read_about(path)
        if session.state.id:
            return session
        first = next(transcript_of(path), b"").partition(b"\n")[0]
        header = header_in(first, Path(file_name(session.key)))
        return replace(session, state=with_identity(session.key, session.state, header))
    return None


def transcript_of(path: Path) -> Iterator[bytes]:
    """Yield the second member of a file in blocks, none of them empty. Raises `DamagedArchive` or `OSError`."""
    for block, is_transcript in _members(path):
        if is_transcript and block:  # A piece of the file may hold no more than the header of the member.
            yield block


def _members(path: Path) -> Iterator[tuple[bytes, bool]]:
    """Yield the content of both members in blocks, and whether each block belongs to the transcript."""
    is_transcript = False
    with os.fdopen(open_private(path), "rb") as file:
        unpacker = zlib.decompressobj(wbits=GZIP)
        while packed := unpacker.unconsumed_tail or file.read(BLOCK):
            try:
                yield unpacker.decompress(packed, BLOCK), is_transcript
                if unpacker.eof and not is_transcript:
                    is_transcript, rest = True, unpacker.unused_data
                    unpacker = zlib.decompressobj(wbits=GZIP)
                    yield unpacker.decompress(rest, BLOCK), is_transcript
            except zlib.error as error:
                raise DamagedArchive(f"it cannot be decompressed ({error})") from error
        if not is_transcript or not unpacker.eof:
            raise DamagedArchive("its end is missing")


def _compressed(blocks: list[bytes]) -> bytes:
    packer = zlib.compressobj(wbits=GZIP)
    return b"".join([*map(packer.compress, blocks), packer.flush()])


def _names(folder: Path) -> Iterator[ArchivedName]:
    try:
        found = list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    for path in found:
        if match := _NAME.fullmatch(path.name):
            yield ArchivedName(folder.name, int(match[1]), match[2])
