"""The end of the log: a line leaves the process here, or is counted as lost; nobody waits long or fails for it."""

import io
import os
import select
import threading
from typing import TextIO

import structlog

__all__ = ["Outlet"]

PATIENCE = 0.2
"""How long one line waits for a reader that does not keep up. After that, none does until there is room again."""


class Outlet:
    """What structlog calls a logger.

    A full disk, a pipe whose reader has left or sleeps, a stream that was closed: the line is lost. When writing works
    again, one event tells how many were. `None` stands for an output that the process was started without.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._has_descriptor = stream is not None and _has_descriptor(stream)
        self._lock = threading.Lock()
        self._lost = 0
        self._is_torn = False

    def msg(self, line: str) -> None:
        with self._lock:
            try:
                self._write(f"{line}\n")
            except (OSError, ValueError):  # Python's word for a closed stream is ValueError.
                self._lost += 1
                return
            lost, self._lost = self._lost, 0
        if lost:
            structlog.get_logger().warning("log_lines_lost", count=lost)

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg

    def _write(self, line: str) -> None:
        if self._stream is None:
            return
        if self._has_descriptor:
            # Past Python's buffer, which would keep what it could not write and try again when the process exits.
            self._write_bytes(self._stream.fileno(), line.encode(self._stream.encoding or "utf-8", "replace"))
        else:
            self._stream.write(line)
            self._stream.flush()

    def _write_bytes(self, descriptor: int, line: bytes) -> None:
        """Write piece by piece: a pipe that is ready takes as much as PIPE_BUF without blocking."""
        rest = memoryview(b"\n" + line if self._is_torn else line)
        patience = 0.0 if self._lost else PATIENCE
        while rest:
            _wait(descriptor, patience)
            written = os.write(descriptor, rest[: select.PIPE_BUF])
            rest = rest[written:]
            self._is_torn = bool(rest)


def _has_descriptor(stream: TextIO) -> bool:
    try:
        stream.fileno()
    except io.UnsupportedOperation:
        return False
    return True


def _wait(descriptor: int, patience: float) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    if not poll.poll(patience * 1000):
        raise TimeoutError
