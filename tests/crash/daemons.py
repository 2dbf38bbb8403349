"""Starting, killing and stopping daemons under test, from the outside."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.crash.order import Order
from tests.forks.process import Forked, Program, Started

__all__ = ["Daemons", "daemons"]

ROOT = Path(__file__).parents[2]
PATIENCE = 90.0
STDERR = 2


class Daemons:
    """One process that forks daemons, and those that it has forked."""

    def __init__(self, tells: asyncio.StreamReader, takes: asyncio.StreamWriter) -> None:
        self._tells = tells
        self._takes = takes
        self._started: asyncio.Queue[int] = asyncio.Queue()
        self._ended: dict[int, asyncio.Future[int]] = {}

    async def start(self, order: Order) -> int:
        """Fork a daemon; returns its pid."""
        self._takes.write(order.encode() + b"\n")
        async with asyncio.timeout(PATIENCE):
            return await self._started.get()

    async def ended(self, pid: int) -> int:
        """Return the status with which it has ended; negative for the signal that has killed it."""
        return await asyncio.shield(self._ended[pid])

    def has_ended(self, pid: int) -> bool:
        return self._ended[pid].done()

    async def stop(self, pid: int, number: signal.Signals = signal.SIGTERM) -> int:
        """Send it a signal, and wait for its end."""
        if not self.has_ended(pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        async with asyncio.timeout(PATIENCE):
            return await self.ended(pid)

    async def listen(self) -> None:
        while line := await self._tells.readline():
            match line.split():
                case [b"started", pid]:
                    self._ended[int(pid)] = asyncio.get_running_loop().create_future()
                    self._started.put_nowait(int(pid))
                case [b"ended", pid, status]:
                    self._ended[int(pid)].set_result(int(status))

    async def kill_all(self) -> None:
        for pid in self._ended:
            await self.stop(pid, signal.SIGKILL)


@asynccontextmanager
async def daemons(*before: str, imports: Sequence[str] = ()) -> AsyncIterator[Daemons]:
    """Keep a process ready that forks daemons, run by the command `before`; those left at the end are killed."""
    ours, theirs = socket.socketpair()
    with theirs:
        house = await asyncio.to_thread(_house, before, imports, (theirs.fileno(), theirs.fileno(), STDERR))
    tells, takes = await asyncio.open_connection(sock=ours)
    assert await tells.readline() == b"ready\n"
    forked = Daemons(tells, takes)
    listening = asyncio.create_task(forked.listen(), name="daemons")
    try:
        yield forked
    finally:
        await forked.kill_all()
        takes.write_eof()
        await asyncio.to_thread(house.wait, PATIENCE)
        await listening
        takes.close()


def _house(before: Sequence[str], imports: Sequence[str], streams: tuple[int, int, int]) -> Started:
    """Start the process that forks: itself forked, unless a command must run it from its beginning."""
    # Hundreds of daemons that are killed have no coverage to tell, and would be slowed down by measuring it.
    env = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    if before:
        command = [*before, sys.executable, "-m", "tests.crash.house", *imports]
        return subprocess.Popen(command, cwd=ROOT, env=env, stdin=streams[0], stdout=streams[1], stderr=streams[2])
    house = Program(entry="tests.crash.house:main", modules=("tests.crash.house", *imports), is_measured=False)
    return Forked([], cwd=ROOT, env=env, streams=streams, program=house)
