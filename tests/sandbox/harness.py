"""Set-up shared by tests that run commands in the sandbox."""

import os
import shutil
import time
from pathlib import Path

import pytest

from gateway.sandbox.bubblewrap import SandboxLimits, SandboxUnavailable, bubblewrap_argv

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
