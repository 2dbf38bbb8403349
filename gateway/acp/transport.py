"""The pipe to a coding agent: messages as lines of JSON, with limits on what the program may send."""

import asyncio
from collections import deque
from contextlib import suppress
from typing import Any

import msgspec

from gateway.text.lines import LineSplitter, LongLine

MAX_LINE_BYTES = 8 * 1024 * 1024
"""Long enough for pictures and whole files. Decoding a hostile line of this size blocks the event loop for 0.7 s."""
MAX_GARBAGE_LINES = 200
"""Lines that are no messages, until the program counts as broken. Some programs print warnings to stdout."""
MAX_UNANSWERED = 64
"""Requests of the program that wait for our answers. Nothing more is read from it then."""

_CHUNK_BYTES = 65_536
_SEND_TIMEOUT = 30.0
_INTERNAL_ERROR = -32603

Message = dict[str, Any]  # Any: JSON of a shape that the SDK checks.


class AgentTransport:
    """A transport as the SDK's `Connection` uses it. `fault` says why it has ended, if the program broke a rule.

    `receive` never raises: the SDK would log a traceback.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._splitter = LineSplitter(MAX_LINE_BYTES)
        self._received = deque[tuple[Message, int]]()
        """With the length of each."""
        self.taken_bytes = 0
        """Of the messages that were received since the last `resume`."""
        self._garbage = 0
        self._unanswered = 0
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._is_paused = False
        self.fault = ""

    def pause(self) -> None:
        """Read nothing until `resume`: the turn is behind with what has come. The program waits in its own write."""
        self._is_paused = True
        self._update_room()

    def resume(self) -> None:
        self._is_paused = False
        self.taken_bytes = 0
        self._update_room()

    async def send(self, message: Message) -> None:
        """Write a message. Raises `OSError` if the program does not read a request or a notification in time."""
        self._writer.write(msgspec.json.encode(message) + b"\n")
        if "method" in message:
            async with asyncio.timeout(_SEND_TIMEOUT):  # `TimeoutError` is an `OSError`.
                await self._writer.drain()
            return
        # An answer counts as one when the program has read it. Otherwise it could ask for files without end, and the
        # answers would fill the memory.
        with suppress(OSError):  # No turn waits for an answer to be sent: the SDK would only log a traceback.
            await self._writer.drain()
        self._unanswered -= 1
        self._update_room()

    async def receive(self) -> Message | None:
        """Return the next message; None once the program has closed its output or broken the protocol."""
        while not self._received:
            await self._has_room.wait()
            try:
                chunk = await self._reader.read(_CHUNK_BYTES)
            except OSError:
                return None
            if not chunk:
                return None
            for line in self._splitter.feed(chunk):
                self._add(line)
            if self.fault:
                return None
        await self._has_room.wait()
        message, size = self._received.popleft()
        self.taken_bytes += size
        if "method" in message and "id" in message:
            self._unanswered += 1
            self._update_room()
        return message

    async def close(self) -> None:
        self._writer.close()

    def _add(self, line: bytes | LongLine) -> None:
        if isinstance(line, LongLine):
            self.fault = f"it sent a message of more than {MAX_LINE_BYTES // 1024**2} MB"
            return
        if not line.strip():
            return
        try:
            message = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError):
            message = None
        if isinstance(message, dict) and isinstance(message.get("method", ""), str) and _is_id(message.get("id")):
            if "method" not in message and "error" in message:
                message["error"] = _as_error(message["error"])
            self._received.append((message, len(line)))
            return
        self._garbage += 1
        if self._garbage > MAX_GARBAGE_LINES:
            self.fault = f"it sent more than {MAX_GARBAGE_LINES} lines that are not JSON-RPC messages"

    def _update_room(self) -> None:
        if self._is_paused or self._unanswered >= MAX_UNANSWERED:
            self._has_room.clear()
        else:
            self._has_room.set()


def _is_id(value: object) -> bool:
    return value is None or (isinstance(value, int | str) and not isinstance(value, bool))


def _as_error(error: object) -> Message:
    """Return the error of an answer in the shape that the SDK relies on."""
    given = error if isinstance(error, dict) else {"message": error}
    code, text = given.get("code"), given.get("message")
    return {**given, "code": code if isinstance(code, int) else _INTERNAL_ERROR, "message": str(text or "no reason")}
