"""A gateway and all its child processes: their CPU time, memory and end."""

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.peers.peer import Launch

GRACE = 15.0
"""Seconds between SIGTERM and SIGKILL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTree:
    root: subprocess.Popen[bytes]

    def pids(self) -> list[int]:
        parents = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and (fields := _stat(int(entry.name))):
                parents[int(entry.name)] = int(fields[1])
        found = [self.root.pid]
        for pid in found:  # The list grows while it is read: children, then their children.
            found += [child for child, parent in parents.items() if parent == pid]
        return found

    def cpu_ms(self) -> float:
        """Return the user and system time, with that of children which have ended."""
        ticks = sum(sum(int(each) for each in _stat(pid)[11:15]) for pid in self.pids())
        return ticks * 1000 / os.sysconf("SC_CLK_TCK")

    def memory_mb(self) -> float:
        """Return the sum of the resident memory. Pages that processes share count for each of them."""
        pages = sum(int((_stat(pid) or ["0"] * 22)[21]) for pid in self.pids())
        return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)

    def kill(self) -> None:
        """Send SIGKILL to every process of the tree, the root first so that it starts no others."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.root.wait()

    async def stop(self) -> None:
        """Send SIGTERM to the root, and SIGKILL to what is left."""
        began = {pid: _stat(pid)[19:20] for pid in self.pids()}
        self.root.terminate()
        with suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self.root.wait, GRACE)
        for pid, start in began.items():
            # Another process may have the number of one that has ended, but not its start time.
            if start and _stat(pid)[19:20] == start:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.root.wait()


@asynccontextmanager
async def started(launch: Launch, home: Path) -> AsyncIterator[ProcessTree]:
    """Run a gateway with little of the caller's environment. Its output is appended to `output.log` in its home."""
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home), "LANG": "C.UTF-8", **launch.env}
    with (home / "output.log").open("ab") as output:
        root = subprocess.Popen(  # noqa: ASYNC220 - it returns at once
            launch.command, cwd=home, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    tree = ProcessTree(root=root)
    try:
        yield tree
    finally:
        if root.poll() is None:
            await tree.stop()


def _stat(pid: int) -> list[str]:
    """Return the fields of a process from its state on. An ended process has none."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []
