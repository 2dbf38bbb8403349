"""One transcript file: appended to line by line, read from its end, and never trusted to have been left in good order.

Everything here blocks, so it runs in the disk thread of `SessionManager`.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from config.files import Fsync
from gateway.private_files import APPENDING, PRIVATE, close_to_others, opened, read_from, write
from gateway.sessions.encoding import Damaged, decode
from gateway.sessions.entries import Checkpoint, Entry, Header
from gateway.sessions.identity import is_named, refuse_newer, with_header
from gateway.sessions.line_reading import BLOCK, lines_before
from gateway.sessions.mending import is_entry, mend, repair_tail, set_aside
from gateway.sessions.tail import Everything, Sufficiency

__all__ = [
    "Reading",
    "Writer",
    "read",
    "sync",
]

_HEAD = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A transcript as it was read, or the end of it, oldest entry first.

    When it `is_whole`, the first entry is the header, if need be one made up from what the rest tells.
    """

    entries: list[Entry]
    size: int
    """Bytes of the file."""
    taken: int
    """Bytes that were read for these entries."""
    is_whole: bool = True
    damaged: int = 0
    is_torn: bool = False

    @property
    def header(self) -> Header:
        header = self.entries[0]
        assert isinstance(header, Header)  # noqa: S101 - whoever asks has seen that it is whole.
        return header

    @property
    def key(self) -> str:
        """The key of its session, where it was read for its state: such a reading ends at a header or checkpoint."""
        named = self.entries[0]
        assert isinstance(named, Header | Checkpoint)  # noqa: S101 - as above.
        return named.key


class Writer:
    """A transcript that is open for appending. Closing it is up to whoever opened it."""

    def __init__(self, path: Path, *, is_new: bool = False) -> None:
        """Open the file, and mend its tail. Unless it `is_new`, it has to be there, and not be `Newer`."""
        if is_new and _has_content(path):
            set_aside(path)
        self._name = str(path)
        self._descriptor = os.open(path, APPENDING | (os.O_CREAT if is_new else 0), PRIVATE)
        try:
            close_to_others(path, self._descriptor)
            refuse_newer(path, _head(self._descriptor))
            self.size = repair_tail(path, self._descriptor)
            self._inode = os.fstat(self._descriptor).st_ino
        except BaseException:  # Nobody else knows the descriptor yet.
            self.close()
            raise

    def is_current(self) -> bool:
        """Tell whether the file is still there and nobody else has changed it."""
        try:
            status = os.stat(self._name, follow_symlinks=False)  # noqa: PTH116 - each append asks; this is fastest.
        except FileNotFoundError:
            return False
        return status.st_ino == self._inode and status.st_size == self.size

    def append(self, data: bytes) -> None:
        """Write whole lines at the end: all of them, or none and raise `OSError`."""
        try:
            write(self._descriptor, data)
        except OSError:
            with suppress(OSError):
                # Should this fail as well, the next one who opens the file finds a torn tail and cuts it off.
                os.ftruncate(self._descriptor, self.size)
            raise
        self.size += len(data)

    def close(self) -> None:
        os.close(self._descriptor)


def _has_content(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False


def read(path: Path, enough: Sufficiency | None = None, *, max_bytes: int | None = None) -> Reading:
    """Read a transcript backwards until there is enough, or whole, and mend its tail once it is known to be one.

    Raises `Newer`, `Unreadable`, or `OSError` when the disk fails; the file is then as it was.
    """
    with opened(path) as descriptor:
        before = os.fstat(descriptor).st_size
        block = read_from(descriptor, max(0, before - BLOCK), before)
        head = _head(descriptor) if before > BLOCK else block.partition(b"\n")[0]
        refuse_newer(path, head)
        gathered = _gather(lines_before(descriptor, before, block), enough or Everything(), max_bytes)
        if not gathered.is_whole and not is_named(path, [*_entries_in(head), *gathered.entries]):
            gathered = _gather(lines_before(descriptor, before, block), Everything(), None)
    ends = not block or block.endswith(b"\n")
    entries = with_header(gathered.entries, path) if gathered.is_whole else gathered.entries
    size = before if ends else mend(path)
    return Reading(
        entries=entries,
        size=size,
        taken=gathered.taken,
        is_whole=gathered.is_whole,
        damaged=gathered.damaged,
        is_torn=size < before,
    )


@dataclass(slots=True)
class _Gathered:
    entries: list[Entry]
    taken: int = 0
    damaged: int = 0
    is_whole: bool = False


def _gather(lines: Iterator[bytes], enough: Sufficiency, max_bytes: int | None) -> _Gathered:
    """Decode lines from the last one backwards, until there is enough of them.

    A line written twice over counts once. What comes after the last newline counts as `repair_tail` will have it:
    a whole line, or none.
    """
    gathered = _Gathered([])
    seen: dict[int, Entry] = {}
    last = next(lines)
    for line in chain([last] if is_entry(last) else [], lines):
        gathered.taken += len(line) + 1
        try:
            entry = decode(line)
        except Damaged:
            gathered.damaged += 1
            continue
        if seen.setdefault(entry.seq, entry) is not entry and seen[entry.seq] == entry:
            continue
        gathered.entries.append(entry)
        enough.add(entry)
        if enough.is_enough or (max_bytes is not None and gathered.taken > max_bytes):
            break
    else:
        gathered.is_whole = True
    gathered.entries.reverse()
    return gathered


def _head(descriptor: int) -> bytes:
    """Return the first line, or as much of it as may be needed."""
    first, newline, _ = os.pread(descriptor, _HEAD, 0).partition(b"\n")
    return first if newline else os.pread(descriptor, BLOCK, 0).partition(b"\n")[0]


def _entries_in(line: bytes) -> list[Entry]:
    try:
        return [decode(line)]
    except Damaged:
        return []


def sync(path: Path, fsync: Fsync) -> None:
    """Make what was appended durable."""
    with opened(path) as descriptor:
        fsync(descriptor)
