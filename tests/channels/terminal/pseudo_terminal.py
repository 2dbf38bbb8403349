"""Runs `gatehouse` in a pseudo-terminal."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.daemon_process import COMMAND, TIMEOUT, environment

# The command becomes the leader of the terminal's session, so that Ctrl-C reaches it as in a shell.
IN_TERMINAL = "import os, sys; os.login_tty(0); os.execv(sys.argv[1], sys.argv[1:])"


class Terminal:
    """`type` presses keys; `screen` has everything that was ever shown."""

    def __init__(self, keyboard: int, process: subprocess.Popen[bytes]) -> None:
        self._keyboard = keyboard
        self._process = process
        self._changed = asyncio.Event()
        self._seen_to = 0
        self.screen = ""

    def type(self, keys: str | bytes) -> None:
        os.write(self._keyboard, keys if isinstance(keys, bytes) else keys.encode())

    async def shows(self, text: str) -> str:
        """Wait until `text` appears after the text of the previous wait; return everything up to its end."""
        async with asyncio.timeout(TIMEOUT):
            while (at := self.screen.find(text, self._seen_to)) < 0:
                self._changed.clear()
                await self._changed.wait()
        shown = self.screen[self._seen_to : at + len(text)]
        self._seen_to = at + len(text)
        return shown

    async def prompts(self) -> None:
        """Wait for a new prompt. prompt_toolkit turns on bracketed paste with each."""
        await self.shows("\x1b[?2004h")
        await self.shows("you>")

    async def ended(self) -> int:
        return await asyncio.to_thread(self._process.wait, TIMEOUT)

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def read(self) -> None:
        try:
            data = os.read(self._keyboard, 65536)
        except OSError:  # Linux reports a closed other side this way.
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._keyboard)
        self.screen += data.decode(errors="replace")
        self._changed.set()


@asynccontextmanager
async def in_terminal(*arguments: str, home: Path, **extra: str) -> AsyncIterator[Terminal]:
    """Run a command, with `extra` variables in its environment."""
    outer, process = _started(arguments, home, extra)
    terminal = Terminal(outer, process)
    loop = asyncio.get_running_loop()
    loop.add_reader(outer, terminal.read)
    try:
        yield terminal
    finally:
        loop.remove_reader(outer)
        if process.poll() is None:
            process.kill()
        process.wait(TIMEOUT)
        os.close(outer)


def _started(arguments: Sequence[str], home: Path, extra: dict[str, str]) -> tuple[int, subprocess.Popen[bytes]]:
    outer, inner = os.openpty()
    # Nothing here answers cursor position requests.
    extra = {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", **extra}
    process = subprocess.Popen(
        [sys.executable, "-c", IN_TERMINAL, str(COMMAND), *arguments],
        cwd=home,
        env=environment(home, extra),
        stdin=inner,
        stdout=inner,
        stderr=inner,
    )
    os.close(inner)
    return outer, process
