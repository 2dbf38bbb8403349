"""Set-up shared by tests that run commands in the sandbox."""

import asyncio
import os
import shutil
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.sandbox.bubblewrap import SandboxLimits, SandboxUnavailable, bubblewrap_argv
from gateway.sandbox.program import SandboxedProgram
from gateway.sandbox.remote import serve_commands

try:
    SANDBOX_COMMAND = bubblewrap_argv(":", Path("/"), SandboxLimits(memory_bytes=1, processes=1), network=False)
    NO_SANDBOX = ""
except SandboxUnavailable as failure:
    SANDBOX_COMMAND = []
    NO_SANDBOX = str(failure) if shutil.which("bwrap") else "bubblewrap is not installed"

needs_sandbox = pytest.mark.skipif(bool(NO_SANDBOX), reason=NO_SANDBOX)
NAP = f"{1_000_000 + os.getpid()}"
"""The first digits of a number of seconds to sleep. No other process sleeps that long, not even another test run."""


def processes_with(word: str) -> list[str]:
    """Return the processes with this word in their command line. Killed processes get ten seconds to go."""
    found = []
    for _ in range(100):
        found = [process.name for process in Path("/proc").glob("[0-9]*") if word in _command_line(process)]
        if not found:
            break
        time.sleep(0.1)
    return found


def _command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_text(errors="replace")
    except OSError:  # The process has ended since its folder was listed.
        return ""


def sandboxed_shell(script: str, repository: Path, **changes: object) -> SandboxedProgram:
    """Return a program that runs a shell script in a repository."""
    limits = SandboxLimits(memory_bytes=512 * 1024**2, processes=64)
    given = {"env": {}, "cwd": repository, "writable": (repository,), "limits": limits, **changes}
    return SandboxedProgram(argv=("/bin/sh", "-c", script), **given)  # type: ignore[arg-type]  # mixed values


@asynccontextmanager
async def service(path: Path, *, has_network: bool = False, idle: float = 60.0) -> AsyncIterator["asyncio.Task[None]"]:
    """Run the sandbox service on the socket `path`."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        async with asyncio.timeout(120), asyncio.TaskGroup() as group:
            serving = group.create_task(serve_commands(listener, has_network=has_network, idle=idle), name="sandbox")
            yield serving
            serving.cancel()
