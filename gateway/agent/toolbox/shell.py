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
from gateway.sandbox.bubblewrap import (
    SandboxCommand,
    SandboxLimits,
    SandboxUnavailable,
    command_environment,
    prlimit_argv,
    run_sandboxed,
)
from gateway.sandbox.processes import ProcessResult, RunLimits, kill_group, run_process
from gateway.sandbox.remote import run_by_service

__all__ = ["make_shell", "run_in_sandbox", "sandbox_command"]

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
            return _told(await _run(sandbox_command(command, context.workspace, settings), settings))

    return replace(shell, deadline=settings.timeout + _GRACE)


def sandbox_command(command: str, workspace: Path, settings: ShellSettings) -> SandboxCommand:
    """Put `command` into the bounds that `settings` give it."""
    return SandboxCommand(
        command=command,
        workspace=workspace,
        limits=SandboxLimits(memory_bytes=settings.memory_mb * 1024**2, processes=settings.max_processes),
        bounds=RunLimits(seconds=settings.timeout, shown=settings.max_output_chars),
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


async def _run(script: SandboxCommand, settings: ShellSettings) -> ProcessResult:
    try:
        return await run_in_sandbox(script, settings)
    except SandboxUnavailable as missing:
        if not settings.allow_unsandboxed:
            raise ToolFailed(str(missing)) from missing
        return await _unguarded(script)


async def run_in_sandbox(script: SandboxCommand, settings: ShellSettings) -> ProcessResult:
    """Run `script` in a sandbox, made here or by the service that is there for it."""
    if settings.sandbox_socket:
        return await run_by_service(script, settings.sandbox_socket)
    return await run_sandboxed(script)


async def _unguarded(script: SandboxCommand) -> ProcessResult:
    """Run without a sandbox, as the owner said explicitly: with limits and without our secrets, but with our rights."""
    mark = token_hex(16)
    log.warning("shell_unsandboxed", reason="no sandbox here, and tools.shell.allow_unsandboxed is set")
    return await run_process(
        prlimit_argv(script.command, script.limits),
        env={**command_environment(str(script.workspace), str(script.workspace)), _MARK: mark},
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


def _told(ended: ProcessResult) -> str:
    output = ended.output.strip("\n")
    if ended.stopped_for:
        raise ToolFailed(f"{output}\n[The command was stopped: {ended.stopped_for}.]".lstrip("\n"))
    if ended.exit_code:
        return f"{output}\n[Exit code {ended.exit_code}.]".lstrip("\n")
    return output or "[Done, without any output.]"
