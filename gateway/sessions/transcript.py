"""One transcript file: appended to line by line, read from its end, and never trusted to have been left in good order.

Everything here blocks, so it runs in the disk thread of `SessionManager`.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import msgspec
import structlog

from gateway.sessions.entries import FORMAT, Activated, Checkpoint, Damaged, Entry, Header, decode
from gateway.sessions.names import file_name, parse_key
from gateway.sessions.tail import Everything, Sufficiency

__all__ = [
    "REBUILT",
    "Newer",
    "Outline",
    "Reading",
    "Unreadable",
    "Writer",
    "end_of",
    "keep_aside",
    "lines_backwards",
    "lines_forwards",
    "read",
    "rebuild",
    "set_aside",
    "sync",
]

log: structlog.stdlib.BoundLogger = structlog.get_logger()

REBUILT = ".rebuilt"
"""How the names of unfinished files end that are to take the place of distrusted ones."""

_PRIVATE = 0o600
_OPEN_TO_OTHERS = 0o077
_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW
_APPENDING = _OPEN | os.O_RDWR | os.O_APPEND
_HEAD = 2048
_BLOCK = 64 * 1024
_COPIED = 1024 * 1024


class Unreadable(Exception):
    """A file that is no transcript of the session it is named for."""


class Newer(Exception):
    """A transcript that only a newer version can read. `outline` has what can be told of it."""

    def __init__(self, outline: "Outline") -> None:
        super().__init__(f"it was written by a newer Gatehouse (format {outline.version}, this one reads {FORMAT})")
        self.outline = outline


class Outline(msgspec.Struct, frozen=True, kw_only=True):
    """What the header of any version tells."""

    version: int
    key: str
    agent: str = ""
    epoch: int = 0
    highest_number: int = 0


_outline_decoder = msgspec.json.Decoder(Outline)
_Naming = Header | Activated | Checkpoint
"""The entries that say to which session they belong."""


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
        self._descriptor = os.open(path, _APPENDING | (os.O_CREAT if is_new else 0), _PRIVATE)
        try:
            _close_to_others(path, self._descriptor)
            _refuse_newer(path, _head(self._descriptor))
            self.size = _repair_tail(path, self._descriptor)
            self._inode = os.fstat(self._descriptor).st_ino
        except BaseException:
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
            _write(self._descriptor, data)
        except OSError:
            with suppress(OSError):
                # Should this fail as well, the next one who opens the file finds a torn tail and cuts it off.
                os.ftruncate(self._descriptor, self.size)
            raise
        self.size += len(data)

    def close(self) -> None:
        os.close(self._descriptor)


def read(path: Path, enough: Sufficiency | None = None, *, max_bytes: int | None = None) -> Reading:
    """Read a transcript backwards until there is enough, or whole, and mend its tail once it is known to be one.

    Raises `Newer`, `Unreadable`, or `OSError` when the disk fails; the file is then as it was.
    """
    with _opened(path) as descriptor:
        before = os.fstat(descriptor).st_size
        block = _read_from(descriptor, max(0, before - _BLOCK), before)
        head = _head(descriptor) if before > _BLOCK else block.partition(b"\n")[0]
        _refuse_newer(path, head)
        gathered = _gather(_lines_before(descriptor, before, block), enough or Everything(), max_bytes)
        if not gathered.is_whole and not _is_named(path, [*_entries_in(head), *gathered.entries]):
            gathered = _gather(_lines_before(descriptor, before, block), Everything(), None)
    ends = not block or block.endswith(b"\n")
    entries = _with_header(gathered.entries, path) if gathered.is_whole else gathered.entries
    size = before if ends else _mend(path)
    return Reading(
        entries=entries,
        size=size,
        taken=gathered.taken,
        is_whole=gathered.is_whole,
        damaged=gathered.damaged,
        is_torn=size < before,
    )


def rebuild(path: Path, keep: int, rest: bytes, fsync: Callable[[int], None]) -> None:
    """Put a new file in place of one that cannot be trusted: its first `keep` bytes and `rest`, durable before it is.

    The folder has to be synced afterwards.
    """
    temporary = path.with_name(f".{path.name}{REBUILT}")
    temporary.unlink(missing_ok=True)
    try:
        with _opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as target:
            if keep:
                with _opened(path) as source:
                    _copy(source, target, keep)
            _write(target, rest)
            fsync(target)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    log.warning("transcript_rebuilt", file=path.name)


def _copy(source: int, target: int, size: int) -> None:
    for begin in range(0, size, _COPIED):
        _write(target, _read_from(source, begin, min(begin + _COPIED, size)))


def lines_forwards(path: Path) -> Iterator[bytes]:
    """Yield every line as it is, newline included; the last may lack it. Nothing is mended."""
    with path.open("rb") as file:
        yield from file


def lines_backwards(path: Path) -> Iterator[bytes]:
    """Yield every line without its newline, the last one first."""
    with _opened(path) as descriptor:
        size = os.fstat(descriptor).st_size
        yield from _lines_before(descriptor, size, _read_from(descriptor, max(0, size - _BLOCK), size))


def end_of(path: Path, begin: int) -> bytes:
    """Return everything from the offset `begin` on."""
    with _opened(path) as descriptor:
        return _read_from(descriptor, begin, os.fstat(descriptor).st_size)


def _lines_before(descriptor: int, end: int, block: bytes) -> Iterator[bytes]:
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
            block = _read_from(descriptor, max(0, end - _BLOCK), end)
    yield b"".join(reversed(rest))


def sync(path: Path, fsync: Callable[[int], None]) -> None:
    """Make what was appended durable."""
    with _opened(path) as descriptor:
        fsync(descriptor)


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


def _has_content(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False


@contextmanager
def _opened(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    descriptor = os.open(path, _OPEN | flags, _PRIVATE)
    try:
        _close_to_others(path, descriptor)
        yield descriptor
    finally:
        os.close(descriptor)


def _close_to_others(path: Path, descriptor: int) -> None:
    """Take away what others may do with a file that somebody has opened to them."""
    mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
    if mode & _OPEN_TO_OTHERS:
        try:
            os.fchmod(descriptor, _PRIVATE)
        except OSError as trouble:
            log.warning("file_open_to_others", file=path.name, mode=f"{mode:o}", reason=str(trouble))
        else:
            log.warning("file_closed_to_others", file=path.name, mode=f"{mode:o}")


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _read_from(descriptor: int, offset: int, end: int) -> bytes:
    """Read all of a range; a disk that gives less has failed, and what it gave must not be believed."""
    data = os.pread(descriptor, end - offset, offset)
    while len(data) < end - offset:
        part = os.pread(descriptor, end - offset - len(data), offset + len(data))
        if not part:
            raise OSError(errno.EIO, "The disk gave less than the file holds")
        data += part
    return data


def _mend(path: Path) -> int:
    """Repair the tail of a file that was opened for reading, and return its size."""
    with _opened(path, _APPENDING) as descriptor:
        return _repair_tail(path, descriptor)


def _repair_tail(path: Path, descriptor: int) -> int:
    """Make the file end on a whole line, and return its size.

    A last line that lacks nothing but its newline gets it. One that was cut is copied to `<name>.corrupt` first.
    """
    size = os.fstat(descriptor).st_size
    if size == 0 or os.pread(descriptor, 1, size - 1) == b"\n":
        return size
    start = _start_of_last_line(descriptor, size)
    torn = _read_from(descriptor, start, size)
    if _is_entry(torn):
        _write(descriptor, b"\n")
        return size + 1
    keep_aside(path, torn)
    os.ftruncate(descriptor, start)
    log.warning("torn_line_cut_off", file=path.name, size=len(torn))
    return start


def _start_of_last_line(descriptor: int, size: int) -> int:
    end = size
    while end > 0:
        begin = max(0, end - _BLOCK)
        at = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if at >= 0:
            return begin + at + 1
        end = begin
    return 0


def keep_aside(path: Path, data: bytes) -> None:
    """Keep a piece of a transcript that does not belong to it, in `<name>.corrupt` beside it."""
    with _opened(path.with_name(f"{path.name}.corrupt"), _APPENDING | os.O_CREAT) as descriptor:
        _write(descriptor, data + b"\n")
        os.fsync(descriptor)


def _is_entry(line: bytes) -> bool:
    try:
        decode(line)
    except Damaged:
        return False
    return True


@dataclass(slots=True)
class _Gathered:
    entries: list[Entry]
    taken: int = 0
    damaged: int = 0
    is_whole: bool = False


def _gather(lines: Iterator[bytes], enough: Sufficiency, max_bytes: int | None) -> _Gathered:
    """Decode lines from the last one backwards, until there is enough of them.

    A line written twice over counts once. What comes after the last newline counts as `_repair_tail` will have it:
    a whole line, or none.
    """
    gathered = _Gathered([])
    seen: dict[int, Entry] = {}
    last = next(lines)
    for line in chain([last] if _is_entry(last) else [], lines):
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
    return first if newline else os.pread(descriptor, _BLOCK, 0).partition(b"\n")[0]


def _entries_in(line: bytes) -> list[Entry]:
    try:
        return [decode(line)]
    except Damaged:
        return []


def _refuse_newer(path: Path, head: bytes) -> None:
    """Raise `Newer` before anything is changed in a file whose format we do not know."""
    try:
        outline = _outline_decoder.decode(head)
    except (ValueError, RecursionError):
        return
    if outline.version > FORMAT and file_name(outline.key) == path.name:
        raise Newer(outline)


def _is_named(path: Path, entries: Iterable[Entry]) -> bool:
    """Tell whether one of the entries says that this is the file of its session."""
    return any(isinstance(entry, _Naming) and file_name(entry.key) == path.name for entry in entries)


def _with_header(entries: list[Entry], path: Path) -> list[Entry]:
    """Check that these entries are those of the session the file is named for, and put a lost header back."""
    for entry in entries:
        if isinstance(entry, _Naming) and file_name(entry.key) == path.name:
            header = _checked(entry) if isinstance(entry, Header) else _header_from(entry, entries)
            return [header, *(other for other in entries if not isinstance(other, Header))]
    raise Unreadable(f"{path.name} does not say which session it holds")


def _checked(header: Header) -> Header:
    """Believe the key, which the file's name vouches for, where the header contradicts itself."""
    scope, number = _parsed(header.key)
    return msgspec.structs.replace(header, scope=scope, number=number)


def _parsed(key: str) -> tuple[str, int]:
    try:
        return parse_key(key)
    except ValueError as trouble:
        raise Unreadable(str(trouble)) from trouble


def _header_from(naming: Activated | Checkpoint, entries: list[Entry]) -> Header:
    """Make up a header for a session whose own was damaged; where it was started is all that is lost."""
    scope, number = _parsed(naming.key)
    told = naming.state if isinstance(naming, Checkpoint) else naming
    return Header(
        seq=1,
        ts=entries[0].ts,
        version=FORMAT,
        id=file_name(naming.key).removesuffix(".jsonl")[-32:],
        key=naming.key,
        scope=scope,
        number=number,
        created=entries[0].ts,
        agent=scope.split(":")[1] if ":" in scope else "",
        origin=None,
        epoch=told.epoch,
        highest_number=told.highest_number,
    )
