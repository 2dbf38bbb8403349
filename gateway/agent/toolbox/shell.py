"""The shell tool: runs commands in a sandbox that contains only the workspace."""

import asyncio
import os
import re
import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from secrets import token_hex

import structlog

from config import ShellSettings
from gateway.agent.toolbox.workspace import command_folder
from gateway.agent.tools import Tool, ToolContext, ToolFailed, tool
from gateway.sandbox.bubblewrap import (
    ATTACHMENTS,
    SKILLS,
    SandboxCommand,
    SandboxLimits,
    SandboxUnavailable,
    command_environment,
    prlimit_argv,
    run_sandboxed,
    with_own_keyring,
)
from gateway.sandbox.processes import ProcessResult, RunLimits, kill_group, run_process
from gateway.sandbox.remote import run_by_service

log = structlog.get_logger()

_CLEANUP_TIME = 30.0
"""Seconds beyond the command's own limit, in which a slow machine can find and kill its processes."""
_MAX_CONCURRENT = 8
"""Commands of one agent, in all its conversations."""
_QUEUE_TIMEOUT = 10.0
_MARK = "GATEHOUSE_SHELL"
_MAX_SWEEPS = 40
_CLEAN_SWEEPS = 3
_SWEEP_INTERVAL = 0.02
_ATTACHMENTS_HINT = f"[There is no sandbox here. The files of {ATTACHMENTS} are in the folder $ATTACHMENTS.]"
_SKILL_PATH = re.compile(rf"(?<![\w./-]){SKILLS}/")


def make_shell(settings: ShellSettings) -> Tool:
    slots = asyncio.Semaphore(_MAX_CONCURRENT)

    @tool
    async def shell(context: ToolContext, command: str) -> str:
        """Run a shell command in the workspace."""
        try:
            async with asyncio.timeout(_QUEUE_TIMEOUT):
                await slots.acquire()
        except TimeoutError as late:
            raise ToolFailed("Too many commands are running at the moment. Try again in a while.") from late
        try:
            folder = await asyncio.to_thread(command_folder, context)
            boxed = replace(
                sandbox_command(command, folder, settings), attachments=context.attachments, skills=context.skills
            )
            try:
                result = await run_in_sandbox(boxed, settings)
            except SandboxUnavailable as missing:
                if not settings.allow_unsandboxed:
                    raise ToolFailed(str(missing)) from missing
                # Here a script of a skill would have all rights of the gateway, which nobody has granted to its author.
                if context.skills and _names_skill(command, context):
                    raise ToolFailed("Scripts of skills run only in a sandbox, and this machine has none.") from missing
                result = await _run_unsandboxed(boxed)
                if context.attachments is not None and ATTACHMENTS in command:
                    result = replace(result, output=f"{result.output}\n{_ATTACHMENTS_HINT}")
        finally:
            slots.release()
        output = result.output.strip("\n")
        if result.stopped_for:
            raise ToolFailed(f"{output}\n[The command was stopped: {result.stopped_for}.]".lstrip("\n"))
        if result.exit_code:
            return f"{output}\n[Exit code {result.exit_code}.]".lstrip("\n")
        return output or "[Done, without any output.]"

    return replace(shell, deadline=settings.timeout + _CLEANUP_TIME)


def sandbox_command(command: str, workspace: Path, settings: ShellSettings) -> SandboxCommand:
    return SandboxCommand(
        command=command,
        workspace=workspace,
        limits=SandboxLimits(memory_bytes=settings.memory_mb * 1024**2, processes=settings.max_processes),
        bounds=RunLimits(seconds=settings.timeout, shown=settings.max_output_chars),
        network=settings.network,
    )


async def run_in_sandbox(command: SandboxCommand, settings: ShellSettings) -> ProcessResult:
    """Run `command` in a sandbox, made here or by the sandbox service."""
    if settings.sandbox_socket:
        return await run_by_service(command, settings.sandbox_socket)
    return await run_sandboxed(command)


def _names_skill(command: str, context: ToolContext) -> bool:
    folders = context.skills.values()
    # Also `cd /srv/skills; sh pdf/scripts/fill.sh`. A command can hide what it runs, so this stops no attacker.
    is_named = any(str(path.parent) in command and path.name in command for path in folders)
    return bool(_SKILL_PATH.search(command)) or is_named


async def _run_unsandboxed(command: SandboxCommand) -> ProcessResult:
    """Run without a sandbox, as the settings allow: with limits and without our secrets, but with our rights."""
    mark = token_hex(16)
    marked = f"{_MARK}={mark}".encode()
    workspace = str(command.workspace)
    log.warning("shell_unsandboxed", reason="no sandbox here, and tools.shell.allow_unsandboxed is set")

    def is_marked(process: str) -> bool:
        try:
            return marked in Path("/proc", process, "environ").read_bytes().split(b"\0")
        except OSError:  # Ended, or not ours.
            return False

    def sweep() -> None:
        """Kill processes that left the process group. They still have the mark in their environment."""
        clean_sweeps = 0
        for _ in range(_MAX_SWEEPS):
            found = [entry.name for entry in os.scandir("/proc") if entry.name.isdigit() and is_marked(entry.name)]
            # One clean sweep is not enough: a process that is just starting a program shows no environment.
            clean_sweeps = 0 if found else clean_sweeps + 1
            if clean_sweeps == _CLEAN_SWEEPS:
                return
            for process in found:
                with suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
            time.sleep(_SWEEP_INTERVAL)

    return await run_process(
        with_own_keyring(prlimit_argv(command.command, command.limits)),
        env={**command_environment(workspace, workspace), "ATTACHMENTS": str(command.attachments or ""), _MARK: mark},
        cwd=command.workspace,
        bounds=command.bounds,
        kill=kill_group,
        sweep=sweep,
    )
