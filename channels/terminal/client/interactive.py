"""The interactive chat: a prompt, answers printed while they are written, and notices above the prompt."""

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager

from prompt_toolkit.patch_stdout import patch_stdout

from channels.terminal.client.gateway_connection import ChatOutcome, GatewayConnection, PendingMessage, is_quit
from channels.terminal.client.prompt import ChatPrompt, interruptible
from channels.websocket.wire import CommandsFrame, DraftFrame, EchoFrame, ErrorFrame, MessageFrame, ServerFrame
from gateway.text import printable

MAX_DEFERRED = 100
"""How many notices may wait for the end of an answer. The oldest is dropped first."""
STOP_TIMEOUT = 2.0
"""How long a stopped answer may take to end. A message that was still queued in the gateway never gets an answer."""
SEPARATOR = "\n---\n"
NO_LONGER_WAITING = ChatOutcome(
    is_answer=False, text="(Stopped waiting for this answer. If it arrives later, it's shown here.)"
)


class AnswerPrinter:
    """Turns drafts, each the whole answer so far, into the text that is still to print.

    A terminal cannot take text back. Control characters are removed.
    """

    def __init__(self) -> None:
        self._printed = ""

    @property
    def has_started(self) -> bool:
        return bool(self._printed)

    def draft(self, text: str) -> str:
        """Return the text that this draft adds. It is empty if the draft does not continue the printed text."""
        shown = printable(text)
        if not shown.startswith(self._printed):
            return ""
        added = shown.removeprefix(self._printed)
        self._printed = shown
        return added

    def finish(self, text: str) -> str:
        """Return the rest of the answer and a line ending, or the whole answer if it differs from the drafts."""
        whole = printable(text).rstrip()
        printed = self._printed.rstrip()
        if not whole.startswith(printed):
            return f"{SEPARATOR}{whole}\n"
        if whole == printed:
            # The drafts may have ended with the line ending.
            return "" if self._printed.endswith("\n") else "\n"
        # If the answer differs only in the white space after the printed text, the printed space stays.
        start = self._printed if whole.startswith(self._printed) else printed
        return f"{whole.removeprefix(start)}\n"


class InteractiveChat:
    """One message at a time: the prompt returns when the answer is complete."""

    def __init__(
        self,
        prompt: ChatPrompt,
        interruptible: Callable[[Callable[[], None]], AbstractContextManager[None]] = interruptible,
    ) -> None:
        self._prompt = prompt
        self._interruptible = interruptible
        self._current: PendingMessage | None = None
        self._printer = AnswerPrinter()
        self._is_finished = False
        self._deferred: deque[str] = deque(maxlen=MAX_DEFERRED)

    def receive(self, frame: ServerFrame, message: PendingMessage | None) -> None:
        if message is not None:
            if message is not self._current or self._is_finished:
                return
            if isinstance(frame, DraftFrame):
                _write(self._printer.draft(frame.text))
            elif isinstance(frame, MessageFrame):
                if frame.restored:
                    self._show_aside(f"({frame.restored} earlier turns of this session were restored.)")
                self._finish(frame.text)
            return
        match frame:
            case CommandsFrame():
                self._prompt.set_commands(frame.commands)
            case MessageFrame() | ErrorFrame():
                self._show_aside(frame.text)
            case EchoFrame():
                self._show_aside(f"(you, elsewhere) {frame.text}")
            case _:
                return

    async def run(self, connection: GatewayConnection) -> int:
        """Chat until the user leaves; return the exit code."""
        while True:
            try:
                with patch_stdout():
                    text = await self._prompt.ask()
            except EOFError:
                return 0
            if is_quit(text):
                return 0
            if text.strip():
                self._current = PendingMessage(text)
                self._printer = AnswerPrinter()
                self._is_finished = False
                outcome = await self._ask(connection, self._current)
                if not self._is_finished:
                    self._finish(outcome.text)
                self._current = None

    async def _ask(self, connection: GatewayConnection, message: PendingMessage) -> ChatOutcome:
        """Send a message and wait. The first Ctrl-C sends /stop; the second one stops waiting as well."""
        stopping: asyncio.Task[ChatOutcome] | None = None

        async def stop() -> ChatOutcome:
            stopped = await connection.ask(PendingMessage("/stop"))
            await asyncio.wait({asking}, timeout=STOP_TIMEOUT)
            asking.cancel()
            return stopped

        def interrupt() -> None:
            nonlocal stopping
            if stopping is None:
                stopping = group.create_task(stop(), name="terminal:stop")
            else:
                stopping.cancel()
                asking.cancel()

        async with asyncio.TaskGroup() as group:
            asking = group.create_task(connection.ask(message), name="terminal:ask")
            with self._interruptible(interrupt):
                await asyncio.wait({asking})
                if stopping is not None:
                    await asyncio.wait({stopping})
        if not asking.cancelled():
            return asking.result()
        if stopping is None or stopping.cancelled():
            return NO_LONGER_WAITING
        return stopping.result()

    def _finish(self, text: str) -> None:
        """Print the rest of the answer, then everything that had to wait for its end."""
        _write(f"{self._printer.finish(text)}\n")
        self._is_finished = True
        while self._deferred:
            _write(f"{printable(self._deferred.popleft()).rstrip()}\n\n")

    def _show_aside(self, text: str) -> None:
        """Print text that does not belong to the answer, but never in the middle of it."""
        if self._printer.has_started and not self._is_finished:
            self._deferred.append(text)
        else:
            _write(f"{printable(text).rstrip()}\n\n")


def _write(text: str) -> None:
    # `sys.stdout` is looked up each time: at the prompt, `patch_stdout` replaces it to print above the prompt.
    sys.stdout.write(text)
    sys.stdout.flush()
