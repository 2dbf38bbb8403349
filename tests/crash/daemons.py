"""Starts, kills and stops daemons under test, through the fork server."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.crash.daemon_spec import DaemonSpec
from tests.forks.process import Forked, Program, Started

ROOT = Path(__file__).parents[2]
TIMEOUT = 90.0
STDERR = 2


class Daemons:
    """The fork server and the daemons that it has forked."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._started: asyncio.Queue[int] = asyncio.Queue()
        self._ended: dict[int, asyncio.Future[int]] = {}

    async def start(self, spec: DaemonSpec) -> int:
        """Fork a daemon. Returns its pid."""
        self._writer.write(spec.encode() + b"\n")
        async with asyncio.timeout(TIMEOUT):
            return await self._started.get()

    async def ended(self, pid: int) -> int:
        """Wait until a daemon ends. Returns its status; a negative one is the signal that killed it."""
        return await asyncio.shield(self._ended[pid])

    def has_ended(self, pid: int) -> bool:
        return self._ended[pid].done()

    async def stop(self, pid: int, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a daemon a signal, and wait until it ends. Returns its status."""
        if not self.has_ended(pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        async with asyncio.timeout(TIMEOUT):
            return await self.ended(pid)

    async def listen(self) -> None:
        while line := await self._reader.readline():
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
    """Run a fork server, under the command `before` if given. Daemons that are left at the end are killed."""
    ours, theirs = socket.socketpair()
    with theirs:
        server = await asyncio.to_thread(_start_server, before, imports, (theirs.fileno(), theirs.fileno(), STDERR))
    reader, writer = await asyncio.open_connection(sock=ours)
    assert await reader.readline() == b"ready\n"
    forked = Daemons(reader, writer)
    listening = asyncio.create_task(forked.listen(), name="daemons")
    try:
        yield forked
    finally:
        await forked.kill_all()
        writer.write_eof()
        await asyncio.to_thread(server.wait, TIMEOUT)
        await listening
        writer.close()


def _start_server(before: Sequence[str], imports: Sequence[str], streams: tuple[int, int, int]) -> Started:
    """Fork the fork server, or start it as a new process if `before` must run it from its beginning."""
    # Killed daemons report no coverage, and measuring it would slow hundreds of them down.
    env = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    if before:
        command = [*before, sys.executable, "-m", "tests.crash.fork_server", *imports]
        return subprocess.Popen(command, cwd=ROOT, env=env, stdin=streams[0], stdout=streams[1], stderr=streams[2])
    program = Program(
        entry="tests.crash.fork_server:main", modules=("tests.crash.fork_server", *imports), is_measured=False
    )
    return Forked([], cwd=ROOT, env=env, streams=streams, program=program)
