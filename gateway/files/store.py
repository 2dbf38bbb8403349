"""The private store of files, one folder for each session, bounded in all; every file is 0600 and never half there.

A `ref` is the folder and the name of a file in it, and names nothing outside of the store.
"""

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkstemp

import structlog

from config.files import fsync_directory, make_private_directory
from gateway.aio import finish_before_cancel
from gateway.data_dir import unusable
from gateway.errors import Refused
from gateway.files.identify import in_bytes
from gateway.private_files import write_all
from gateway.sessions.keys import file_name

__all__ = ["FileStore", "StoredFile", "TooLarge", "folder_of"]

log = structlog.get_logger()

_INCOMING = ".incoming"
_COMPONENT = re.compile(r"[^./\0][^/\0]{0,199}")
_BLOCK = 1 << 20
_ROOM_AFTER_CLEARING = 0.9


class TooLarge(Exception):
    """More bytes came than are taken, whatever was claimed; nothing of them is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    ref: str
    path: Path
    size: int


def folder_of(session: str) -> str:
    return file_name(session).removesuffix(".jsonl")


class FileStore:
    """`budget` is what all files together may take. Beyond it, the oldest go."""

    def __init__(self, root: Path, budget: int) -> None:
        self._root = root
        self.budget = budget
        self._total = 0

    async def open(self) -> None:
        """Make the folders, and throw away what was being written when the last run ended.

        `CannotStart` when they cannot be used.
        """
        try:
            self._total = await asyncio.to_thread(self._open)
        except OSError as trouble:
            raise unusable(self._root, trouble.strerror) from trouble

    def _open(self) -> int:
        shutil.rmtree(self._root / _INCOMING, ignore_errors=True)
        make_private_directory(self._root / _INCOMING)
        return self._count()

    def _count(self) -> int:
        return sum(size for _, size, _ in self._files())

    async def keep(self, folder: str, name: str, chunks: AsyncIterable[bytes], *, limit: int) -> StoredFile:
        """Keep what `chunks` yield, in place of what has that name; `TooLarge` at the first byte beyond `limit`."""
        descriptor, temporary = await asyncio.to_thread(mkstemp, dir=self._root / _INCOMING)
        try:
            size = await _written(descriptor, chunks, limit)
            await finish_before_cancel(asyncio.to_thread(self._place, descriptor, Path(temporary), folder, name))
        finally:
            os.close(descriptor)
            with suppress(OSError):  # It has its own name by now, or else the next start removes it.
                os.unlink(temporary)  # noqa: PTH108 - a name as `mkstemp` gave it.
        stored = StoredFile(ref=f"{folder}/{name}", path=self._root / folder / name, size=size)
        await self._make_room(size, stored.path)
        return stored

    def _place(self, descriptor: int, temporary: Path, folder: str, name: str) -> None:
        os.fsync(descriptor)
        target = self._path(f"{folder}/{name}")
        make_private_directory(target.parent)
        temporary.replace(target)
        fsync_directory(target.parent)

    async def move(self, ref: str, folder: str, name: str) -> StoredFile:
        """Give a file another place; it stays the same file."""
        await asyncio.to_thread(self._move, ref, folder, name)
        return await self.find(f"{folder}/{name}")

    def _move(self, ref: str, folder: str, name: str) -> None:
        target = self._path(f"{folder}/{name}")
        make_private_directory(target.parent)
        try:
            self._path(ref).rename(target)
        except FileNotFoundError as gone:
            raise Refused("That file is not kept any more; send it again.") from gone

    async def find(self, ref: str) -> StoredFile:
        """Return a file that is there; `Refused` when it is not, or not any more."""
        return await asyncio.to_thread(self._find, ref)

    def _find(self, ref: str) -> StoredFile:
        path = self._path(ref)
        try:
            return StoredFile(ref=ref, path=path, size=path.stat().st_size)
        except OSError as gone:
            raise Refused(f"The file {path.name} is not kept any more.") from gone

    async def read(self, ref: str, limit: int) -> bytes:
        """Return at most `limit` bytes from the beginning."""
        return await asyncio.to_thread(self._read, ref, limit)

    def _read(self, ref: str, limit: int) -> bytes:
        with self._find(ref).path.open("rb") as file:
            return file.read(limit)

    async def drop(self, folder: str) -> None:
        """Remove a folder with all that is in it."""
        if await asyncio.to_thread(self._drop, folder):
            self._total = await asyncio.to_thread(self._count)

    def _drop(self, folder: str) -> bool:
        path = self._path(f"{folder}/all").parent
        is_there = path.is_dir()
        if is_there:
            shutil.rmtree(path, onerror=_log_undeletable)
        return is_there

    async def drop_older(self, folder: str, before: float) -> None:
        """Remove the files of `folder` that were written before that time."""
        if await asyncio.to_thread(self._drop_older, folder, before):
            self._total = await asyncio.to_thread(self._count)

    def _drop_older(self, folder: str, before: float) -> int:
        path = self._path(f"{folder}/all").parent
        old = [file for written, _, file in self._files(path.name) if written < before]
        return sum(map(_removed, old))

    async def folders(self) -> list[str]:
        return await asyncio.to_thread(self._folders)

    def _folders(self) -> list[str]:
        return [entry.name for entry in os.scandir(self._root) if entry.is_dir() and not entry.name.startswith(".")]

    async def _make_room(self, size: int, kept: Path) -> None:
        self._total += size
        if self._total > self.budget:
            self._total = await asyncio.to_thread(self._evict, kept)

    def _evict(self, kept: Path) -> int:
        """Remove the oldest files, so many that the next few need not look for room again; return what is left."""
        files = sorted(self._files())
        before = left = sum(size for _, size, _ in files)
        for _, size, file in files:
            if left <= self.budget * _ROOM_AFTER_CLEARING:
                break
            if file != kept and _removed(file):
                left -= size
        log.info("old_files_removed", freed=in_bytes(before - left))
        return left

    def _files(self, *folders: str) -> Iterator[tuple[float, int, Path]]:
        """Yield when each file was written, its size and where it is; of all folders, where none is named."""
        for folder in folders or self._folders():
            with suppress(FileNotFoundError):  # A folder or a file may be removed meanwhile.
                for entry in os.scandir(self._root / folder):
                    found = entry.stat(follow_symlinks=False)
                    yield found.st_mtime, found.st_size, Path(entry.path)

    def _path(self, ref: str) -> Path:
        folder, _, name = ref.partition("/")
        if not (_COMPONENT.fullmatch(folder) and _COMPONENT.fullmatch(name)):
            raise Refused("There is no such file.")
        return self._root / folder / name


def _removed(file: Path) -> bool:
    try:
        file.unlink()
    except OSError as trouble:
        log.warning("file_not_removed", file=str(file), reason=trouble.strerror)
        return False
    return True


async def _written(descriptor: int, chunks: AsyncIterable[bytes], limit: int) -> int:
    """Write what comes, in large blocks, and return how much it was.

    A block is written wholly: a thread that went on after a cancellation could write to what gets the number next.
    """
    size = 0
    block = bytearray()
    async for chunk in chunks:
        size += len(chunk)
        if size > limit:
            raise TooLarge
        block += chunk
        if len(block) >= _BLOCK:
            await finish_before_cancel(asyncio.to_thread(write_all, descriptor, bytes(block)))
            block.clear()
    await finish_before_cancel(asyncio.to_thread(write_all, descriptor, bytes(block)))
    return size


def _log_undeletable(_function: object, path: str, error: tuple[object, BaseException, object]) -> None:
    log.warning("file_not_removed", file=path, reason=str(error[1]))
