"""Session files as the system sees them: opened for their owner alone, read and written whole. Everything blocks."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

__all__ = [
    "APPENDING",
    "PRIVATE",
    "close_to_others",
    "opened",
    "read_from",
    "write",
]

log: structlog.stdlib.BoundLogger = structlog.get_logger()

PRIVATE = 0o600

_OPEN_TO_OTHERS = 0o077

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
    if mode & _OPEN_TO_OTHERS:
        try:
            os.fchmod(descriptor, PRIVATE)
        except OSError as trouble:
            log.warning("file_open_to_others", file=path.name, mode=f"{mode:o}", reason=str(trouble))
        else:
            log.warning("file_closed_to_others", file=path.name, mode=f"{mode:o}")


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
