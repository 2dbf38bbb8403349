"""The interactive chat: a prompt, answers printed while they are written, and notices above the prompt."""

import asyncio
import sys
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager

from prompt_toolkit.patch_stdout import patch_stdout

from channels.terminal.client.answer_view import AnswerView, PlainAnswer
from channels.terminal.client.gateway_connection import (
    ChatOutcome,
    GatewayConnection,
    PendingMessage,
    is_command,
    is_help,
    is_quit,
)
from channels.terminal.client.prompt import ChatPrompt, interruptible
from channels.websocket.wire import (
    CommandsFrame,
    DraftFrame,
    EchoFrame,
    ErrorFrame,
    MessageFrame,
    ServerFrame,
    UploadedFile,
)
from gateway.contract import OutboundKind

MAX_DEFERRED = 100
"""How many notices may wait for the end of an answer. The oldest is dropped first."""
STOP_TIMEOUT = 2.0
"""How long a stopped answer may take to end. A message that was still queued in the gateway never gets an answer."""
TICK = 0.1
"""Seconds between two frames of the waiting indicator."""
KEYS = (
    "In this terminal: Enter sends, Alt-Enter starts a new line, Tab completes a command, Ctrl-C stops an answer, "
    "Ctrl-D or /quit leaves."
)
NO_LONGER_WAITING = ChatOutcome(
    is_answer=False, text="(Stopped waiting for this answer. If it arrives later, it's shown here.)"
)


class InteractiveChat:
    """One message at a time: the prompt returns when the answer is complete."""

    def __init__(
        self,
        prompt: ChatPrompt,
        interruptible: Callable[[Callable[[], None]], AbstractContextManager[None]] = interruptible,
        *,
        new_view: Callable[[], AnswerView] = PlainAnswer,
        files: tuple[UploadedFile, ...] = (),
    ) -> None:
        """Show each answer in a view of its own. `files` go with the first message that is no command."""
        self._prompt = prompt
        self._interruptible = interruptible
        self._new_view = new_view
        self._files = files
        self._current: PendingMessage | None = None
        self._view = new_view()
        self._is_finished = False
        self._deferred: deque[tuple[str, bool]] = deque(maxlen=MAX_DEFERRED)
        """Asides, each with whether it is Markdown."""

    def receive(self, frame: ServerFrame, message: PendingMessage | None) -> None:
        if message is not None:
            if message is not self._current or self._is_finished:
                return
            if isinstance(frame, DraftFrame):
                _write(self._view.draft(frame.text))
            elif isinstance(frame, MessageFrame):
                if frame.restored:
                    self._show_aside(f"({frame.restored} earlier turns of this session were restored.)")
                self._finish(frame.text, is_markdown=frame.kind == OutboundKind.REPLY, details=frame.details)
            return
        match frame:
            case CommandsFrame():
                self._prompt.set_commands(frame.commands)
            case MessageFrame():
                self._show_aside(frame.text, is_markdown=frame.kind == OutboundKind.REPLY)
            case ErrorFrame():
                self._show_aside(frame.text)
            case EchoFrame():
                self._show_aside(f"(you, elsewhere) {frame.text}")
            case _:
                return

    async def run(self, connection: GatewayConnection) -> int:
        """Chat until the user leaves; return the exit code."""
        while True:
            try:
                # Raw, because answers are styled. They contain no other control characters.
                with patch_stdout(raw=True):
                    text = await self._prompt.ask()
            except EOFError:
                return 0
            if is_quit(text):
                return 0
            if text.strip():
                self._current = PendingMessage(text, () if is_command(text) else self._files)
                self._files = self._files if is_command(text) else ()
                self._view = self._new_view()
                self._is_finished = False
                outcome = await self._ask(connection, self._current)
                if not self._is_finished:
                    self._finish(outcome.text, is_markdown=False)
                self._current = None
                if outcome.is_answer and is_help(text):
                    self._show_aside(KEYS)

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
            ticking = group.create_task(self._tick(), name="terminal:indicator")
            with self._interruptible(interrupt):
                await asyncio.wait({asking})
                if stopping is not None:
                    await asyncio.wait({stopping})
            ticking.cancel()
        if not asking.cancelled():
            outcome = asking.result()
            if stopping is not None and not stopping.cancelled() and self._is_finished:
                # The text so far has been printed. The answer to /stop says that it ends there.
                self._show_aside(stopping.result().text)
            return outcome
        if stopping is None or stopping.cancelled():
            return NO_LONGER_WAITING
        return stopping.result()

    async def _tick(self) -> None:
        try:
            while not self._is_finished:
                _write(self._view.tick())
                await asyncio.sleep(TICK)
        finally:
            if not self._is_finished:
                _write(self._view.clear())

    def _finish(self, text: str, *, is_markdown: bool, details: str = "") -> None:
        """Print the rest of the answer, then everything that had to wait for its end."""
        _write(f"{self._view.finish(text, is_markdown=is_markdown)}\n")
        self._is_finished = True
        if details:
            self._show_aside(f"Details: {details}")
        while self._deferred:
            self._show_aside(*self._deferred.popleft())

    def _show_aside(self, text: str, is_markdown: bool = False) -> None:  # noqa: FBT001, FBT002 - see `_deferred`.
        """Print text that does not belong to the answer, but never in the middle of it."""
        if self._current is None or self._is_finished:
            _write(f"{self._new_view().finish(text, is_markdown=is_markdown)}\n")
        elif self._view.has_started:
            self._deferred.append((text, is_markdown))
        else:
            _write(self._view.above(text))


def _write(text: str) -> None:
    # `sys.stdout` is looked up each time: at the prompt, `patch_stdout` replaces it to print above the prompt.
    sys.stdout.write(text)
    sys.stdout.flush()
