"""The lines of a file, from its beginning or from its end. Everything blocks, and nothing is mended."""

import os
from collections.abc import Iterator
from pathlib import Path

from gateway.private_files import opened, read_from

__all__ = [
    "BLOCK",
    "end_of",
    "end_of_lines",
    "lines_backwards",
    "lines_before",
    "lines_forwards",
]

BLOCK = 64 * 1024


def lines_forwards(path: Path) -> Iterator[bytes]:
    """Yield every line as it is, newline included; the last may lack it. Nothing is mended."""
    with path.open("rb") as file:
        yield from file


def lines_backwards(path: Path) -> Iterator[bytes]:
    """Yield every line without its newline, the last one first."""
    with opened(path) as descriptor:
        size = os.fstat(descriptor).st_size
        yield from lines_before(descriptor, size, read_from(descriptor, max(0, size - BLOCK), size))


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
            block = read_from(descriptor, max(0, end - BLOCK), end)
    yield b"".join(reversed(rest))


def end_of_lines(descriptor: int, size: int) -> int:
    """Return where the last whole line of the first `size` bytes ends."""
    end = size
    while end > 0:
        begin = max(0, end - BLOCK)
        newline = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        end = begin
    return 0


def end_of(path: Path, begin: int) -> bytes:
    """Return everything from the offset `begin` on."""
    with opened(path) as descriptor:
        return read_from(descriptor, begin, os.fstat(descriptor).st_size)
