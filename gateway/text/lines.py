"""Splits a stream of bytes into lines, and keeps no more of a long line than both of its ends."""

from collections.abc import Iterator

from msgspec import Struct

_KEPT_BYTES = 256


class LongLine(Struct, frozen=True, kw_only=True):
    """The start and the end of a line that was longer than the limit."""

    head: bytes
    tail: bytes


class LineSplitter:
    """Splits a stream of bytes into lines. Of a line that is longer than `limit`, only both ends are kept."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._head: bytes | None = None

    def feed(self, chunk: bytes) -> Iterator[bytes | LongLine]:
        """Yield the lines that end in `chunk`, without their line breaks."""
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            self._add(chunk[start:end])
            start = end + 1
            line, head = bytes(self._buffer), self._head
            self._buffer, self._head = bytearray(), None
            yield line if head is None else LongLine(head=head, tail=line[-_KEPT_BYTES:])
        self._add(chunk[start:])

    def _add(self, piece: bytes) -> None:
        self._buffer += piece
        if self._head is None and len(self._buffer) > self._limit:
            self._head = bytes(self._buffer[:_KEPT_BYTES])
        if self._head is not None:
            del self._buffer[:-_KEPT_BYTES]
