"""Reading what is piped in, without blocking the event loop and without keeping the process from ending."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import suppress

from channels.terminal.errors import InputTooLong

__all__ = ["read_all", "read_lines"]

CHUNK = 64 * 1024
LONGEST = 256 * 1024
"""In bytes; far more than a gateway takes in one message."""


async def read_all(descriptor: int) -> str:
    """Read to the end. Bytes that are not UTF-8 are replaced."""
    read = b""
    while chunk := await _read_some(descriptor):
        read += chunk
        _check(read)
    return read.decode("utf-8", "replace")


async def read_lines(descriptor: int) -> AsyncIterator[str]:
    """Give each line as soon as it has come, without its end."""
    rest = b""
    while chunk := await _read_some(descriptor):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            _check(line)
            yield _text(line)
        _check(rest)
    if rest:
        yield _text(rest)


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace").removesuffix("\r")


def _check(read: bytes) -> None:
    if len(read) > LONGEST:
        raise InputTooLong(f"The input has more than {LONGEST // 1024} KiB in one message; send it in parts.")


async def _read_some(descriptor: int) -> bytes:
    """Read in a thread of its own: one of the pool's would be waited for at the end, and a file cannot be polled."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[bytes] = loop.create_future()

    def give(data: bytes) -> None:
        if not result.done():
            result.set_result(data)

    def read() -> None:
        data = b""
        with suppress(OSError):  # A terminal that has gone away is the end of the input.
            # Not through `sys.stdin`, whose lock a thread that still waits would hold when Python ends.
            data = os.read(descriptor, CHUNK)
        with suppress(RuntimeError):  # The loop has ended meanwhile.
            loop.call_soon_threadsafe(give, data)

    threading.Thread(target=read, name="terminal:stdin", daemon=True).start()
    return await result
