"""What a program writes to its standard error: into our log, and kept, for it often says why it ended."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import TextIO

import structlog

from gateway.text import clean, excerpt

__all__ = ["LastWords"]

log = structlog.get_logger()

_MAX_LINE_BYTES = 8_192
_WIDTH = 200


class LastWords:
    """The newest line; `listening` gives the file to write to."""

    def __init__(self, server: str) -> None:
        self.line = ""
        self._server = server

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[TextIO]:
        """While inside, hear what is written to the file. What goes wrong there comes in a group of exceptions."""
        ours, theirs = os.pipe()
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_MAX_LINE_BYTES)
        pipe = os.fdopen(ours, "rb", buffering=0)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        with os.fdopen(theirs, "w") as file, closing(transport):
            async with asyncio.TaskGroup() as tasks:
                listener = tasks.create_task(self._listen(reader), name=f"mcp:{self._server}:stderr")
                yield file
                listener.cancel()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """Take lines as they come; one that is too long comes in pieces."""
        while True:
            try:
                line = await reader.readuntil(b"\n")
            except asyncio.LimitOverrunError as long:
                line = await reader.readexactly(long.consumed)
            except asyncio.IncompleteReadError as end:
                line = end.partial
                if not line:
                    return
            if words := clean(line.decode(errors="replace")).strip():
                self.line = excerpt(words, _WIDTH)
                log.debug("mcp_server_said", server=self._server, line=words)
