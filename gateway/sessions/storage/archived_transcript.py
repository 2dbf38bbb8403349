"""Reads parts of an archived transcript without unpacking all of it. All functions block.

`ArchiveFiles.write` lets the compressor start afresh after each block, which leaves a mark in the file. A reader can
start after any of them. Files of older versions have no marks, so they are unpacked from the start.
"""

import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from gateway.bounded import BoundedDict
from gateway.private_files import open_private

BLOCK = 256 * 1024
GZIP = 31
"""The `wbits` of zlib for the format of gzip."""
_RAW = -15
_MARK = b"\x00\x00\xff\xff"
_KEPT_BLOCKS = 4
_SIZE_BYTES = 4


class DamagedArchive(Exception):
    """A file of the archive cannot be read. The text says why."""


class ArchivedTranscript:
    """The transcript in an archived file, by its offsets. Methods raise `DamagedArchive` or `OSError`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = open_private(path)
        self._end = os.fstat(self._descriptor).st_size
        # The last bytes of a gzip file are the size of its content.
        packed_size = os.pread(self._descriptor, _SIZE_BYTES, max(0, self._end - _SIZE_BYTES))
        self.size = int.from_bytes(packed_size, "little")
        self._blocks = BoundedDict[int, bytes](_KEPT_BLOCKS)
        self._start: int | None = None
        self._marks: list[int] | None = None
        # The block that `_unpacker` yields next, and where it goes on in the file.
        self._next = -1
        self._position = 0
        self._unpacker = zlib.decompressobj(wbits=GZIP)

    def close(self) -> None:
        os.close(self._descriptor)

    def read(self, size: int, offset: int) -> bytes:
        """Return up to `size` bytes from an offset. Fewer, or none: the transcript ends there."""
        parts: list[bytes] = []
        while size > 0 and offset < self.size:
            block = self._block(offset // BLOCK)
            part = block[offset % BLOCK : offset % BLOCK + size]
            if not part:
                raise DamagedArchive("its end is missing")
            parts.append(part)
            size -= len(part)
            offset += len(part)
        return b"".join(parts)

    def line_at(self, offset: int) -> bytes:
        """Return the line that starts at an offset, without its newline."""
        parts: list[bytes] = []
        while part := self.read(BLOCK - offset % BLOCK, offset):
            line, newline, _ = part.partition(b"\n")
            parts.append(line)
            if newline:
                break
            offset += len(part)
        return b"".join(parts)

    def lines_backwards(self, start: int) -> Iterator[bytes]:
        """Yield every line from the offset `start` without its newline, the last one first."""
        rest: list[bytes] = []
        end = self.size
        while end > start:
            begin = max(start, (end - 1) // BLOCK * BLOCK)
            # The first piece of a block may be the end of a line that starts in the block before it.
            head, *lines = self.read(end - begin, begin).split(b"\n")
            if lines:
                lines[-1] += b"".join(reversed(rest))
                rest = []
                yield from reversed(lines)
            rest.append(head)
            end = begin
        yield b"".join(reversed(rest))

    def _block(self, number: int) -> bytes:
        if (known := self._blocks.get(number)) is not None:
            return known
        if number != self._next:
            self._go_to(number)
        try:
            while self._next < number:
                self._unpack()
                self._next += 1
            block = self._blocks[number] = self._unpack()
        except zlib.error as error:
            self._next = -1
            if self._marks:  # They may be packed bytes that look like marks.
                self._marks = []
                return self._block(number)
            raise DamagedArchive(f"it cannot be decompressed ({error})") from error
        self._next += 1
        return block

    def _go_to(self, number: int) -> None:
        """Let the next block that is unpacked be `number`, or one before it if the file has no marks."""
        if self._start is None:
            self._start = self._find_start()
        if number > 0 and self._marks is None:
            self._marks = self._find_marks()
        if number == 0 or not self._marks:
            if not 0 <= self._next <= number:
                self._next, self._position = 0, self._start
                self._unpacker = zlib.decompressobj(wbits=GZIP)
            return
        self._next, self._position = number, self._marks[number - 1]
        self._unpacker = zlib.decompressobj(wbits=_RAW)

    def _unpack(self) -> bytes:
        parts: list[bytes] = []
        wanted = BLOCK
        while wanted > 0 and not self._unpacker.eof:
            packed = self._unpacker.unconsumed_tail
            if not packed:
                packed = os.pread(self._descriptor, BLOCK, self._position)
                self._position += len(packed)
            if not packed:
                break
            parts.append(self._unpacker.decompress(packed, wanted))
            wanted -= len(parts[-1])
        return b"".join(parts)

    def _find_start(self) -> int:
        """Return where the second member of the file begins."""
        unpacker, position = zlib.decompressobj(wbits=GZIP), 0
        while not unpacker.eof:
            packed = os.pread(self._descriptor, BLOCK, position)
            if not packed:
                raise DamagedArchive("its end is missing")
            position += len(packed)
            try:
                unpacker.decompress(packed)
            except zlib.error as error:
                raise DamagedArchive(f"it cannot be decompressed ({error})") from error
        return position - len(unpacker.unused_data)

    def _find_marks(self) -> list[int]:
        """Return where the compressor has started afresh. Empty: it has not, or packed bytes look like another mark."""
        marks: list[int] = []
        position, before = self._start or 0, b""
        while packed := os.pread(self._descriptor, BLOCK, position):
            piece, base = before + packed, position - len(before)
            at = piece.find(_MARK)
            while at >= 0:
                marks.append(base + at + len(_MARK))
                at = piece.find(_MARK, at + len(_MARK))
            position += len(packed)
            before = piece[1 - len(_MARK) :]
        return marks if len(marks) == (self.size - 1) // BLOCK else []
