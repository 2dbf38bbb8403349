"""The chat without a person at the keyboard: plain answers on stdout, everything else on stderr."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TextIO

from channels.terminal.exchange import Exchange
from channels.terminal.link import Link
from channels.terminal.quitting import is_quit
from channels.websocket.wire import Failure, Message, ServerFrame
from gateway.contract import OutboundKind
from gateway.text import excerpt, printable

__all__ = ["EXIT_EMPTY", "EXIT_UNANSWERED", "Pipe"]

EXIT_UNANSWERED = 1
EXIT_EMPTY = 2
NOTHING = "There was nothing to send: the input is empty."


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipe:
    """Where the words go, and how many seconds an answer may take."""

    out: TextIO
    err: TextIO
    patience: float

    def hear(self, frame: ServerFrame, exchange: Exchange | None) -> None:
        """Show what concerns no message of ours: an error, or a notice that has waited for somebody to come."""
        match frame:
            case Failure() if exchange is None:
                self._complain(frame.text)
            case Message(kind=OutboundKind.NOTICE) if exchange is None:
                self._complain(frame.text)
            case _:
                return

    async def send(self, link: Link, text: str) -> int:
        """Send one message, print its answer and return the exit code."""
        if not text.strip():
            self._complain(NOTHING)
            return EXIT_EMPTY
        try:
            async with asyncio.timeout(self.patience):
                outcome = await link.ask(Exchange(text))
        except TimeoutError:
            self._complain(f"No answer came within {self.patience:g} seconds to: {excerpt(text, 60)}")
            return EXIT_UNANSWERED
        if not outcome.is_answer:
            self._complain(outcome.text)
            return EXIT_UNANSWERED
        await asyncio.to_thread(_print, outcome.text, self.out)
        return 0

    async def send_each(self, link: Link, lines: AsyncIterator[str]) -> int:
        """Send each line that has something on it once the one before is answered; the worst exit code counts."""
        codes: list[int] = []
        async for line in lines:
            if is_quit(line):
                return max(codes, default=0)
            if line.strip():
                codes.append(await self.send(link, line))
        if not codes:
            self._complain(NOTHING)
        return max(codes, default=EXIT_EMPTY)

    def _complain(self, sentence: str) -> None:
        _print(f"gatehouse: {sentence}", self.err)


def _print(text: str, stream: TextIO) -> None:
    stream.write(f"{printable(text).rstrip()}\n")
    stream.flush()
