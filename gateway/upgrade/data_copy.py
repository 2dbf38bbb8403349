"""Copies the data of a gateway for a rehearsal, as of one moment. The gateway may be running, and is not changed."""

import asyncio
import hashlib
import os
import shutil
import sqlite3
import tarfile
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack, aclosing, asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote
from uuid import uuid4

import msgspec
from msgspec import Struct

from config import Settings, StorageEngine, StorageSettings
from gateway.admin.archive import receive_stream
from gateway.admin.client import ControlClient, is_running
from gateway.aio import finish_before_cancel
from gateway.backup.create import FILE_TREES, FORMAT, MANIFEST, VERSION, Manifest, is_member_name, member_key
from gateway.data_dir import REHEARSAL, DataDirLock, delete_rehearsal, require_complete_restore
from gateway.database import migrate
from gateway.errors import CannotStart, Refused
from gateway.private_files import CREATE, DIRECTORY_MODE, open_private, opened, require_file, write_all
from gateway.spool import schema
from gateway.storage_copy.open import identity_of, require_complete_copy
from gateway.text.plain import in_bytes
from gateway.upgrade.scratch_schema import copied_schema, schema_bytes

T = TypeVar("T")

SPOOL = "spool.db"
INDEX = "sessions/index.json"
SESSIONS = ("sessions/transcripts", "sessions/archive")
MEMORY = "memory"
RESERVE = 256 * 1024 * 1024
"""Bytes that stay free on the disk for a gateway that is running."""
_BLOCK_BYTES = 256 * 1024
_SENT_BYTES = 1 << 30
_COPYING_THREADS = 4
_FILES_PER_TASK = 500
_MAX_DEPTH = 8
"""Folders inside each other. Those of ours have fewer."""
_DATABASE = "gatehouse.db"


class PresentData(Struct, frozen=True, kw_only=True):
    """The data before the upgrade: its place and its format for people, and how many bytes a copy takes."""

    place: str
    format: str
    is_current: bool | None
    """Whether it has the newest format, so that nothing has to be migrated. None: only the copy can tell."""
    is_running: bool
    """Whether a gateway uses it."""
    bytes_needed: int
    """In the folder of the copy. A copy of a PostgreSQL database takes room at its server."""
    database_bytes: int = 0


def find_data(settings: Settings) -> PresentData:
    """Look at the data without changing it. Raises `CannotStart` or `Refused` if this version cannot use it. Blocks."""
    directory, storage = settings.gateway.data_dir, settings.storage
    if not directory.is_dir():
        raise Refused(
            f"There is no data directory {directory}. Run this command as the user that runs Gatehouse, "
            "or name its configuration with --config."
        )
    require_complete_restore(directory)
    needed, in_database = _tree_bytes(directory / MEMORY), 0
    if storage.engine is StorageEngine.FILES:
        spool = directory / SPOOL
        if not spool.exists() and not (directory / "sessions").is_dir():
            raise Refused(
                f"There are neither sessions nor a spool in {directory}, so there is nothing to rehearse with. "
                "Name the configuration of the gateway with --config."
            )
        require_complete_copy(storage, directory, {})
        version = spool_version(spool)
        found = f"a spool of format {version}" if version else "a spool" if spool.exists() else "no spool"
        is_current = version == len(schema.MIGRATIONS) if version else None
        # A running gateway copies its spool first, and the migration keeps a copy of an older one.
        needed += 3 * _database_bytes(spool) + _file_bytes(directory / INDEX)
        needed += sum(_tree_bytes(directory / tree) for tree in SESSIONS)
    else:
        if storage.engine is StorageEngine.SQLITE and not storage.path.exists():
            raise Refused(f"The database {storage.path} does not exist, so there is nothing to rehearse with.")
        revision = migrate.current(storage)
        if revision is None:
            raise Refused("The database has no tables yet, so there is nothing to rehearse with.")
        if migrate.is_newer(revision):
            raise Refused(
                f"The database has schema {revision} of a newer version. This version (schema {migrate.HEAD}) may use "
                "it, but cannot copy it. Run this command with the newer version."
            )
        found, is_current = f"schema {revision}", revision == migrate.HEAD
        if storage.engine is StorageEngine.SQLITE:
            needed += 2 * _database_bytes(storage.path)
        else:
            in_database = schema_bytes(storage)
    return PresentData(
        place=identity_of(storage, directory),
        format=found,
        is_current=is_current,
        is_running=is_running(directory),
        bytes_needed=needed,
        database_bytes=in_database,
    )


def require_room(needed: int, parent: Path) -> str:
    """Return a sentence about the room for a copy in `parent`. Raises `Refused` if there is too little."""
    free = shutil.disk_usage(parent).free
    if free < needed + RESERVE:
        raise Refused(
            f"The copy needs {in_bytes(needed)}, and {in_bytes(free)} are free in {parent}, of which "
            f"{in_bytes(RESERVE)} stay free. Make room, or name a folder on another disk with --scratch."
        )
    return f"The copy needs up to {in_bytes(needed)} of the {in_bytes(free)} that are free in {parent}"


@asynccontextmanager
async def copied_data(
    settings: Settings, data: PresentData, parent: Path
) -> AsyncIterator[tuple[Path, StorageSettings]]:
    """Copy the data into a new folder in `parent`, and delete the copy at the end.

    Yields the data directory of the copy, and its storage. Raises `Refused` if the data cannot be copied. The lock in
    the folder tells others that the rehearsal is alive. The present data is locked only while it is copied.
    """
    folder = parent / f"{REHEARSAL}{uuid4().hex}"
    directory, storage = settings.gateway.data_dir, settings.storage
    target = folder / "data"
    async with AsyncExitStack() as stack:
        folder.mkdir(mode=DIRECTORY_MODE)
        stack.enter_context(DataDirLock(folder))
        stack.push_async_callback(asyncio.to_thread, delete_rehearsal, folder)
        target.mkdir(mode=DIRECTORY_MODE)
        match storage.engine:
            case StorageEngine.FILES if data.is_running:
                await _receive_files(directory, target)
                yield target, StorageSettings(url="files:")
                return
            case StorageEngine.FILES:
                await in_whole(partial(_copy_files, directory, target))
                yield target, StorageSettings(url="files:")
                return
            case StorageEngine.SQLITE:
                await in_whole(partial(_copy_sqlite, storage.path, target / _DATABASE, directory, data))
                copy = StorageSettings(url=f"sqlite://{quote(str(target / _DATABASE))}")
            case _:
                copy = await stack.enter_async_context(copied_schema(storage))
        # Memory files are replaced as a whole, so each one is complete.
        await in_whole(partial(_copy_tree, directory / MEMORY, target / MEMORY))
        yield target, copy


def spool_version(path: Path, *, is_copy: bool = False) -> int:
    """Return the format of a spool without changing it, or 0 if it does not exist. Its gateway may be running.

    It is 0 as well as long as everything is in the write-ahead log, which only a copy lets us read. Raises
    `CannotStart` for a newer one, and `Refused` for one that is damaged.
    """
    if not path.exists():
        return 0
    require_file(path)
    options = "mode=rw" if is_copy else "mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?{options}", uri=True)) as connection:
            return schema.version_of(connection)
    except schema.Newer as newer:
        raise CannotStart(
            f"The spool {path} was written by a newer Gatehouse (its format is {newer}, this version knows "
            f"{len(schema.MIGRATIONS)}). Check with that version or a newer one. Nothing was changed."
        ) from newer
    except (schema.NotOurs, sqlite3.Error) as error:
        reason = str(error) or "it is the database of another program"
        raise Refused(
            f"The spool {path} is damaged ({reason}). A start would set it aside, and continue without the messages "
            "that wait in it. Nothing was changed."
        ) from error


async def in_whole(work: Callable[[], T]) -> T:
    """Run blocking work in a thread. If the caller is cancelled, wait for it: the copy is deleted after that."""
    return await finish_before_cancel(asyncio.to_thread(work))


async def _receive_files(directory: Path, target: Path) -> None:
    """Let the running gateway make a backup, which shows one moment, and unpack it while it comes."""
    ours, theirs = os.pipe()
    unpacking = asyncio.ensure_future(asyncio.to_thread(_unpack, ours, target))
    try:
        async with (
            ControlClient(directory) as control,
            aclosing(receive_stream(control, "/backup?secrets=no&files=no")) as blocks,
        ):
            async for block in blocks:
                await asyncio.to_thread(write_all, theirs, block)
    except BrokenPipeError:
        pass  # The reason is the error of the other end.
    finally:
        os.close(theirs)
        await asyncio.wait({unpacking})
    unpacking.result()


def _unpack(descriptor: int, target: Path) -> None:
    """Unpack a backup that comes through a pipe, and compare it with its manifest, which is the last member."""
    digests: dict[str, str] = {}
    manifest: Manifest | None = None
    with open(descriptor, "rb") as pipe:
        try:
            with tarfile.open(fileobj=pipe, mode="r|") as members:
                for info in members:
                    content = members.extractfile(info)
                    if content is None or not (info.name == MANIFEST or is_member_name(info.name)):
                        raise Refused("The backup of the running gateway contains something other than its files.")
                    if info.name == MANIFEST:
                        manifest = msgspec.json.decode(content.read(), type=Manifest)
                        break
                    if info.name.partition("/")[0] in FILE_TREES:  # A gateway of an older version sends them.
                        continue
                    digest = hashlib.sha256()
                    path = target / info.name
                    path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
                    with opened(path, CREATE) as file:
                        while block := content.read(_BLOCK_BYTES):
                            digest.update(block)
                            write_all(file, block)
                    digests[member_key(info.name)] = digest.hexdigest()
        except (tarfile.TarError, ValueError, RecursionError) as error:
            raise Refused("The backup of the running gateway was cut off. Check its log, and try again.") from error
    if manifest is None or manifest.format != FORMAT or manifest.version > VERSION:
        raise Refused("The running gateway has sent no backup that this version can read.")
    expected = {name: member.sha256 for name, member in manifest.members.items()}
    if any(expected.pop(name, "") != digest for name, digest in digests.items()) or any(
        name.removeprefix("\0").partition("/")[0] not in FILE_TREES for name in expected
    ):
        raise Refused("The backup of the running gateway differs from its manifest. Check the disk, and try again.")


def _copy_files(directory: Path, target: Path) -> None:
    with DataDirLock(directory):
        (target / INDEX).parent.mkdir(mode=DIRECTORY_MODE)
        for name in (SPOOL, f"{SPOOL}-wal", INDEX):
            _copy_file(directory / name, target / name)
        for name in (*SESSIONS, MEMORY):
            _copy_tree(directory / name, target / name)


def _copy_sqlite(path: Path, target: Path, directory: Path, data: PresentData) -> None:
    with ExitStack() as stack:
        if not data.is_running:
            # Opening the database could change the files beside it.
            for folder in dict.fromkeys((directory.resolve(), path.parent.resolve())):
                stack.enter_context(DataDirLock(folder))
            for ending in ("", "-wal"):
                _copy_file(path.with_name(path.name + ending), target.with_name(target.name + ending))
            return
        os.close(open_private(target, CREATE))
        try:
            source = stack.enter_context(closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)))
            source.backup(stack.enter_context(closing(sqlite3.connect(target))))
        except sqlite3.Error as error:
            raise Refused(f"The database {path} can't be copied: {error}.") from error


def _copy_tree(source: Path, target: Path, depth: int = 0) -> None:
    """Copy the regular files below a folder. Follows no links."""
    try:
        with os.scandir(source) as found:
            entries = list(found)
    except (FileNotFoundError, NotADirectoryError):
        return
    target.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    files = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]

    def copy(at: int) -> None:
        for name in files[at : at + _FILES_PER_TASK]:
            _copy_file(source / name, target / name)

    with ThreadPoolExecutor(_COPYING_THREADS) as threads:
        list(threads.map(copy, range(0, len(files), _FILES_PER_TASK)))  # An error of a task is raised here.
    for entry in entries:
        if entry.is_dir(follow_symlinks=False) and depth < _MAX_DEPTH:
            _copy_tree(source / entry.name, target / entry.name, depth + 1)


def _copy_file(source: Path, target: Path) -> None:
    """Copy a file that may be gone by now."""
    try:
        file = open_private(source)
    except FileNotFoundError:
        return
    try:
        with opened(target, CREATE) as copy:
            while os.sendfile(copy, file, None, _SENT_BYTES):
                pass
    finally:
        os.close(file)


def _tree_bytes(folder: Path, depth: int = 0) -> int:
    """Return what the files below a folder take on a disk, of which each one has whole blocks."""
    total = 0
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as found:
        for entry in found:
            with suppress(FileNotFoundError):
                if entry.is_file(follow_symlinks=False):
                    total += entry.stat(follow_symlinks=False).st_size + 4096
                elif entry.is_dir(follow_symlinks=False) and depth < _MAX_DEPTH:
                    total += _tree_bytes(Path(entry.path), depth + 1)
    return total


def _database_bytes(path: Path) -> int:
    return _file_bytes(path) + _file_bytes(path.with_name(f"{path.name}-wal"))


def _file_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
