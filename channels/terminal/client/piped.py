"""The chat without a terminal: answers go to stdout, everything else to stderr."""

import asyncio
import os
import re
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TextIO

from channels.terminal.client.gateway_connection import GatewayConnection, PendingMessage, is_command, is_quit
from channels.websocket.wire import ErrorFrame, MessageFrame, ServerFrame, UploadedFile
from gateway.contract import OutboundKind
from gateway.errors import GatehouseError, Refused
from gateway.text import excerpt, printable
from gateway.text.plain import in_bytes, without_code

EXIT_UNANSWERED = 1
EXIT_EMPTY = 2
NOTHING_TO_SEND = "There was nothing to send: the input is empty."
NOTE_AFTER = 3.0
"""Seconds after which a person is told that the standard input has not ended."""
WAITING_FOR_INPUT = "Waiting for the end of the standard input. If there is none, add </dev/null to the command."
CHUNK_SIZE = 64 * 1024
MAX_INPUT_SIZE = 250_000
"""In bytes per message; far more than a gateway accepts."""


_ITALICS = re.compile(r"^\*([^*\n]+)\*$", re.MULTILINE)


class InputTooLong(GatehouseError):
    """One message of the input is longer than any gateway accepts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipedChat:
    """Sends messages one after the other; `answer_timeout` is in seconds, for each answer."""

    out: TextIO
    err: TextIO
    answer_timeout: float

    def receive(self, frame: ServerFrame, message: PendingMessage | None) -> None:
        """Print errors and notices that are not about a message of ours, like a reminder from the mailbox."""
        if message is not None:
            return
        match frame:
            case ErrorFrame() | MessageFrame(kind=OutboundKind.NOTICE):
                self._report(frame.text)
            case _:
                return

    async def send(self, connection: GatewayConnection, text: str, files: tuple[UploadedFile, ...] = ()) -> int:
        """Send one message, print its answer and return the exit code."""
        if not text.strip() and not files:
            self._report(NOTHING_TO_SEND)
            return EXIT_EMPTY
        try:
            async with asyncio.timeout(self.answer_timeout):
                outcome = await connection.ask(PendingMessage(text, files))
        except TimeoutError:
            self._report(f"No answer came within {self.answer_timeout:g} seconds to: {excerpt(text, 60)}")
            return EXIT_UNANSWERED
        if not outcome.is_answer:
            # A failed turn ends with its reason in italics, which would be marks here.
            self._report(without_code(_ITALICS.sub(r"\1", outcome.text)))
            return EXIT_UNANSWERED
        # In a thread: the reader of stdout may be slow, and the connection needs the event loop.
        await asyncio.to_thread(_print, outcome.text, self.out)
        return 0

    async def choose_model(self, connection: GatewayConnection, model: str) -> bool:
        """Choose the model of the session, as `/model` does. Return False if that is refused, after a sentence."""
        chosen = await connection.ask(PendingMessage(f"/model {model}"))
        if not chosen.is_answer:
            self._report(chosen.text)
        return chosen.is_answer

    async def read_beside(self, descriptor: int, *, limit: int) -> str:
        """Read the text that goes with a message from the command line. Say so if it does not come."""
        note = asyncio.get_running_loop().call_later(NOTE_AFTER, self._report, WAITING_FOR_INPUT)
        try:
            async with asyncio.timeout(self.answer_timeout):
                return await read_all(descriptor, limit=limit)
        except TimeoutError:
            raise Refused(f"The standard input didn't end within {self.answer_timeout:g} seconds.") from None
        finally:
            note.cancel()

    async def send_each(
        self, connection: GatewayConnection, lines: AsyncIterator[str], files: tuple[UploadedFile, ...] = ()
    ) -> int:
        """Send each non-blank line after the previous one is answered; return the highest exit code.

        The `files` go with the first line that is no command.
        """
        codes: list[int] = []
        async for line in lines:
            if is_quit(line):
                return max(codes, default=0)
            if line.strip():
                codes.append(await self.send(connection, line, () if is_command(line) else files))
                files = files if is_command(line) else ()
        if not codes:
            self._report(NOTHING_TO_SEND)
        return max(codes, default=EXIT_EMPTY)

    def _report(self, sentence: str) -> None:
        _print(f"gatehouse: {sentence}", self.err)


def _print(text: str, stream: TextIO) -> None:
    stream.write(f"{printable(text).rstrip()}\n")
    stream.flush()


async def read_all(descriptor: int, *, limit: int = MAX_INPUT_SIZE) -> str:
    """Read to the end of the input, which is at most `limit` bytes long. Bytes that are not UTF-8 are replaced."""
    chunks: list[bytes] = []
    while chunk := await _read_chunk(descriptor):
        chunks.append(chunk)
        _check_size(sum(map(len, chunks)), limit)
    return b"".join(chunks).decode("utf-8", "replace")


async def read_lines(descriptor: int) -> AsyncIterator[str]:
    """Yield each line as soon as it is complete, without its line ending."""
    rest = b""
    while chunk := await _read_chunk(descriptor):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            _check_size(len(line))
            yield line.decode("utf-8", "replace").removesuffix("\r")
        _check_size(len(rest))
    if rest:
        yield rest.decode("utf-8", "replace").removesuffix("\r")


def _check_size(size: int, limit: int = MAX_INPUT_SIZE) -> None:
    if size > limit:
        raise InputTooLong(f"A message of the input is longer than {in_bytes(limit)}. Send it in parts.")


async def _read_chunk(descriptor: int) -> bytes:
    """Read in a daemon thread: Python waits for pool threads at exit, and the event loop cannot poll a file."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[bytes] = loop.create_future()

    def set_result(data: bytes) -> None:
        if not result.done():
            result.set_result(data)

    def read() -> None:
        data = b""
        with suppress(OSError):  # A terminal that was closed is the end of the input.
            # Not through `sys.stdin`: a thread that still waits would hold its lock when Python exits.
            data = os.read(descriptor, CHUNK_SIZE)
        with suppress(RuntimeError):  # The loop was closed in the meantime.
            loop.call_soon_threadsafe(set_result, data)

    threading.Thread(target=read, name="terminal:stdin", daemon=True).start()
    return await result
