"""The private store of files, with one folder for each session and a limit on its total size.

Every file has mode 0600 and appears under its name only when it is complete. A `ref` is "folder/name" and cannot point
outside of the store.

With a shared storage, every file is put there before it counts as stored, and the disk is a cache: a file that is
missing here is fetched when it is needed.
"""

import asyncio
import errno
import os
import re
import shutil
import stat
from collections.abc import AsyncIterable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from tempfile import mkstemp

import structlog
from msgspec import Struct

from config.files import fsync_directory, make_private_directory
from gateway.aio import KeyedLocks, finish_before_cancel
from gateway.data_dir import unusable
from gateway.errors import CannotStart, Refused, RefusedForNow, Transient
from gateway.files.shared import SharedFiles
from gateway.private_files import NotAFile, open_private, read_private, write_all
from gateway.sessions import SessionManager
from gateway.sessions.keys import file_name
from gateway.text.plain import in_bytes

log = structlog.get_logger()

UPLOADS = "uploads"
"""The folder of uploaded files that do not belong to a message yet."""

_INCOMING = ".incoming"
"""Incomplete files, and folders that are being deleted. The next start deletes everything in it; backups skip it."""
_SHARED_WITH = "shared-with"
"""A file there. It names the shared storage that has all files of this disk. A restored backup must not have it."""
_COMPONENT = re.compile(r"[^./\0][^/\0]{0,199}")
_BLOCK_SIZE = 1 << 20
_FILL_AFTER_EVICTION = 0.9
"""Eviction goes down to this share of the budget, so that not every file evicts another."""


class TooLarge(Exception):
    """More bytes arrived than the limit, even if a smaller size was announced. None of them are kept."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"more than {in_bytes(limit)}")
        self.limit = limit
        """That of the caller, or a smaller one of the shared storage."""


class StoredFile(Struct, frozen=True, kw_only=True):
    ref: str
    path: Path
    size: int


def folder_of(session: str) -> str:
    return file_name(session).removesuffix(".jsonl")


class FileStore:
    """All files together may take `budget` bytes of the disk. Beyond it, the oldest are deleted."""

    def __init__(self, root: Path, budget: int, shared: SharedFiles | None = None) -> None:
        self._root = root
        self.budget = budget
        self._shared = shared
        self._total = 0
        self._fetches = KeyedLocks()
        self._is_cache = False
        """Whether all files of this disk are in the shared storage, or were."""

    async def open(self) -> None:
        """Create the folders, and delete what the last run left: incomplete files, and removed folders.

        Files from before the disk had this shared storage are put there. Raises `CannotStart` if the folders or the
        shared storage cannot be used.
        """

        def prepare() -> tuple[int, str]:
            shared_with = ""
            if self._shared is not None:
                with suppress(OSError):  # Then the files are shared again, which does no harm.
                    shared_with = read_private(self._root / _INCOMING / _SHARED_WITH).decode(errors="replace")
            _remove_tree(self._root / _INCOMING)
            make_private_directory(self._root / _INCOMING)
            return self._measure(), shared_with

        try:
            self._total, shared_with = await asyncio.to_thread(prepare)
        except OSError as error:
            raise unusable(self._root, error) from error
        if self._shared is not None:
            await self._shared.check()
            if shared_with == self._shared.name or await self._share_all(self._shared):
                marker = self._root / _INCOMING / _SHARED_WITH
                try:
                    await asyncio.to_thread(marker.write_text, self._shared.name)
                except OSError as error:
                    raise unusable(marker, error) from error
                self._is_cache = True

    async def _share_all(self, shared: SharedFiles) -> bool:
        """Put all files of this disk into the shared storage. Returns False, after a log line, if that refuses."""
        largest = shared.max_bytes
        files = await asyncio.to_thread(lambda: list(self._files()))
        try:
            for _, size, path in files:
                if largest is not None and size > largest:
                    raise CannotStart(
                        f"The file {path} is larger than files.max_database_bytes, so it can't be shared. Raise that "
                        'limit, set files.shared to "s3", or delete the file.'
                    )
                await shared.put(f"{path.parent.name}/{path.name}", path)
        except OSError as error:  # The next start tries it again.
            log.warning("files_not_shared", storage=shared.name, reason=error.strerror)
            return False
        if files:
            log.info("files_shared", storage=shared.name, count=len(files))
        return True

    def folder(self, session: str) -> Path:
        """Return the folder with the files of a session. It exists once the session has one."""
        return self._root / folder_of(session)

    async def keep(self, folder: str, name: str, chunks: AsyncIterable[bytes], *, limit: int) -> StoredFile:
        """Store the chunks and replace a file of that name. Raises `TooLarge` at the first byte beyond `limit`.

        Raises `OSError` if the disk or the shared storage refuses.
        """
        if self._shared is not None and self._shared.max_bytes is not None:
            limit = min(limit, self._shared.max_bytes)
        target = self._path(f"{folder}/{name}")
        descriptor, temporary = await asyncio.to_thread(mkstemp, dir=self._root / _INCOMING)

        # Content first, then the name, then the directory: after a power cut the file is complete or absent.
        def place() -> None:
            os.fsync(descriptor)
            make_private_directory(target.parent)
            Path(temporary).replace(target)
            fsync_directory(target.parent)

        try:
            size = await _write_chunks(descriptor, chunks, limit)
            if self._shared is not None:  # Before it has its name here: no node may know a file that others cannot get.
                await self._shared.put(f"{folder}/{name}", Path(temporary))
            await finish_before_cancel(asyncio.to_thread(place))
        finally:
            os.close(descriptor)
            with suppress(OSError):  # It was renamed, or else the next start deletes it.
                os.unlink(temporary)  # noqa: PTH108 - a string from `mkstemp`.
        await self._count(size, target)
        return StoredFile(ref=f"{folder}/{name}", path=target, size=size)

    async def _count(self, size: int, new: Path) -> None:
        """Add a new file to the total, and delete others if there is no room for it."""
        self._total += size
        if self._total > self.budget:
            self._total = await asyncio.to_thread(self._evict, new)

    async def move(self, ref: str, folder: str, name: str) -> StoredFile:
        """Rename a file within the store. Raises `Refused` if it does not exist."""
        source, target = self._path(ref), self._path(f"{folder}/{name}")

        def rename() -> None:
            make_private_directory(target.parent)
            source.rename(target)

        try:
            if self._shared is not None:
                await self._shared.move(ref, f"{folder}/{name}")
                with suppress(FileNotFoundError):  # Another node has received it, and `find` fetches it.
                    await asyncio.to_thread(rename)
            else:
                await asyncio.to_thread(rename)
        except FileNotFoundError as gone:
            raise Refused("That file is no longer stored. Please send it again.") from gone
        return await self.find(f"{folder}/{name}")

    async def paths(self) -> list[Path]:
        """Return the paths of all stored files."""
        return await asyncio.to_thread(lambda: [path for _, _, path in self._files()])

    async def adopt(self, directory: int, name: str, session: str) -> None:
        """Move the file `name` of an open folder to the files of a session. It is on the disk when this returns.

        Raises `FileExistsError` if the session has another file of that name. Nothing is evicted for it.
        """
        target = self._path(f"{folder_of(session)}/{name}")

        def copy() -> tuple[str, int] | None:
            make_private_directory(target.parent)
            with open(open_private(name, directory=directory), "rb") as source:  # noqa: PTH123 - a descriptor.
                if target.exists():  # A crash came between the last two steps below.
                    if read_private(target) != source.read():
                        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
                    os.unlink(name, dir_fd=directory)
                    return None
                status = os.fstat(source.fileno())
                descriptor, temporary = mkstemp(dir=self._root / _INCOMING)
                with open(descriptor, "wb") as copy:  # noqa: PTH123 - as above.
                    shutil.copyfileobj(source, copy, _BLOCK_SIZE)
                    copy.flush()
                    os.fsync(copy.fileno())
            os.utime(temporary, ns=(status.st_atime_ns, status.st_mtime_ns))
            return temporary, status.st_size

        def place(temporary: str) -> None:
            # A copy and not a rename: the folder may be on another disk.
            Path(temporary).replace(target)
            fsync_directory(target.parent)
            os.unlink(name, dir_fd=directory)

        async def move() -> int:
            if (copied := await asyncio.to_thread(copy)) is None:
                return 0
            temporary, size = copied
            if self._shared is not None:
                if self._shared.max_bytes is not None and size > self._shared.max_bytes:
                    raise Refused(f"it is too large; the limit is {in_bytes(self._shared.max_bytes)}")
                await self._shared.put(f"{target.parent.name}/{name}", Path(temporary))
            await asyncio.to_thread(place, temporary)
            return size

        self._total += await finish_before_cancel(move())

    async def find(self, ref: str) -> StoredFile:
        """Return a stored file.

        Raises `Refused` if it does not exist, and `RefusedForNow` if it cannot be fetched now.
        """
        try:
            return await self._find(ref)
        except Transient as failure:
            raise RefusedForNow(f"{failure} Please try again later.") from failure

    async def _find(self, ref: str) -> StoredFile:
        """Return a stored file. Raises `Refused` if it does not exist, and `Transient` if it cannot be fetched now."""
        path = self._path(ref)
        try:
            found = await asyncio.to_thread(path.lstat)
        except OSError as gone:
            if self._shared is None:
                raise Refused(f"The file {path.name} is no longer stored.") from gone
            return await self._fetch(ref, path, self._shared)
        if not stat.S_ISREG(found.st_mode):
            raise Refused(f"The file {path.name} was replaced by something else.")
        return StoredFile(ref=ref, path=path, size=found.st_size)

    async def _fetch(self, ref: str, path: Path, shared: SharedFiles) -> StoredFile:
        """Copy a file from the shared storage to this disk. Others who need it wait for the copy."""
        await self._fetches.acquire(ref)
        try:
            if await asyncio.to_thread(path.is_file):  # Another call has fetched it since.
                size = (await asyncio.to_thread(path.stat)).st_size
                return StoredFile(ref=ref, path=path, size=size)
            descriptor, temporary = await asyncio.to_thread(mkstemp, dir=self._root / _INCOMING)
            os.close(descriptor)

            def place() -> None:
                with open(temporary, "rb") as file:  # noqa: PTH123 - a string from `mkstemp`.
                    os.fsync(file.fileno())
                make_private_directory(path.parent)
                Path(temporary).replace(path)

            try:
                size = await shared.fetch(ref, Path(temporary), limit=self.budget)
                await finish_before_cancel(asyncio.to_thread(place))
            except FileNotFoundError as gone:
                raise Refused(f"The file {path.name} is no longer stored.") from gone
            except OSError as error:
                if error.errno == errno.EFBIG:
                    raise Refused(f"The file {path.name} is larger than files.max_stored_bytes.") from error
                log.warning("file_not_fetched", storage=shared.name, reason=error.strerror)
                raise Transient(f"The file {path.name} can't be fetched now: {error.strerror}.") from error
            finally:
                with suppress(OSError):  # It was renamed, or else the next start deletes it.
                    os.unlink(temporary)  # noqa: PTH108 - as above.
        finally:
            self._fetches.release(ref)
        await self._count(size, path)
        return StoredFile(ref=ref, path=path, size=size)

    async def fetch_session(self, key: str) -> None:
        """Fetch the files of a session that are missing on this disk, for programs that read its folder.

        A file that cannot be fetched is left out, after a log line.
        """
        if self._shared is None:
            return
        folder = folder_of(key)
        try:
            stored = await self._shared.list(folder)
        except OSError as error:
            log.warning("files_not_fetched", storage=self._shared.name, folder=folder, reason=error.strerror)
            return
        here = await asyncio.to_thread(lambda: {path.name for _, _, path in self._files(folder)})
        for each in stored:
            if each.name not in here:
                with suppress(Refused):  # It was logged, or deleted since.
                    await self.find(f"{folder}/{each.name}")

    async def find_prefixed(self, folder: str, prefix: str) -> StoredFile | None:
        """Return the stored file of `folder` whose name begins with `prefix`, if there is one.

        Raises `Refused` if the shared storage cannot tell now.
        """

        def find() -> StoredFile | None:
            for _, size, path in list(self._files(folder)):
                if path.name.startswith(prefix):
                    return StoredFile(ref=f"{folder}/{path.name}", path=path, size=size)
            return None

        found = await asyncio.to_thread(find)
        if found is not None or self._shared is None:
            return found
        try:
            stored = await self._shared.list(folder)
        except OSError as error:
            log.warning("files_not_listed", storage=self._shared.name, reason=error.strerror)
            raise Refused("the shared storage of files can't be reached") from error
        name = next((each.name for each in stored if each.name.startswith(prefix)), None)
        return None if name is None else await self.find(f"{folder}/{name}")

    async def path(self, ref: str) -> Path:
        """Return the path of a stored file.

        Raises `Refused` if it does not exist, and `Transient` if it cannot be fetched now.
        """
        return (await self._find(ref)).path

    async def read(self, ref: str, limit: int) -> bytes:
        """Return at most the first `limit` bytes."""
        stored = await self.find(ref)

        def read() -> bytes:
            with os.fdopen(open_private(stored.path), "rb") as file:
                return file.read(limit)

        try:
            return await asyncio.to_thread(read)
        except (FileNotFoundError, NotAFile) as gone:
            raise Refused(f"The file {stored.path.name} is no longer stored.") from gone

    async def remove_session(self, key: str) -> bool:
        """Delete all files of a session: those that came with messages, and those that went with answers.

        Once this returns, no crash brings them back. Removing them again does nothing. Returns False, after a log
        line, if the disk refuses.
        """
        return await self._remove(folder_of(key))

    async def move_session(self, old: str, new: str) -> None:
        """Move the files of a session that gets another key. Repeating it finishes an interrupted move.

        Raises `Refused` if the shared storage cannot do that now.
        """
        source, target = self.folder(old), self.folder(new)
        if self._shared is not None:
            try:
                for each in await self._shared.list(source.name):
                    await self._shared.move(f"{source.name}/{each.name}", f"{target.name}/{each.name}")
            except OSError as error:
                raise Refused(f"The files of the session can't be moved now: {error.strerror}.") from error

        def move() -> None:
            if not source.is_dir():
                return
            make_private_directory(target)
            for name in os.listdir(source):  # noqa: PTH208 - names suffice.
                (source / name).rename(target / name)
            fsync_directory(target)
            source.rmdir()

        await finish_before_cancel(asyncio.to_thread(move))

    async def require_session(self, key: str, stored: StoredFile, sessions: SessionManager) -> None:
        """Call this after `stored`. If its session was deleted by then, delete the file and raise `Refused`."""
        if sessions.find(key) is not None:
            return

        def discard() -> None:
            stored.path.unlink(missing_ok=True)
            with suppress(OSError):  # An archived session has other files, and keeps them.
                stored.path.parent.rmdir()

        await finish_before_cancel(asyncio.to_thread(discard))
        if self._shared is not None:
            try:
                await finish_before_cancel(self._shared.delete(stored.ref))
            except OSError as error:
                log.error("shared_file_not_deleted", ref=stored.ref, reason=error.strerror)  # noqa: TRY400 - the reason is enough.
        raise Refused("its conversation was deleted")

    async def remove_orphans(
        self, keys: Iterable[str], archived: Iterable[str] = (), *, is_only_node: bool = True
    ) -> None:
        """Delete the files of all sessions except `keys` and those whose transcripts are `archived`.

        The others were deleted while no daemon was running. A node of a cluster does not know the sessions of other
        nodes, so it deletes nothing; `sweep` deletes what the shared storage no longer has.
        """
        if not is_only_node:
            return
        found = {*await asyncio.to_thread(self._folders)} - {UPLOADS}
        if not found:
            return
        kept = {folder_of(key) for key in keys} | {name.removesuffix(".jsonl") for name in archived}
        for folder in found - kept:
            log.info("orphaned_files_deleted", folder=folder)
            await self._remove(folder)

    async def _remove(self, folder: str) -> bool:
        path = self._path(f"{folder}/all").parent

        def remove() -> int | None:
            # A rename is all or nothing. From then on the files are gone for everyone, and `open` finishes the rest.
            removed = self._root / _INCOMING / f"{folder}-{token_hex(8)}"
            try:
                path.rename(removed)
            except FileNotFoundError:
                return None
            fsync_directory(self._root)
            _remove_tree(removed)
            return self._measure()

        try:
            total = await finish_before_cancel(asyncio.to_thread(remove))
        except OSError as error:
            log.error("session_files_not_deleted", folder=folder, reason=error.strerror)  # noqa: TRY400 - the reason is enough.
            return False
        if total is not None:
            self._total = total
        if self._shared is not None:
            try:
                await finish_before_cancel(self._shared.delete_folder(folder))
            except OSError as error:
                log.error("session_files_not_deleted", folder=folder, reason=error.strerror)  # noqa: TRY400 - as above.
                return False
        return True

    async def sweep(self, uploads_before: float) -> None:
        """Delete shared uploads that were stored before that time, and copies of files that are no longer shared.

        Another node has deleted those, with their session. Raises `OSError` if the shared storage cannot be used. Does
        nothing without one.
        """
        if self._shared is None or not self._is_cache:
            return
        for each in await self._shared.list(UPLOADS):
            if each.stored_at < uploads_before:
                await self._shared.delete(f"{UPLOADS}/{each.name}")
        dropped = 0
        for folder in await asyncio.to_thread(self._folders):
            # The files of the disk first: each of them was shared before it got its name here.
            copies = await asyncio.to_thread(lambda name: [path for _, _, path in self._files(name)], folder)
            stored = {each.name for each in await self._shared.list(folder)}
            stale = [path for path in copies if path.name not in stored]
            dropped += await asyncio.to_thread(lambda paths: sum(map(_delete, paths)), stale)
        if dropped:
            log.info("stale_copies_deleted", count=dropped)
            self._total = await asyncio.to_thread(self._measure)

    async def drop_older(self, folder: str, before: float) -> None:
        """Delete the files of `folder` on this disk that were written before that time."""
        path = self._path(f"{folder}/all").parent

        def drop() -> int:
            old = [file for written, _, file in self._files(path.name) if written < before]
            return sum(map(_delete, old))

        if await asyncio.to_thread(drop):
            self._total = await asyncio.to_thread(self._measure)

    def _folders(self) -> list[str]:
        return [
            entry.name
            for entry in os.scandir(self._root)
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")
        ]

    def _measure(self) -> int:
        return sum(size for _, size, _ in self._files())

    def _evict(self, kept: Path) -> int:
        """Delete the oldest files except `kept`. Returns the size of the others."""
        files = sorted(self._files())
        before = left = sum(size for _, size, _ in files)
        for _, size, file in files:
            if left <= self.budget * _FILL_AFTER_EVICTION:
                break
            if file != kept and _delete(file):
                left -= size
        log.info("old_files_deleted", freed=in_bytes(before - left))
        return left

    def _files(self, *folders: str) -> Iterator[tuple[float, int, Path]]:
        """Yield the time, size and path of each file in the given folders, by default in all."""
        for folder in folders or self._folders():
            # Another thread may delete the folder, or a file in it, at the same time.
            with suppress(FileNotFoundError), os.scandir(self._root / folder) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):
                        found = entry.stat(follow_symlinks=False)
                        yield found.st_mtime, found.st_size, Path(entry.path)

    def _path(self, ref: str) -> Path:
        folder, _, name = ref.partition("/")
        if not (_COMPONENT.fullmatch(folder) and _COMPONENT.fullmatch(name)):
            raise Refused("There is no such file.")
        return self._root / folder / name


async def _write_chunks(descriptor: int, chunks: AsyncIterable[bytes], limit: int) -> int:
    """Write in large blocks and return the size.

    A cancellation waits for the running block. The caller closes the descriptor next, and a thread that went on
    writing could then hit another file with the same number.
    """
    size = 0
    block = bytearray()
    async for chunk in chunks:
        size += len(chunk)
        if size > limit:
            raise TooLarge(limit)
        block += chunk
        if len(block) >= _BLOCK_SIZE:
            await finish_before_cancel(asyncio.to_thread(write_all, descriptor, bytes(block)))
            block.clear()
    await finish_before_cancel(asyncio.to_thread(write_all, descriptor, bytes(block)))
    return size


def _delete(file: Path) -> bool:
    try:
        file.unlink()
    except OSError as error:
        log.warning("file_not_deleted", file=str(file), reason=error.strerror)
        return False
    return True


def _remove_tree(path: Path) -> None:
    """Delete a folder with everything in it, or something else in its place: `rmtree` would wait for a pipe."""
    try:
        is_folder = stat.S_ISDIR(path.lstat().st_mode)
    except OSError:  # It does not exist, or the folder above cannot be used.
        return
    if is_folder:
        shutil.rmtree(path, onerror=_log_undeletable)
    else:
        path.unlink()


def _log_undeletable(_function: object, path: str, error: tuple[object, BaseException, object]) -> None:
    log.warning("file_not_deleted", file=path, reason=str(error[1]))
