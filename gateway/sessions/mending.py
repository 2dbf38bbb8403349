"""Mending transcripts: a torn tail is cut off, what nobody can trust is built anew, and nothing is thrown away.

Everything here blocks.
"""

import os
from pathlib import Path

import structlog

from config.files import Fsync
from gateway.private_files import APPENDING, opened, read_from, write
from gateway.sessions.encoding import Damaged, decode
from gateway.sessions.line_reading import end_of_lines

__all__ = [
    "REBUILT",
    "is_entry",
    "keep_aside",
    "mend",
    "rebuild",
    "repair_tail",
    "set_aside",
]

log: structlog.stdlib.BoundLogger = structlog.get_logger()

REBUILT = ".rebuilt"
"""How the names of unfinished files end that are to take the place of distrusted ones."""

_COPIED = 1024 * 1024


def mend(path: Path) -> int:
    """Repair the tail of a file that was opened for reading, and return its size."""
    with opened(path, APPENDING) as descriptor:
        return repair_tail(path, descriptor)


def repair_tail(path: Path, descriptor: int) -> int:
    """Make the file end on a whole line, and return its size.

    A last line that lacks nothing but its newline gets it. One that was cut is copied to `<name>.corrupt` first.
    """
    size = os.fstat(descriptor).st_size
    if size == 0 or os.pread(descriptor, 1, size - 1) == b"\n":
        return size
    start = end_of_lines(descriptor, size)
    torn = read_from(descriptor, start, size)
    if is_entry(torn):
        write(descriptor, b"\n")
        return size + 1
    keep_aside(path, torn)
    os.ftruncate(descriptor, start)
    log.warning("torn_line_cut_off", file=path.name, size=len(torn))
    return start


def is_entry(line: bytes) -> bool:
    try:
        decode(line)
    except Damaged:
        return False
    return True


def keep_aside(path: Path, data: bytes) -> None:
    """Keep a piece of a transcript that does not belong to it, in `<name>.corrupt` beside it."""
    with opened(path.with_name(f"{path.name}.corrupt"), APPENDING | os.O_CREAT) as descriptor:
        write(descriptor, data + b"\n")
        os.fsync(descriptor)


def set_aside(path: Path) -> Path:
    """Rename an unreadable file, over no other, and say so. What it holds is kept for a person to look at."""
    target = path.with_name(f"{path.name}.corrupted")
    number = 1
    while target.exists():
        number += 1
        target = path.with_name(f"{path.name}.corrupted-{number}")
    path.rename(target)
    log.error("transcript_set_aside", file=str(target))
    return target


def rebuild(path: Path, keep: int, rest: bytes, fsync: Fsync) -> None:
    """Put a new file in place of one that cannot be trusted: its first `keep` bytes and `rest`, durable before it is.

    The folder has to be synced afterwards.
    """
    temporary = path.with_name(f".{path.name}{REBUILT}")
    temporary.unlink(missing_ok=True)
    try:
        with opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as target:
            if keep:
                with opened(path) as source:
                    _copy(source, target, keep)
            write(target, rest)
            fsync(target)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    log.warning("transcript_rebuilt", file=path.name)


def _copy(source: int, target: int, size: int) -> None:
    for begin in range(0, size, _COPIED):
        write(target, read_from(source, begin, min(begin + _COPIED, size)))
