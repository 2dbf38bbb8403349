"""One transcript file: appended to line by line, read whole, and never trusted to have been left in good order.

Everything here blocks, so it runs in the disk thread of `SessionManager`.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from gateway.sessions.entries import FORMAT, Activated, Damaged, Entry, Header, decode
from gateway.sessions.names import file_name, parse_key

__all__ = [
    "Newer",
    "Outline",
    "Reading",
    "Unreadable",
    "append",
    "check",
    "lines_backwards",
    "lines_forwards",
    "read",
    "set_aside",
    "sync",
]

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_PRIVATE = 0o600
_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW
_TAIL_STEP = 64 * 1024


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A transcript as it was read; its first entry is the header, if need be one made up from what the rest tells."""

    entries: list[Entry]
    size: int
    damaged: int = 0
    is_torn: bool = False

    @property
    def header(self) -> Header:
        header = self.entries[0]
        assert isinstance(header, Header)  # noqa: S101 - `read` returns no other.
        return header


def append(path: Path, data: bytes, *, is_new: bool) -> None:
    """Write whole lines at the end: all of them or none. A file that is not new has to be there.

    Raises `OSError` when they could not be written; the file is then as it was.
    """
    if is_new and _has_content(path):
        set_aside(path)
    with _opened(path, os.O_CREAT if is_new else 0) as descriptor:
        size = _repair_tail(path, descriptor)
        try:
            _write(descriptor, data)
        except OSError:
            with suppress(OSError):
                # Should this fail as well, the next one who opens the file finds a torn tail and cuts it off.
                os.ftruncate(descriptor, size)
            raise


def read(path: Path) -> Reading:
    """Read a whole transcript, and mend its tail once it is known to be one.

    Raises `Newer`, `Unreadable`, or `OSError` when the disk fails; the file is then as it was.
    """
    with _opened(path) as descriptor:
        _refuse_newer(path, descriptor)
        before = os.fstat(descriptor).st_size
        entries, damaged = _decode_lines(_read_from(descriptor, 0, before))
        entries = _with_header(entries, path)
        size = _repair_tail(path, descriptor)
    return Reading(entries=entries, size=size, damaged=damaged, is_torn=size < before)


def lines_forwards(path: Path) -> Iterator[bytes]:
    """Yield every line as it is, newline included; the last may lack it. Nothing is mended."""
    with path.open("rb") as file:
        yield from file


def lines_backwards(path: Path) -> Iterator[bytes]:
    """Yield every line without its newline, the last one first."""
    with _opened(path, access=os.O_RDONLY) as descriptor:
        yield from _lines_before(descriptor, os.fstat(descriptor).st_size)


def _lines_before(descriptor: int, end: int) -> Iterator[bytes]:
    """Yield the lines of the first `end` bytes, the last one first, reading block by block."""
    rest: list[bytes] = []
    while end > 0:
        begin = max(0, end - _TAIL_STEP)
        block = _read_from(descriptor, begin, end)
        if len(block) < end - begin:
            raise OSError(errno.EIO, "short read")
        end = begin
        head, *lines = block.split(b"\n")
        if not lines:
            rest.append(head)
            continue
        lines[-1] += b"".join(reversed(rest))
        rest = [head]
        yield from reversed(lines)
    yield b"".join(reversed(rest))


def check(path: Path) -> None:
    """Raise `Newer` for a file that must not be appended to."""
    with _opened(path) as descriptor:
        _refuse_newer(path, descriptor)


def sync(path: Path) -> None:
    """Make what was appended durable."""
    with _opened(path) as descriptor:
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


def _has_content(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False


@contextmanager
def _opened(path: Path, flags: int = 0, *, access: int = os.O_RDWR | os.O_APPEND) -> Iterator[int]:
    descriptor = os.open(path, access | _OPEN | flags, _PRIVATE)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _read_from(descriptor: int, offset: int, end: int) -> bytes:
    parts: list[bytes] = []
    while offset < end and (part := os.pread(descriptor, end - offset, offset)):
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


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
    _keep(path.with_name(f"{path.name}.corrupt"), torn)
    os.ftruncate(descriptor, start)
    log.warning("torn_line_cut_off", file=path.name, size=len(torn))
    return start


def _start_of_last_line(descriptor: int, size: int) -> int:
    end = size
    while end > 0:
        begin = max(0, end - _TAIL_STEP)
        at = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if at >= 0:
            return begin + at + 1
        end = begin
    return 0


def _keep(path: Path, torn: bytes) -> None:
    with _opened(path, os.O_CREAT) as descriptor:
        _write(descriptor, torn + b"\n")
        os.fsync(descriptor)


def _is_entry(line: bytes) -> bool:
    try:
        decode(line)
    except Damaged:
        return False
    return True


def _decode_lines(data: bytes) -> tuple[list[Entry], int]:
    """Decode every line that can be, and count those that cannot. A line written twice over counts once.

    What comes after the last newline counts as `_repair_tail` will have it: a whole line, or none.
    """
    *lines, rest = data.split(b"\n")
    if _is_entry(rest):
        lines.append(rest)
    seen: dict[int, Entry] = {}
    entries: list[Entry] = []
    damaged = 0
    for line in lines:
        try:
            entry = decode(line)
        except Damaged:
            damaged += 1
            continue
        if seen.setdefault(entry.seq, entry) is entry or seen[entry.seq] != entry:
            entries.append(entry)
    return entries, damaged


def _refuse_newer(path: Path, descriptor: int) -> None:
    """Raise `Newer` before anything is changed in a file whose format we do not know."""
    first, _, _ = os.pread(descriptor, _TAIL_STEP, 0).partition(b"\n")
    try:
        outline = msgspec.json.decode(first, type=Outline)
    except (ValueError, RecursionError):
        return
    if outline.version > FORMAT and file_name(outline.key) == path.name:
        raise Newer(outline)


def _with_header(entries: list[Entry], path: Path) -> list[Entry]:
    """Check that these entries are those of the session the file is named for, and put a lost header back."""
    for entry in entries:
        if isinstance(entry, Header | Activated) and file_name(entry.key) == path.name:
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


def _header_from(activated: Activated, entries: list[Entry]) -> Header:
    """Make up a header for a session whose own was damaged; where it was started is all that is lost."""
    scope, number = _parsed(activated.key)
    return Header(
        seq=1,
        ts=entries[0].ts,
        version=FORMAT,
        id=file_name(activated.key).removesuffix(".jsonl")[-32:],
        key=activated.key,
        scope=scope,
        number=number,
        created=entries[0].ts,
        agent=scope.split(":")[1] if ":" in scope else "",
        origin=None,
        epoch=activated.epoch,
        highest_number=activated.highest_number,
    )
