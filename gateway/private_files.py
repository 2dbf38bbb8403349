"""Session files as the system sees them: opened for their owner alone, read and written whole. Everything blocks."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from config.files import make_private_directory

__all__ = [
    "APPENDING",
    "OPEN_TO_OTHERS",
    "PRIVATE",
    "close_to_others",
    "make_private_folder",
    "opened",
    "read_from",
    "write",
]

log: structlog.stdlib.BoundLogger = structlog.get_logger()

PRIVATE = 0o600
_PRIVATE_FOLDER = 0o700

OPEN_TO_OTHERS = 0o077
"""The rights that nobody else shall have."""

_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW

APPENDING = _OPEN | os.O_RDWR | os.O_APPEND


@contextmanager
def opened(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    descriptor = os.open(path, _OPEN | flags, PRIVATE)
    try:
        close_to_others(path, descriptor)
        yield descriptor
    finally:
        os.close(descriptor)


def close_to_others(path: Path, descriptor: int) -> None:
    """Take away what others may do with a file that somebody has opened to them."""
    mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
    if mode & OPEN_TO_OTHERS:
        try:
            os.fchmod(descriptor, PRIVATE)
        except OSError as trouble:
            log.warning("file_open_to_others", file=path.name, mode=f"{mode:o}", reason=str(trouble))
        else:
            log.warning("file_closed_to_others", file=path.name, mode=f"{mode:o}")


def make_private_folder(folder: Path) -> None:
    """Have a folder that is ours alone; `PermissionError` when we cannot write there."""
    make_private_directory(folder)
    if folder.stat().st_mode & OPEN_TO_OTHERS:
        folder.chmod(_PRIVATE_FOLDER)
        log.warning("folder_closed_to_others", folder=str(folder))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


def write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def read_from(descriptor: int, offset: int, end: int) -> bytes:
    """Read all of a range; a disk that gives less has failed, and what it gave must not be believed."""
    data = os.pread(descriptor, end - offset, offset)
    while len(data) < end - offset:
        part = os.pread(descriptor, end - offset - len(data), offset + len(data))
        if not part:
            raise OSError(errno.EIO, "The disk gave less than the file holds")
        data += part
    return data
