"""Makes a tar archive piece by piece, and remembers what is in it."""

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from tarfile import BLOCKSIZE, PAX_FORMAT, TarInfo

from gateway.backup.layout import Member

__all__ = ["Packing"]

_BLOCK = 256 * 1024
_PRIVATE = 0o600
_OWNER = 0o700


class Packing:
    """Each method yields the bytes of one member; `end` those behind the last one."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.skipped: list[str] = []

    def data(self, name: str, data: bytes, mode: int = _PRIVATE) -> Iterator[bytes]:
        yield _header(name, len(data), mode)
        yield data
        yield _padding(len(data))
        self.members[name] = Member(len(data), hashlib.sha256(data).hexdigest())

    def file(self, name: str, path: Path, size: int | None = None) -> Iterator[bytes]:
        """Take a file, or its first `size` bytes. One that is not there any more is left out."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        except OSError:
            self.skipped.append(name)
            return
        try:
            yield from self._opened(name, descriptor, size)
        finally:
            os.close(descriptor)

    def _opened(self, name: str, descriptor: int, size: int | None) -> Iterator[bytes]:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            self.skipped.append(name)
            return
        size = status.st_size if size is None else min(size, status.st_size)
        digest = hashlib.sha256()
        yield _header(name, size, status.st_mode & _OWNER)
        for block in self._blocks(name, descriptor, size):
            digest.update(block)
            yield block
        yield _padding(size)
        self.members[name] = Member(size, digest.hexdigest())

    def _blocks(self, name: str, descriptor: int, size: int) -> Iterator[bytes]:
        """Yield exactly `size` bytes: the header has promised them, whatever becomes of the file meanwhile."""
        at = 0
        while at < size:
            block = os.pread(descriptor, min(_BLOCK, size - at), at)
            if not block:
                self.skipped.append(name)
                block = bytes(min(_BLOCK, size - at))
            yield block
            at += len(block)

    def tree(self, name: str, folder: Path) -> Iterator[bytes]:
        """Take every file below a folder; links and the like are left out, and what begins with `.incoming`."""
        try:
            with os.scandir(folder) as found:
                inside = sorted(found, key=lambda each: each.name)
        except FileNotFoundError:
            return
        except OSError:
            self.skipped.append(name)
            return
        for each in inside:
            inner = f"{name}/{each.name}"
            if each.is_dir(follow_symlinks=False):
                if each.name != ".incoming":
                    yield from self.tree(inner, folder / each.name)
            elif each.is_file(follow_symlinks=False):
                yield from self.file(inner, folder / each.name)
            else:
                self.skipped.append(inner)

    def end(self) -> Iterator[bytes]:
        yield bytes(2 * BLOCKSIZE)


def _header(name: str, size: int, mode: int) -> bytes:
    info = TarInfo(name)
    info.size = size
    info.mode = mode
    return info.tobuf(PAX_FORMAT, "utf-8", "surrogateescape")


def _padding(size: int) -> bytes:
    return bytes(-size % BLOCKSIZE)
