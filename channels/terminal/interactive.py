"""The chat with a person at the keyboard: a prompt, answers as they are written, notices above the prompt."""

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager

from prompt_toolkit.patch_stdout import patch_stdout

from channels.terminal.asking import Asking
from channels.terminal.exchange import Exchange
from channels.terminal.flow import Flow
from channels.terminal.keyboard import Prompt, answering
from channels.terminal.link import Link
from channels.terminal.quitting import is_quit
from channels.websocket.wire import Commands, Draft, Echo, Failure, Message, ServerFrame
from gateway.text import printable

__all__ = ["Interactive"]

MAX_ASIDES = 100
"""How much may wait for the end of an answer; the oldest goes first, and is in the transcript if it was an answer."""


class Interactive:
    """One message at a time: the prompt comes back when the answer is there."""

    def __init__(
        self, prompt: Prompt, listening: Callable[[Callable[[], None]], AbstractContextManager[None]] = answering
    ) -> None:
        self._prompt = prompt
        self._listening = listening
        self._current: Exchange | None = None
        self._flow = Flow()
        self._has_ended = False
        self._asides: deque[str] = deque(maxlen=MAX_ASIDES)

    def hear(self, frame: ServerFrame, exchange: Exchange | None) -> None:
        if exchange is not None:
            self._hear_answer(frame, exchange)
            return
        match frame:
            case Commands():
                self._prompt.offer(frame.commands)
            case Message() | Failure():
                self._aside(frame.text)
            case Echo():
                self._aside(f"(you, elsewhere) {frame.text}")
            case _:
                return

    async def converse(self, link: Link) -> int:
        """Talk until the person leaves; the exit code."""
        while True:
            try:
                with patch_stdout():
                    text = await self._prompt.ask()
            except EOFError:
                return 0
            if is_quit(text):
                return 0
            if text.strip():
                await self._answer(link, Exchange(text))

    async def _answer(self, link: Link, exchange: Exchange) -> None:
        self._current = exchange
        self._flow = Flow()
        self._has_ended = False
        async with asyncio.TaskGroup() as group:
            asking = Asking(link, exchange, group)
            with self._listening(asking.interrupt):
                outcome = await asking.outcome()
        if not self._has_ended:
            self._end(outcome.text)
        self._current = None

    def _hear_answer(self, frame: ServerFrame, exchange: Exchange) -> None:
        if exchange is not self._current or self._has_ended:
            return
        if isinstance(frame, Draft):
            _write(self._flow.draft(frame.text))
        elif isinstance(frame, Message):
            if frame.restored:
                self._aside(f"({frame.restored} earlier turns of this conversation were restored.)")
            self._end(frame.text)

    def _end(self, text: str) -> None:
        _write(f"{self._flow.finish(text)}\n")
        self._has_ended = True
        while self._asides:
            _show(self._asides.popleft())

    def _aside(self, text: str) -> None:
        """Show what came by itself, but not in the middle of an answer."""
        if self._flow.is_under_way and not self._has_ended:
            self._asides.append(text)
        else:
            _show(text)


def _show(text: str) -> None:
    _write(f"{printable(text).rstrip()}\n\n")


def _write(text: str) -> None:
    # `sys.stdout` is looked up each time: at the prompt it is another, which writes above it.
    sys.stdout.write(text)
    sys.stdout.flush()
