"""Creates a backup: a tar archive of the data directory, with a manifest of all files at its end.

The backup shows one moment, although messages are handled while it is made. Transcripts only grow, so their sizes at
that moment are enough to copy them later. Entries that are not in the transcripts by then are in the spool's journal.
The copy of the spool contains them, because no flush may shorten the journal before the copy is made.

The format is the same for each storage engine. From a database, the transcripts, the index, the archive and the spool
are first written to a folder, as of one moment. Commits go on during that.
"""

import asyncio
import hashlib
import os
import re
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tarfile import BLOCKSIZE, PAX_FORMAT, TarInfo
from threading import Event
from uuid import uuid4

import msgspec
import structlog

from gateway import __version__
from gateway.errors import Refused
from gateway.private_files import (
    FILE_MODE,
    NotAFile,
    delete_tree,
    open_private,
    prepare_private_folder,
    read_private,
)
from gateway.sessions import SessionManager
from gateway.sessions.storage.database import DatabaseStorage
from gateway.sessions.storage.disk import Disk
from gateway.spool import Spool
from gateway.storage_copy.copy import CopyProgress, copy_storage
from gateway.storage_copy.database import DatabaseReader
from gateway.storage_copy.files import FileWriter

log: structlog.stdlib.BoundLogger = structlog.get_logger()

FORMAT = "gatehouse-backup"
VERSION = 1
MAX_MANIFEST_BYTES = 256 * 1024 * 1024
"""Restore holds the manifest in memory. This is enough for more than a million files."""

SPOOL = "spool.db"
INDEX = "sessions/index.json"
TRANSCRIPTS = "sessions/transcripts"
MANIFEST = "manifest.json"
CONFIG = "gatehouse.toml"
SECRET_FILES = ("http.token", "chat_history")
"""They give access or contain typed text, so only a backup with secrets includes them."""
ARCHIVE = "sessions/archive"
TREES = (ARCHIVE, "memory", "files", "workspace")
"""Folders that are included with everything in them."""
FILE_TREES = ("files", "workspace")
"""Those with files of people and agents, which Gatehouse stores and does not read at its start."""

_MEMBER_NAME = re.compile(
    rf"{re.escape(SPOOL)}|{re.escape(INDEX)}|{re.escape(TRANSCRIPTS)}/[^/\0]+\.jsonl"
    rf"|{re.escape(CONFIG)}|{'|'.join(map(re.escape, SECRET_FILES))}"
    rf"|(?:{'|'.join(TREES)})/[^\0]+",
    re.DOTALL,
)
_READ_BYTES = 256 * 1024
_BLOCK_BYTES = 1024 * 1024
_MAX_DEPTH = 64
"""Each level of folders takes a descriptor, and an agent chooses how many levels there are."""
_OWNER = 0o700
_COPY = ".backup-"
_STAGING = ".backup-staging-"


class Member(msgspec.Struct, frozen=True):
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The last member. `skipped` are files that could not be read, or that changed while they were read."""

    format: str = FORMAT
    version: int = VERSION
    gatehouse: str
    taken_at: str
    has_secrets: bool
    members: dict[str, Member]
    skipped: list[str]

    def transcripts(self) -> int:
        """Return the number of transcripts in the backup."""
        return sum(name.startswith(f"{TRANSCRIPTS}/") for name in self.members)


def is_member_name(name: str) -> bool:
    """Return True if a backup may contain a member of that name. No other member is ever restored."""
    return _MEMBER_NAME.fullmatch(name) is not None and not {"", ".", ".."} & set(name.split("/"))


def member_key(name: str) -> str:
    """Return the key of a member in the manifest: its name, unless that contains bytes that JSON cannot hold.

    An agent chooses the names in its workspace. The NUL marks such a key, since no file name contains one.
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        return "\0" + name.encode(errors="surrogateescape").decode("latin-1")
    return name


def is_member_key(key: str) -> bool:
    """Return True if a manifest may contain the key."""
    return is_member_name(key.removeprefix("\0"))


class TarWriter:
    """Produces a tar archive in pieces, and remembers its members for the manifest.

    Each method yields the bytes of its members.
    """

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.skipped: list[str] = []

    def add_data(self, name: str, data: bytes) -> Iterator[bytes]:
        yield _header(name, len(data), FILE_MODE)
        yield data
        yield bytes(-len(data) % BLOCKSIZE)
        self.members[name] = Member(len(data), hashlib.sha256(data).hexdigest())

    def add_file(
        self, name: str, path: Path | str, size: int | None = None, *, folder: int | None = None
    ) -> Iterator[bytes]:
        """Add a file, or its first `size` bytes. Leaves out a file that no longer exists.

        `folder` is the descriptor of the folder that a relative `path` is in.
        """
        try:
            descriptor = open_private(path, directory=folder)
        except FileNotFoundError:
            return
        except OSError:  # Something other than a file, or not readable.
            self.skipped.append(name)
            return
        try:
            status = os.fstat(descriptor)
            size = status.st_size if size is None else min(size, status.st_size)
            yield _header(name, size, status.st_mode & _OWNER)
            digest = hashlib.sha256()
            at = 0
            while at < size:
                block = os.pread(descriptor, min(_READ_BYTES, size - at), at)
                if not block:
                    # The file has been cut since. Fill it up with zeros, because the header has announced its size.
                    self.skipped.append(name)
                    block = bytes(min(_READ_BYTES, size - at))
                digest.update(block)
                yield block
                at += len(block)
            yield bytes(-size % BLOCKSIZE)
            self.members[member_key(name)] = Member(size, digest.hexdigest())
        finally:
            os.close(descriptor)

    def add_tree(self, name: str, path: Path | str, *, folder: int | None = None, depth: int = 0) -> Iterator[bytes]:
        """Add every regular file below a folder. Leaves out unfinished downloads (`.incoming`).

        An agent may replace a folder of its workspace with a link at any moment. So each folder is opened from the
        descriptor of the folder above, which no rename changes, and never through a link.
        """
        if depth > _MAX_DEPTH:
            self.skipped.append(name)
            return
        try:
            descriptor = open_private(path, os.O_RDONLY | os.O_DIRECTORY, directory=folder)
        except FileNotFoundError:
            return
        except OSError:
            self.skipped.append(name)
            return
        try:
            with os.scandir(descriptor) as found:
                kinds = sorted((each.name, each.is_dir(follow_symlinks=False)) for each in found)
            for each, is_folder in kinds:
                inner = f"{name}/{each}"
                if not is_folder:
                    yield from self.add_file(inner, each, folder=descriptor)
                elif each != ".incoming":
                    yield from self.add_tree(inner, each, folder=descriptor, depth=depth + 1)
        finally:
            os.close(descriptor)

    def end(self) -> Iterator[bytes]:
        """Yield the end of the archive."""
        yield bytes(2 * BLOCKSIZE)


def _header(name: str, size: int, mode: int) -> bytes:
    info = TarInfo(name)
    info.size = size
    info.mode = mode
    return info.tobuf(PAX_FORMAT, "utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Snapshot:
    """`directory` has the folder `sessions`."""

    directory: Path
    spool: Path
    index: bytes
    transcripts: Mapping[str, int]
    taken_at: datetime


class Backup:
    """Creates backups of one data directory, for the process that has its lock. One at a time."""

    def __init__(
        self,
        directory: Path,
        *,
        spool: Spool,
        sessions: SessionManager,
        now: Callable[[], datetime],
        config: Path | None = None,
    ) -> None:
        self.config = config
        """The configuration file, for backups with secrets."""
        self._directory = directory
        self._spool = spool
        self._sessions = sessions
        self._now = now
        self._lock = asyncio.Lock()

    async def blocks(self, *, has_secrets: bool = False, has_files: bool = True) -> AsyncGenerator[bytes, None]:
        """Yield a tar archive in blocks. Raises `Refused` if it cannot be made.

        Only `gatehouse upgrade --check` leaves out the attachments and workspaces.
        """
        if self._lock.locked():
            raise Refused("Another backup is running. Wait until it has finished.")
        # A session that moved to the archive, or back, between the copies of both would be missing in the backup.
        async with self._lock, self._sessions.archive.paused(), self._snapshot() as snapshot:
            pieces = self._pieces(snapshot, has_secrets=has_secrets, has_files=has_files)
            while True:
                reading = asyncio.ensure_future(asyncio.to_thread(_next_block, pieces))
                try:
                    block = await asyncio.shield(reading)
                finally:
                    # If we are cancelled, the thread still reads the snapshot, which is about to be deleted.
                    await asyncio.wait({reading})
                if not block:
                    break
                yield block
        log.info("backup_taken", sessions=len(snapshot.transcripts), with_secrets=has_secrets)

    @asynccontextmanager
    async def _snapshot(self) -> AsyncIterator[_Snapshot]:
        await self._sessions.flush()  # Not necessary, but it shortens the journal, and so the copy of the spool.
        copy = self._directory / f"{_COPY}{uuid4().hex}"
        await asyncio.to_thread(_remove_copies, self._directory)
        storage = self._sessions.storage
        try:
            if isinstance(storage, DatabaseStorage):
                yield await self._snapshot_of_database(storage)
                return
            # No flush can run here: journal, index and the sizes of the transcripts belong to the same moment.
            async with self._sessions.flushes_paused() as transcripts:
                index = await asyncio.to_thread(_read_index, self._directory / INDEX)
                await self._spool.copy_to(copy)
                taken_at = self._now()
            yield _Snapshot(
                directory=self._directory, spool=copy, index=index, transcripts=transcripts, taken_at=taken_at
            )
        except (sqlite3.Error, OSError) as error:
            raise Refused(f"The backup failed: {error}.") from error
        finally:
            await asyncio.to_thread(_remove_copies, self._directory)

    async def _snapshot_of_database(self, storage: DatabaseStorage) -> _Snapshot:
        """Write a database to files. If the caller is cancelled, the thread ends soon, and is awaited."""
        is_cancelled = Event()
        taken_at = self._now()
        folder = self._directory / f"{_STAGING}{uuid4().hex}"
        writing = asyncio.ensure_future(asyncio.to_thread(_write_files, storage, folder, is_cancelled))
        try:
            await asyncio.shield(writing)
        finally:
            is_cancelled.set()
            await asyncio.wait({writing})
            writing.exception()  # If we are cancelled, nobody else asks for it.
        index = await asyncio.to_thread(_read_index, folder / INDEX)
        transcripts = await asyncio.to_thread(Disk(folder / "sessions").sizes)
        return _Snapshot(
            directory=folder, spool=folder / SPOOL, index=index, transcripts=transcripts, taken_at=taken_at
        )

    def _pieces(self, snapshot: _Snapshot, *, has_secrets: bool, has_files: bool) -> Iterator[bytes]:
        tar = TarWriter()
        yield from tar.add_file(SPOOL, snapshot.spool)
        if snapshot.index:
            yield from tar.add_data(INDEX, snapshot.index)
        for name, size in sorted(snapshot.transcripts.items()):
            yield from tar.add_file(f"{TRANSCRIPTS}/{name}", snapshot.directory / TRANSCRIPTS / name, size)
        for name in TREES if has_files else set(TREES) - set(FILE_TREES):
            yield from tar.add_tree(name, (snapshot.directory if name == ARCHIVE else self._directory) / name)
        if has_secrets:
            for name in SECRET_FILES:
                yield from tar.add_file(name, self._directory / name)
            if self.config is not None:
                try:
                    config = self.config.read_bytes()
                except OSError:
                    tar.skipped.append(CONFIG)
                else:
                    yield from tar.add_data(CONFIG, config)
        manifest = Manifest(
            gatehouse=__version__,
            taken_at=snapshot.taken_at.isoformat(),
            has_secrets=has_secrets,
            members=dict(tar.members),
            # File names may contain bytes that are not UTF-8, which JSON cannot hold.
            skipped=[name.encode(errors="replace").decode() for name in tar.skipped],
        )
        encoded = msgspec.json.encode(manifest)
        if len(encoded) > MAX_MANIFEST_BYTES:
            raise Refused("The backup failed: there are too many files. Remove some from the workspaces.")
        yield from tar.add_data(MANIFEST, encoded)
        yield from tar.end()


def _write_files(storage: DatabaseStorage, folder: Path, is_cancelled: Event) -> None:
    def stop_if_cancelled(_: CopyProgress) -> None:
        if is_cancelled.is_set():
            raise InterruptedError("The backup was cancelled")

    prepare_private_folder(folder)
    with closing(storage.connect()) as connection:
        connection.begin_snapshot()
        reader = DatabaseReader(connection, "the database")
        copy_storage(reader, FileWriter(folder, is_durable=False), on_progress=stop_if_cancelled)


def _next_block(pieces: Iterator[bytes]) -> bytes:
    """Join the next pieces to a block; empty at the end."""
    block = bytearray()
    for piece in pieces:
        block += piece
        if len(block) >= _BLOCK_BYTES:
            break
    return bytes(block)


def _read_index(path: Path) -> bytes:
    """Return the index. Without a readable one, a start after the restore rebuilds it from the transcripts."""
    with suppress(FileNotFoundError, NotAFile):
        return read_private(path)
    return b""


def _remove_copies(directory: Path) -> None:
    """Remove the copy of the spool or of a database, and copies that interrupted backups have left."""
    for folder in directory.glob(f"{_STAGING}*"):
        delete_tree(folder)
    for copy in directory.glob(f"{_COPY}*"):
        with suppress(IsADirectoryError):  # A folder is not from us.
            copy.unlink(missing_ok=True)
