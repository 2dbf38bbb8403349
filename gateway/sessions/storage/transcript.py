"""One transcript file: appended to line by line, read from its end, and never trusted to have been left in good order.

Everything here blocks, so it runs in the disk thread of `SessionManager`.
"""

import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import structlog

from config.files import Fsync
from gateway.private_files import APPEND, CREATE, close_to_others, open_private, opened, read_range, write_all
from gateway.sessions.entries import Checkpoint, Entry, Header
from gateway.sessions.storage.codec import DamagedEntry, decode, is_named, refuse_newer, with_header
from gateway.sessions.storage.tail import NeverStop, StopCondition

BLOCK = 64 * 1024


def lines_forwards(path: Path) -> Iterator[bytes]:
    """Yield every line as it is, newline included; the last may lack it. Nothing is mended."""
    with path.open("rb") as file:
        yield from file


def lines_backwards(path: Path) -> Iterator[bytes]:
    """Yield every line without its newline, the last one first."""
    with opened(path) as descriptor:
        size = os.fstat(descriptor).st_size
        yield from lines_before(descriptor, size, read_range(descriptor, max(0, size - BLOCK), size))


def lines_before(descriptor: int, end: int, block: bytes) -> Iterator[bytes]:
    """Yield the lines of the first `end` bytes, the last one first, reading block by block before the last `block`."""
    rest: list[bytes] = []
    while end > 0:
        end -= len(block)
        head, *lines = block.split(b"\n")
        if lines:
            lines[-1] += b"".join(reversed(rest))
            rest = []
            yield from reversed(lines)
        rest.append(head)
        if end > 0:
            block = read_range(descriptor, max(0, end - BLOCK), end)
    yield b"".join(reversed(rest))


def end_of_last_line(descriptor: int, size: int) -> int:
    """Return where the last whole line of the first `size` bytes ends."""
    end = size
    while end > 0:
        begin = max(0, end - BLOCK)
        newline = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        end = begin
    return 0


def read_to_end(path: Path, begin: int) -> bytes:
    """Return everything from the offset `begin` on."""
    with opened(path) as descriptor:
        return read_range(descriptor, begin, os.fstat(descriptor).st_size)


log: structlog.stdlib.BoundLogger = structlog.get_logger()

REBUILT = ".rebuilt"
"""How the names of unfinished files end that are to take the place of distrusted ones."""

_COPIED = 1024 * 1024


def mend(path: Path) -> int:
    """Repair the tail of a file that was opened for reading, and return its size."""
    with opened(path, APPEND) as descriptor:
        return repair_tail(path, descriptor)


def repair_tail(path: Path, descriptor: int) -> int:
    """Make the file end on a whole line, and return its size.

    A last line that lacks nothing but its newline gets it. One that was cut is copied to `<name>.corrupt` first.
    """
    size = os.fstat(descriptor).st_size
    if size == 0 or os.pread(descriptor, 1, size - 1) == b"\n":
        return size
    start = end_of_last_line(descriptor, size)
    torn = read_range(descriptor, start, size)
    if is_entry(torn):
        write_all(descriptor, b"\n")
        return size + 1
    save_damaged(path, torn)
    os.ftruncate(descriptor, start)
    log.warning("torn_line_cut_off", file=path.name, size=len(torn))
    return start


def is_entry(line: bytes) -> bool:
    try:
        decode(line)
    except DamagedEntry:
        return False
    return True


def save_damaged(path: Path, data: bytes) -> None:
    """Keep a piece of a transcript that does not belong to it, in `<name>.corrupt` beside it."""
    with opened(path.with_name(f"{path.name}.corrupt"), APPEND | os.O_CREAT) as descriptor:
        write_all(descriptor, data + b"\n")
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
        with opened(temporary, CREATE) as target:
            if keep:
                with opened(path) as source:
                    _copy(source, target, keep)
            write_all(target, rest)
            fsync(target)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    log.warning("transcript_rebuilt", file=path.name)


def _copy(source: int, target: int, size: int) -> None:
    for begin in range(0, size, _COPIED):
        write_all(target, read_range(source, begin, min(begin + _COPIED, size)))


_HEAD = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptTail:
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


class TranscriptWriter:
    """A transcript that is open for appending. Closing it is up to whoever opened it."""

    def __init__(self, path: Path, *, is_new: bool = False) -> None:
        """Open the file, and mend its tail. Unless it `is_new`, it has to be there, and not be `Newer`."""
        if is_new and _has_content(path):
            set_aside(path)
        self._name = str(path)
        self._descriptor = open_private(path, APPEND | (os.O_CREAT if is_new else 0))
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
            write_all(self._descriptor, data)
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


def read(path: Path, enough: StopCondition | None = None, *, max_bytes: int | None = None) -> TranscriptTail:
    """Read a transcript backwards until there is enough, or whole, and mend its tail once it is known to be one.

    Raises `Newer`, `Unreadable`, or `OSError` when the disk fails; the file is then as it was.
    """
    with opened(path) as descriptor:
        before = os.fstat(descriptor).st_size
        block = read_range(descriptor, max(0, before - BLOCK), before)
        head = _head(descriptor) if before > BLOCK else block.partition(b"\n")[0]
        refuse_newer(path, head)
        gathered = _gather(lines_before(descriptor, before, block), enough or NeverStop(), max_bytes)
        if not gathered.is_whole and not is_named(path, [*_entries_in(head), *gathered.entries]):
            gathered = _gather(lines_before(descriptor, before, block), NeverStop(), None)
    ends = not block or block.endswith(b"\n")
    entries = with_header(gathered.entries, path) if gathered.is_whole else gathered.entries
    size = before if ends else mend(path)
    return TranscriptTail(
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


def _gather(lines: Iterator[bytes], enough: StopCondition, max_bytes: int | None) -> _Gathered:
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
        except DamagedEntry:
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
    except DamagedEntry:
        return []


def sync(path: Path, fsync: Fsync) -> None:
    """Make what was appended durable."""
    with opened(path) as descriptor:
        fsync(descriptor)


_OPEN_LIMIT = 256


class OpenWriters:
    def __init__(self) -> None:
        self._writers: OrderedDict[str, TranscriptWriter] = OrderedDict()

    def get(self, key: str, path: Path, *, is_new: bool) -> TranscriptWriter:
        """Return the writer of `key`; a file that somebody else has changed is opened anew, and its tail mended."""
        writer = self._writers.get(key)
        if writer is not None and writer.is_current():
            self._writers.move_to_end(key)
            return writer
        self.close(key)
        writer = self._writers[key] = TranscriptWriter(path, is_new=is_new)
        if len(self._writers) > _OPEN_LIMIT:
            self._writers.popitem(last=False)[1].close()
        return writer

    def close(self, key: str) -> None:
        writer = self._writers.pop(key, None)
        if writer is not None:
            writer.close()

    def close_all(self) -> None:
        while self._writers:
            self._writers.popitem()[1].close()
