"""The keyboard: line editing at the prompt, and what it does while an answer is on its way."""

import asyncio
import signal
import termios
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.key_binding.key_processor import KeyPressEvent

from channels.terminal.history import open_history
from channels.terminal.quitting import QUIT
from gateway.contract import CommandInfo
from gateway.text import printable

__all__ = ["CommandCompleter", "Prompt", "answering"]

PROMPT = "you> "
LEAVING = CommandInfo(name=QUIT, arguments="", summary="Leave this chat")


class CommandCompleter(Completer):
    """Completes `/commands` at the start of the message. The gateway says which there are."""

    def __init__(self) -> None:
        self.commands: Sequence[CommandInfo] = ()

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:  # noqa: ARG002 - prompt_toolkit's signature.
        typed = document.text_before_cursor
        if not typed.startswith("/"):
            return
        for command in (*self.commands, LEAVING):
            name = f"/{printable(command.name)}"
            if name.startswith(typed.lower()):
                yield Completion(name, start_position=-len(typed), display_meta=printable(command.summary))


class Prompt:
    """Asks for the next message."""

    def __init__(self, history: Path) -> None:
        self._completer = CommandCompleter()
        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            history=open_history(history),
            completer=self._completer,
            complete_while_typing=False,
            key_bindings=_bindings(),
            prompt_continuation=" " * len(PROMPT),
        )

    def offer(self, commands: Sequence[CommandInfo]) -> None:
        self._completer.commands = commands

    async def ask(self) -> str:
        """Return what was typed, of one line or several; raise `EOFError` at Ctrl-D. Ctrl-C empties the line."""
        while True:
            try:
                return await self._session.prompt_async()
            except KeyboardInterrupt:
                continue


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return bindings


@contextmanager
def answering(interrupt: Callable[[], None], terminal: int = 0) -> Iterator[None]:
    """Call `interrupt` at Ctrl-C. What is typed meanwhile is not shown, and waits for the next prompt."""
    loop = asyncio.get_running_loop()
    before = signal.getsignal(signal.SIGINT)
    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        with _unechoed(terminal):
            yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)


@contextmanager
def _unechoed(terminal: int) -> Iterator[None]:
    """Take keys one by one, not by lines: a Ctrl-D typed ahead then reaches the prompt as a key."""
    before = termios.tcgetattr(terminal)
    local = before[3] & ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(terminal, termios.TCSANOW, [*before[:3], local, *before[4:]])
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSANOW, before)
