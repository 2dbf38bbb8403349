"""Watching and ending what runs in a sandbox: how many processes, and how much memory they hold together.

A limit of the kernel holds for one process each (memory) and not at all for root (the number of processes).
"""

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

from gateway.sandbox.walls import Limits

__all__ = ["excess", "kill_sandbox"]

_PAUSE = 0.05
_PAGE = os.sysconf("SC_PAGE_SIZE")


async def excess(bwrap: int, limits: Limits) -> str:
    """Return only when the sandbox that process `bwrap` started goes beyond its limits; say in which way."""
    while True:
        if reason := await asyncio.to_thread(_excess, bwrap, limits):
            return reason
        await asyncio.sleep(_PAUSE)


def _excess(bwrap: int, limits: Limits) -> str:
    with suppress(OSError, IndexError, ValueError):  # Not begun yet, or over by now.
        inner = Path(f"/proc/{_first_inside(bwrap)}/root/proc")
        if inner.stat().st_dev == Path("/proc").stat().st_dev:
            return ""  # The sandbox is still being built, and this is our own /proc.
        running = [name for name in os.listdir(inner) if name.isdigit()]  # noqa: PTH208 - names are all that is needed.
        if len(running) > limits.processes:
            return f"more than {limits.processes} processes"
        if sum(_resident(inner / name) for name in running) > limits.memory_bytes:
            return f"more than {limits.memory_bytes // 1024**2} MB of memory"
    return ""


def kill_sandbox(bwrap: int) -> None:
    """Kill the first process inside, and with it, by the kernel, all others; `bwrap` ends once they are gone."""
    with suppress(OSError, IndexError, ValueError):  # It has ended.
        os.kill(_first_inside(bwrap), signal.SIGKILL)


def _first_inside(bwrap: int) -> int:
    return int(Path(f"/proc/{bwrap}/task/{bwrap}/children").read_text().split()[0])


def _resident(process: Path) -> int:
    try:
        return int((process / "statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError):  # Over by now.
        return 0
