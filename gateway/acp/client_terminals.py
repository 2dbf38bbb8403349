"""The commands that a coding agent runs through us: each in a sandbox of its own, with the folders of the agent."""

import asyncio
import codecs
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import structlog

from gateway.agent.toolbox.workspace import open_path, parts_inside
from gateway.agent.tools import ToolFailed
from gateway.aio import finish_before_cancel
from gateway.errors import ClientRefused
from gateway.sandbox.bubblewrap import SandboxUnavailable
from gateway.sandbox.program import ProgramExit, RunningProgram, SandboxedProgram, open_program
from gateway.text import excerpt

log = structlog.get_logger()

MAX_OUTPUT_BYTES = 1024**2
MAX_RUNNING = 8
MAX_KEPT = 32
"""Terminals that exist, also those whose command has ended. The oldest of these is released for a new one."""

_MAX_COMMAND_BYTES = 100_000
"""The kernel takes no more than 128 KiB in one argument."""
_CHUNK_BYTES = 65_536
_CONTINUATION = range(0x80, 0xC0)
"""The bytes of a character in UTF-8 after its first one."""
_MAX_CONTINUATION = 3
_RUN_LINE = 'exec /bin/sh -c "$1" </dev/null 2>&1'
_RUN_PROGRAM = 'exec "$@" </dev/null 2>&1'


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalExit:
    """How a command ended. A shell reports a signal as an exit code as well, so there may be both."""

    exit_code: int | None
    signal: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalOutput:
    text: str
    is_truncated: bool
    exit: TerminalExit | None
    """None while the command runs."""


class OutputTail:
    """Keeps the last `limit` bytes of an output, as valid text."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.is_truncated = False
        self._kept = bytearray()

    def add(self, chunk: bytes) -> None:
        self._kept += chunk
        if (extra := len(self._kept) - self.limit) > 0:
            self.is_truncated = True
            del self._kept[:extra]

    def text(self, *, is_complete: bool) -> str:
        """Return the text, without half a character at its start, and while more may come, at its end."""
        kept = bytes(self._kept)
        if self.is_truncated:
            rest = kept[:_MAX_CONTINUATION]
            kept = kept[next((at for at, byte in enumerate(rest) if byte not in _CONTINUATION), len(rest)) :]
        text = codecs.getincrementaldecoder("utf-8")("replace").decode(kept, is_complete)
        encoded = text.encode()
        if len(encoded) <= self.limit:
            return text
        # A replacement character is longer than the byte that it stands for.
        self.is_truncated = True
        return encoded[len(encoded) - self.limit :].decode(errors="ignore")


class ClientTerminals:
    """The terminals of one agent.

    `program` is the agent itself: its commands get the same folders, network and limits, but not its environment, which
    has the key for its model. They get `env` instead. `workspace` is an absolute path without links. Its owner calls
    `aclose`.
    """

    def __init__(
        self, program: SandboxedProgram, workspace: Path, service: Path | None = None, *, env: Mapping[str, str]
    ) -> None:
        self._program = program
        self._workspace = workspace
        self._service = service
        self._env = env
        self._terminals: dict[str, _Terminal] = {}
        self._numbers = count(1)
        self._is_closed = False

    async def create(
        self,
        command: str,
        args: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        output_byte_limit: int | None = None,
    ) -> str:
        """Start a command and return the id of its terminal. Raises `ClientRefused`.

        Without `args`, `command` is a line for the shell: agents send both forms. Its output and its errors are one
        stream. It reads nothing.
        """
        _check_words(command, args or (), env or {})
        argv = ("/bin/sh", "-c", _RUN_PROGRAM if args else _RUN_LINE, "sh", command, *(args or ()))
        folder = await asyncio.to_thread(self._folder, cwd)
        limit = MAX_OUTPUT_BYTES if output_byte_limit is None else min(max(output_byte_limit, 0), MAX_OUTPUT_BYTES)
        program = replace(self._program, argv=argv, env={**self._env, **(env or {})}, cwd=folder)
        self._make_room()
        terminal = _Terminal(f"terminal-{next(self._numbers)}", program, self._service, OutputTail(limit))
        self._terminals[terminal.id] = terminal
        try:
            await terminal.started()
        except BaseException:
            self._terminals.pop(terminal.id, None)
            await finish_before_cancel(terminal.aclose())
            raise
        log.debug("agent_terminal_started", terminal=terminal.id, cwd=str(folder))
        return terminal.id

    def output(self, terminal_id: str) -> TerminalOutput:
        return self._find(terminal_id).output()

    async def wait_for_exit(self, terminal_id: str) -> TerminalExit:
        return await self._find(terminal_id).wait()

    async def kill(self, terminal_id: str) -> None:
        """End the command. Its output can still be read."""
        await self._find(terminal_id).kill()

    async def release(self, terminal_id: str) -> None:
        """End the command, and forget its output."""
        terminal = self._find(terminal_id)
        del self._terminals[terminal_id]
        await finish_before_cancel(terminal.aclose())

    async def aclose(self) -> None:
        """End all commands. No further one can be started. Returns when no process of them is left."""
        self._is_closed = True
        terminals = list(self._terminals.values())
        self._terminals.clear()

        async def close_all() -> None:
            for each in terminals:
                each.cancel()
            for each in terminals:
                await each.aclose()

        await finish_before_cancel(close_all())

    def _find(self, terminal_id: str) -> "_Terminal":
        try:
            return self._terminals[terminal_id]
        except KeyError:
            raise ClientRefused(f"There is no terminal {excerpt(terminal_id, 100)!r}.") from None

    def _make_room(self) -> None:
        if self._is_closed:
            raise ClientRefused("The session has ended, so no command can be started.")
        ended = [terminal.id for terminal in self._terminals.values() if terminal.exit is not None]
        if len(self._terminals) - len(ended) >= MAX_RUNNING:
            raise ClientRefused(f"{MAX_RUNNING} commands are running already. Wait for one to end, or kill it.")
        for terminal_id in ended[: max(len(self._terminals) - MAX_KEPT + 1, 0)]:
            del self._terminals[terminal_id]

    def _folder(self, cwd: str | None) -> Path:
        """Return the folder for a command. Blocks."""
        shown = excerpt(cwd or "", 200)
        if cwd is None:
            return self._workspace
        if not cwd.startswith("/"):
            raise ClientRefused(f"{shown!r} is not an absolute path.")
        try:
            parts = parts_inside(self._workspace, cwd)
            os.close(open_path(self._workspace, parts, os.O_DIRECTORY))
        except ToolFailed as error:
            raise ClientRefused(str(error)) from error
        except (OSError, RuntimeError, ValueError) as error:
            raise ClientRefused(f"{shown!r} is not a folder in which a command can run.") from error
        return self._workspace.joinpath(*parts)


def _check_words(command: str, args: Sequence[str], env: Mapping[str, str]) -> None:
    if not command.strip():
        raise ClientRefused("The command is empty.")
    if any(not name or "=" in name for name in env):
        raise ClientRefused("A variable has a name that cannot be used.")
    words = [command, *args, *env, *env.values()]
    # A zero byte separates the arguments of bubblewrap: behind one, a variable could name any folder of this machine.
    if any("\0" in word for word in words):
        raise ClientRefused("The command contains a zero byte.")
    try:
        size = sum(len(word.encode()) for word in words)
    except UnicodeEncodeError:
        raise ClientRefused("The command is not valid text.") from None
    if size > _MAX_COMMAND_BYTES:
        raise ClientRefused(f"The command is too long: at most {_MAX_COMMAND_BYTES} bytes. Write a script.")


class _Terminal:
    """One command. Its task runs until the command has ended."""

    def __init__(self, id_: str, program: SandboxedProgram, service: Path | None, tail: OutputTail) -> None:
        self.id = id_
        self.exit: TerminalExit | None = None
        self._tail = tail
        self._running: RunningProgram | None = None
        self._has_started = asyncio.Event()
        """Also if it never will."""
        self._failure = "The session has ended, so no command can be started."
        # Not in a task group: `ClientTerminals` waits for it, in `release` or in `aclose`.
        self._task = asyncio.get_running_loop().create_task(self._run(program, service), name=f"acp:{id_}")
        self._task.add_done_callback(lambda _: self._has_started.set())

    async def started(self) -> None:
        await self._has_started.wait()
        if self._running is None:
            raise ClientRefused(self._failure)

    def output(self) -> TerminalOutput:
        text = self._tail.text(is_complete=self.exit is not None)
        return TerminalOutput(text=text, is_truncated=self._tail.is_truncated, exit=self.exit)

    async def wait(self) -> TerminalExit:
        await asyncio.wait({self._task})
        return self.exit or _KILLED

    async def kill(self) -> None:
        if self._running is not None:
            await self._running.end()
        await self.wait()

    def cancel(self) -> None:
        """End the command soon. A second cancellation would disturb the killing."""
        if not self._task.cancelling():
            self._task.cancel()

    async def aclose(self) -> None:
        """Kill the command and wait until none of its processes is left."""
        self.cancel()
        await asyncio.wait({self._task})

    async def _run(self, program: SandboxedProgram, service: Path | None) -> None:
        try:
            async with open_program(program, service) as self._running:
                self._has_started.set()
                while chunk := await self._running.stdout.read(_CHUNK_BYTES):
                    self._tail.add(chunk)
                ended = await self._running.wait()
            if ended.stopped_for:
                self._tail.add(f"\n[Stopped: {ended.stopped_for}.]\n".encode())
            self.exit = _terminal_exit(ended)
        except SandboxUnavailable as error:
            self._failure = str(error)
        except OSError as error:  # Too many processes or files.
            self._failure = f"The command cannot be started: {error.strerror}."
        finally:
            self.exit = self.exit or _KILLED


_KILLED = TerminalExit(exit_code=None, signal="SIGKILL")


def _terminal_exit(ended: ProgramExit) -> TerminalExit:
    number = -ended.code if ended.code < 0 else ended.code - 128
    name = signal.Signals(number).name if number in set(signal.Signals) else None
    return TerminalExit(exit_code=ended.code if ended.code >= 0 else None, signal=name)
