"""One transcript file: read from its end, checked and repaired. `disk.py` writes it. All functions block."""

import os
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import chain
from pathlib import Path

import structlog
from msgspec import Struct

from config.files import Fsync
from gateway.private_files import APPEND, CREATE, open_private, opened, read_range, rename_aside, write_all
from gateway.sessions.entries import Checkpoint, Entry, Header
from gateway.sessions.storage.codec import DamagedEntry, decode, names_session, refuse_newer, with_header
from gateway.sessions.storage.tail import NeverStop, StopCondition

log: structlog.stdlib.BoundLogger = structlog.get_logger()

# Bytes that are read at once, from the end of the file backwards.
BLOCK = 64 * 1024
# Bytes that most first lines are shorter than.
FIRST_LINE = 2048
COPY_BLOCK = 1024 * 1024
# The suffix of temporary files that `rebuild` writes.
REBUILT = ".rebuilt"


class TranscriptTail(Struct, frozen=True, kw_only=True):
    """The entries of a transcript, or of its end, oldest first.

    If it `is_whole`, the first entry is the header; a damaged header has been reconstructed.
    """

    entries: list[Entry]
    size: int
    """Bytes of the file."""
    taken: int
    """Bytes that were read for these entries."""
    header: Header | None = None
    """The first line of the file, even if it is not one of the entries. None if it is damaged."""
    is_whole: bool = True
    damaged: int = 0
    is_torn: bool = False

    @property
    def key(self) -> str:
        """The key of the session. Only for a tail read for its state: that starts at a header or a checkpoint."""
        first = self.entries[0]
        assert isinstance(first, Header | Checkpoint)  # noqa: S101 - see above.
        return first.key


def read(path: Path, stop: StopCondition | None = None, *, max_bytes: int | None = None) -> TranscriptTail:
    """Read a transcript backwards until `stop` is satisfied, or whole. Repair a torn last line.

    Raises `NewerTranscript`, `UnreadableTranscript`, or `OSError` if the disk fails; then the file is unchanged.
    """
    with opened(path) as descriptor:
        size = os.fstat(descriptor).st_size
        block = read_range(descriptor, max(0, size - BLOCK), size)
        first = first_line(descriptor) if size > BLOCK else block.partition(b"\n")[0]
        refuse_newer(path, first)
        header = header_in(first, path)
        tail = collect(lines_before(descriptor, size, block), stop or NeverStop(), max_bytes)
        if not tail.is_whole and header is None and not names_session(tail.entries, path):
            # The header is damaged and so is this end. An entry between may still name the session.
            tail = collect(lines_before(descriptor, size, block), NeverStop(), None)
    # `with_header` raises for a file that is not a transcript, so this has to come before the file is repaired.
    entries = with_header(tail.entries, path) if tail.is_whole else tail.entries
    repaired = size
    if block and not block.endswith(b"\n"):
        with opened(path, APPEND) as descriptor:
            repaired = repair_tail(path, descriptor)
    return TranscriptTail(
        entries=entries,
        size=repaired,
        taken=tail.taken,
        header=header,
        is_whole=tail.is_whole,
        damaged=tail.damaged,
        is_torn=repaired < size,
    )


class Collected(Struct):
    entries: list[Entry]
    taken: int = 0
    damaged: int = 0
    is_whole: bool = False


def collect(lines: Iterator[bytes], stop: StopCondition, max_bytes: int | None) -> Collected:
    """Decode lines, given last one first, until `stop` is satisfied. A line that was written twice counts once."""
    found = Collected([])
    seen: dict[int, Entry] = {}
    # The text after the last newline is usually empty. If it is an entry, `repair_tail` adds the newline.
    last = next(lines)
    for line in chain([last] if is_entry(last) else [], lines):
        found.taken += len(line) + 1
        try:
            entry = decode(line)
        except DamagedEntry:
            found.damaged += 1
            continue
        if seen.setdefault(entry.seq, entry) is not entry and seen[entry.seq] == entry:
            continue
        found.entries.append(entry)
        stop.add(entry)
        if stop.is_enough or (max_bytes is not None and found.taken > max_bytes):
            break
    else:
        found.is_whole = True
    found.entries.reverse()
    return found


def first_line(descriptor: int) -> bytes:
    """Return the first line without its newline, or its first `BLOCK` bytes."""
    first, newline, _ = os.pread(descriptor, FIRST_LINE, 0).partition(b"\n")
    return first if newline else os.pread(descriptor, BLOCK, 0).partition(b"\n")[0]


def read_header(path: Path) -> Header | None:
    """Return the header of a transcript without reading more. None if it is lost or cannot be read."""
    try:
        with opened(path) as descriptor:
            return header_in(first_line(descriptor), path)
    except OSError:
        return None


def header_in(first: bytes, path: Path) -> Header | None:
    """Return the first line of a file as a header. None if it is not one, or that of another session."""
    try:
        entry = decode(first)
    except DamagedEntry:
        return None
    return entry if isinstance(entry, Header) and names_session([entry], path) else None


def starts_with_header(path: Path, descriptor: int) -> bool:
    """Return whether the first line of a file is the header of the session that the file is named for."""
    first = first_line(descriptor)
    return is_entry(first) and names_session([decode(first)], path)


def is_entry(line: bytes) -> bool:
    try:
        decode(line)
    except DamagedEntry:
        return False
    return True


def lines_forwards(path: Path) -> Iterator[bytes]:
    """Yield every line as it is, newline included. The last one may lack it."""
    with os.fdopen(open_private(path), "rb") as file:
        yield from file


def lines_backwards(path: Path, start: int = 0) -> Iterator[bytes]:
    """Yield every line from the offset `start` without its newline, the last one first."""
    with opened(path) as descriptor:
        size = os.fstat(descriptor).st_size
        block = read_range(descriptor, max(start, size - BLOCK), size) if size > start else b""
        yield from lines_before(descriptor, size, block, start)


def lines_before(descriptor: int, end: int, block: bytes, start: int = 0) -> Iterator[bytes]:
    """Yield the lines between the offsets `start` and `end`, the last one first. `block` is the last block of these."""
    rest: list[bytes] = []
    while end > start:
        end -= len(block)
        # The first piece of a block may be the end of a line that starts in the block before it.
        head, *lines = block.split(b"\n")
        if lines:
            lines[-1] += b"".join(reversed(rest))
            rest = []
            yield from reversed(lines)
        rest.append(head)
        if end > start:
            block = read_range(descriptor, max(start, end - BLOCK), end)
    yield b"".join(reversed(rest))


def offset_before(descriptor: int, size: int, seq: int) -> int:
    """Return where a line starts, so that no entry after `seq` is before it, and few others are after it.

    The search relies on the order of the entries. Where it cannot read any, it begins earlier.
    """
    low, high = 0, size
    while high - low > BLOCK:
        middle = (low + high) // 2
        begin, found = _first_entry(middle, os.pread(descriptor, BLOCK, middle))
        if found is not None and begin < high and found.seq <= seq:
            low = begin
        else:
            high = middle
    return low


def _first_entry(begin: int, block: bytes) -> tuple[int, Entry | None]:
    """Return where the first entry that starts in a block starts, and the entry. `begin` is the block's offset."""
    piece, *lines = block.split(b"\n")[:-1] or [block]
    for line in lines:
        begin += len(piece) + 1
        if is_entry(line):
            return begin, decode(line)
        piece = line
    return begin, None


def end_of_last_line(descriptor: int, size: int) -> int:
    """Return where the last complete line of the first `size` bytes ends."""
    end = size
    while end > 0:
        begin = max(0, end - BLOCK)
        newline = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        end = begin
    return 0


def read_to_end(path: Path, begin: int) -> bytes:
    """Return the bytes from the offset `begin` to the end of the file."""
    with opened(path) as descriptor:
        return read_range(descriptor, begin, os.fstat(descriptor).st_size)


def repair_tail(path: Path, descriptor: int) -> int:
    """Make the file end with a complete line, and return its size.

    A last entry that lacks only its newline gets it. A torn line is cut off, after a copy to `<name>.corrupt`.
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


def save_damaged(path: Path, data: bytes) -> None:
    """Append a piece that was cut out of a transcript to `<name>.corrupt`, for a person to look at."""
    with opened(path.with_name(f"{path.name}.corrupt"), APPEND | os.O_CREAT) as descriptor:
        write_all(descriptor, data + b"\n")
        os.fsync(descriptor)


def set_aside(path: Path) -> Path:
    """Rename an unreadable file to a free name, for a person to look at. Return the new path."""
    target = rename_aside(path)
    log.error("transcript_set_aside", file=str(target))
    return target


def all_files(path: Path) -> list[Path]:
    """Return a transcript and all files that were made from it: damaged pieces, and an unfinished rebuild."""
    return [path, _rebuilt(path), *path.parent.glob(f"{path.name}.corrupt*")]


def _rebuilt(path: Path) -> Path:
    return path.with_name(f".{path.name}{REBUILT}")


def rebuild(path: Path, keep: int, rest: bytes, fsync: Fsync, *, source: int | None = None) -> None:
    """Replace a file that cannot be trusted with a new one: its first `keep` bytes, then `rest`.

    If the file has lost its name, `source` is its descriptor. The new file is fsynced before the rename. The caller
    fsyncs the folder.
    """
    temporary = _rebuilt(path)
    temporary.unlink(missing_ok=True)
    try:
        with opened(temporary, CREATE) as target:
            if keep:
                with opened(path) if source is None else nullcontext(source) as original:
                    for begin in range(0, keep, COPY_BLOCK):
                        write_all(target, read_range(original, begin, min(begin + COPY_BLOCK, keep)))
            write_all(target, rest)
            fsync(target)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    log.warning("transcript_rebuilt", file=path.name)


def sync(path: Path, fsync: Fsync) -> None:
    """Fsync a transcript."""
    with opened(path) as descriptor:
        fsync(descriptor)
