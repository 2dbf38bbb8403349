"""The prompt of the interactive chat: line editing, command completion, history, and Ctrl-C during an answer."""

import asyncio
import os
import signal
import stat
import termios
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.key_binding.key_processor import KeyPressEvent

from channels.terminal.client.gateway_connection import QUIT
from gateway.contract import CommandInfo
from gateway.text import printable

PROMPT = "you> "
QUIT_COMMAND = CommandInfo(name=QUIT, arguments="", summary="Leave this chat")
MAX_HISTORY_SIZE = 512 * 1024
"""In bytes. A larger history file is cut to half of this when a chat starts."""


class CommandCompleter(Completer):
    """Completes `/commands` at the start of a message. The gateway sends the list of commands."""

    def __init__(self) -> None:
        self.commands: Sequence[CommandInfo] = ()

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:  # noqa: ARG002 - prompt_toolkit's signature.
        typed = document.text_before_cursor
        if not typed.startswith("/"):
            return
        for command in (*self.commands, QUIT_COMMAND):
            name = f"/{printable(command.name)}"
            if name.startswith(typed.lower()):
                yield Completion(name, start_position=-len(typed), display_meta=printable(command.summary))


class ChatPrompt:
    """Asks for the next message."""

    def __init__(self, history: Path) -> None:
        self._completer = CommandCompleter()
        bindings = KeyBindings()

        @bindings.add("escape", "enter")  # How a terminal sends Alt-Enter.
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            history=open_history(history),
            completer=self._completer,
            complete_while_typing=False,
            key_bindings=bindings,
            prompt_continuation=" " * len(PROMPT),
        )

    def set_commands(self, commands: Sequence[CommandInfo]) -> None:
        self._completer.commands = commands

    async def ask(self) -> str:
        """Return the typed text of one or more lines. Ctrl-C clears the line; Ctrl-D raises `EOFError`."""
        while True:
            try:
                return await self._session.prompt_async()
            except KeyboardInterrupt:
                continue


def open_history(path: Path) -> History:
    """Open the history file, readable by its owner only. If that fails, keep the history in memory."""
    try:
        # Something else may be in its place: do not wait for a pipe.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        with os.fdopen(os.open(path, flags, 0o600), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return InMemoryHistory()
            data = file.read()
        if len(data) > MAX_HISTORY_SIZE:
            # An entry starts with a line "# <time>"; its text is on lines that start with "+".
            half = data[-MAX_HISTORY_SIZE // 2 :]
            path.write_bytes(half[half.find(b"\n#") + 1 :])
    except OSError:
        return InMemoryHistory()
    return _SafeHistory(path)


class _SafeHistory(FileHistory):
    """A history file that ignores write errors: a full disk must not end the chat."""

    def store_string(self, string: str) -> None:
        with suppress(OSError):
            super().store_string(string)


@contextmanager
def interruptible(interrupt: Callable[[], None], terminal: int = 0) -> Iterator[None]:
    """Call `interrupt` on Ctrl-C. Other keys are not echoed, and wait for the next prompt."""
    loop = asyncio.get_running_loop()
    handler_before = signal.getsignal(signal.SIGINT)
    terminal_before = termios.tcgetattr(terminal)
    # Without ICANON the terminal passes keys on one by one. In line mode it would swallow a Ctrl-D typed ahead.
    local = terminal_before[3] & ~(termios.ECHO | termios.ICANON)
    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        termios.tcsetattr(terminal, termios.TCSANOW, [*terminal_before[:3], local, *terminal_before[4:]])
        try:
            yield
        finally:
            termios.tcsetattr(terminal, termios.TCSANOW, terminal_before)
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, handler_before)
