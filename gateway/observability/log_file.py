"""Log file next to the normal output, for machines without a journal: private, and rotated by size."""

import os
import threading
from pathlib import Path
from queue import Empty, Full, Queue

from config.files import make_private_directory
from gateway.private_files import open_private

QUEUE_LIMIT = 10_000
"""Lines that may wait for the disk. More are lost, and counted."""
BATCH_SIZE = 500
CLOSE_TIMEOUT = 5.0
"""Seconds that `close` waits for a disk that does not respond."""


class LogFile:
    """Writes lines in its own thread, so that a slow disk delays no caller.

    A file that would exceed `max_bytes` becomes `<name>.1`, the old one `<name>.2`, and so on up to `keep`. Lines that
    cannot be written are lost; the next line that can be written follows an event with their number.
    """

    def __init__(self, path: Path, *, max_bytes: int, keep: int) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self.keep = keep
        self._lines: Queue[bytes | None] = Queue(QUEUE_LIMIT)
        self._lost = 0
        self._descriptor: int | None = None
        self._size = 0
        self._thread = threading.Thread(target=self._run, name="log-file", daemon=True)

    def open(self) -> None:
        """Open the file and start the thread. Raises `OSError`."""
        make_private_directory(self.path.parent)
        self._open()
        self._thread.start()

    def write(self, line: str) -> None:
        try:
            self._lines.put_nowait(line.encode(errors="replace") + b"\n")
        except Full:
            self._lost += 1

    def close(self) -> None:
        """Write the queued lines, unless the disk takes too long."""
        try:
            self._lines.put(None, timeout=CLOSE_TIMEOUT)
        except Full:
            return
        self._thread.join(CLOSE_TIMEOUT)

    def _run(self) -> None:
        while batch := self._take():
            lines = [line for line in batch if line is not None]
            try:
                self._append(lines)
            except OSError:
                self._lost += len(lines)
            if len(lines) < len(batch):
                break
        if self._descriptor is not None:
            os.close(self._descriptor)

    def _take(self) -> list[bytes | None]:
        """Wait for a line and return it with those queued behind it. None marks the end."""
        batch = [self._lines.get()]
        while batch[-1] is not None and len(batch) < BATCH_SIZE:
            try:
                batch.append(self._lines.get_nowait())
            except Empty:
                break
        return batch

    def _append(self, lines: list[bytes]) -> None:
        lost = self._lost
        if lost:
            lines = [b'{"event":"log_lines_lost","level":"warning","count":%d}\n' % lost, *lines]
        for line in lines:
            if self._size and self._size + len(line) > self.max_bytes:
                self._rotate()
            self._write(line)
        self._lost -= lost

    def _write(self, line: bytes) -> None:
        if self._descriptor is None:
            self._open()
        rest = memoryview(line)
        while rest:
            written = os.write(self._descriptor or 0, rest)
            self._size += written
            rest = rest[written:]

    def _open(self) -> None:
        self._descriptor = open_private(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, follow_links=True)
        self._size = os.fstat(self._descriptor).st_size

    def _rotate(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        self._numbered(self.keep).unlink(missing_ok=True)
        for number in range(self.keep - 1, -1, -1):
            if self._numbered(number).exists():
                self._numbered(number).replace(self._numbered(number + 1))
        self._open()

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}") if number else self.path
