"""The shell: commands in a sandbox that has the workspace and nothing else of this machine."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from secrets import token_hex

import structlog

from config import ShellSettings
from gateway.agent.tools import Tool, ToolContext, ToolFailed, tool
from gateway.sandbox.bubblewrap import Limits, NoSandbox, Script, confined, limited, surroundings
from gateway.sandbox.processes import Bounds, Ended, kill_group, run
from gateway.sandbox.remote import hosted

__all__ = ["guarded", "make_shell", "script_for"]

log = structlog.get_logger()

_GRACE = 30.0
"""Seconds beyond the command's own limit, in which a slow machine can find and end everything."""
_SIDE_BY_SIDE = 8
"""Commands of one agent, whatever the number of its conversations."""
_QUEUE_SECONDS = 10.0
_MARK = "GATEHOUSE_SHELL"
_SWEEPS = 20


def make_shell(settings: ShellSettings) -> Tool:
    """Make the tool as `settings` want it."""
    slots = asyncio.Semaphore(_SIDE_BY_SIDE)

    @tool
    async def shell(context: ToolContext, command: str) -> str:
        """Run a shell command in the workspace."""
        async with _turn_of(slots):
            return _told(await _run(script_for(command, context.workspace, settings), settings))

    return replace(shell, deadline=settings.timeout + _GRACE)


def script_for(command: str, workspace: Path, settings: ShellSettings) -> Script:
    """Put `command` into the bounds that `settings` give it."""
    return Script(
        command=command,
        workspace=workspace,
        limits=Limits(memory_bytes=settings.memory_mb * 1024**2, processes=settings.max_processes),
        bounds=Bounds(seconds=settings.timeout, shown=settings.max_output_chars),
        network=settings.network,
    )


@asynccontextmanager
async def _turn_of(slots: asyncio.Semaphore) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(_QUEUE_SECONDS):
            await slots.acquire()
    except TimeoutError as late:
        raise ToolFailed("Too many commands are running at the moment. Try again in a while.") from late
    try:
        yield
    finally:
        slots.release()


async def _run(script: Script, settings: ShellSettings) -> Ended:
    try:
        return await guarded(script, settings)
    except NoSandbox as missing:
        if not settings.allow_unsandboxed:
            raise ToolFailed(str(missing)) from missing
        return await _unguarded(script)


async def guarded(script: Script, settings: ShellSettings) -> Ended:
    """Run `script` in a sandbox, made here or by the service that is there for it."""
    if settings.sandbox_socket:
        return await hosted(script, settings.sandbox_socket)
    return await confined(script)


async def _unguarded(script: Script) -> Ended:
    """Run without a sandbox, as the owner said explicitly: with limits and without our secrets, but with our rights."""
    mark = token_hex(16)
    log.warning("shell_unsandboxed", reason="no sandbox here, and tools.shell.allow_unsandboxed is set")
    return await run(
        limited(script.command, script.limits),
        env={**surroundings(str(script.workspace), str(script.workspace)), _MARK: mark},
        cwd=script.workspace,
        bounds=script.bounds,
        kill=kill_group,
        sweep=partial(_sweep, f"{_MARK}={mark}".encode()),
    )


def _sweep(mark: bytes) -> None:
    """Kill what has left the process group: it still carries the mark in its environment."""
    for _ in range(_SWEEPS):
        marked = [entry.name for entry in os.scandir("/proc") if entry.name.isdigit() and _is_marked(entry.name, mark)]
        if not marked:
            return
        for process in marked:
            with suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)


def _is_marked(process: str, mark: bytes) -> bool:
    try:
        return mark in Path("/proc", process, "environ").read_bytes().split(b"\0")
    except OSError:  # Over by now, or not ours.
        return False


def _told(ended: Ended) -> str:
    output = ended.output.strip("\n")
    if ended.stopped_for:
        raise ToolFailed(f"{output}\n[The command was stopped: {ended.stopped_for}.]".lstrip("\n"))
    if ended.exit_code:
        return f"{output}\n[Exit code {ended.exit_code}.]".lstrip("\n")
    return output or "[Done, without any output.]"
