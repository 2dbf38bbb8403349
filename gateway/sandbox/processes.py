"""Running a program to its end, or to ours: nothing that it has started outlives the call."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.aio import finish_before_cancel

__all__ = ["ProcessResult", "RunLimits", "kill_group", "run_process"]

_CHUNK = 65_536
_MAX_OUTPUT_BYTES = 10_000_000
_PATIENCE = 10.0
_MOMENT = 0.2

Watch = Callable[[int], Coroutine[Any, Any, str]]  # As every async function is.
Kill = Callable[[int], None]
Sweep = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessResult:
    """What a program has said, and how it ended. `stopped_for` says why we ended it, if we did."""

    output: str
    exit_code: int
    stopped_for: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """For how long a program may run, and how much of what it says is kept: the beginning and the end."""

    seconds: float
    shown: int


class _Running:
    def __init__(self, process: asyncio.subprocess.Process, kill: Kill, sweep: Sweep | None) -> None:
        self.process = process
        self.stopped_for = ""
        self._kill = kill
        self._sweep = sweep

    def stop(self, reason: str) -> None:
        if self.process.returncode is None:
            self.stopped_for = self.stopped_for or reason
            self._kill(self.process.pid)

    async def end(self) -> None:
        """Kill what is left, and what has got away, once; then let nothing become a zombie."""
        sweep, self._sweep = self._sweep, None
        if sweep or self.process.returncode is None:  # Its number may be another's by now, unless it left its group.
            self._kill(self.process.pid)
        if sweep:
            await asyncio.to_thread(sweep)
        while not await self._has_ended():  # A sandbox that was still being built had nothing to kill in it yet.
            self._kill(self.process.pid)

    async def _has_ended(self) -> bool:
        """Give it a moment."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_MOMENT):
                await self.process.wait()
        return self.process.returncode is not None


def kill_group(leader: int) -> None:
    """Kill a program with what it has started, as far as that has stayed in its process group."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


async def run_process(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    bounds: RunLimits,
    kill: Kill,
    watch: Watch | None = None,
    sweep: Sweep | None = None,
) -> ProcessResult:
    """Run `argv`, in a session of its own; `kill` and `sweep` end it, and what has got away from it.

    `watch` has it ended by returning a reason.
    """
    said = _Said(bounds.shown)
    async with _output() as (stream, sink):
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=env,
                cwd=cwd,
                start_new_session=True,
            )
        finally:
            os.close(sink)
        running = _Running(process, kill, sweep)
        clock = asyncio.get_running_loop().call_later(
            bounds.seconds, running.stop, f"it took longer than {bounds.seconds:g} seconds"
        )
        try:
            await _follow(running, stream, said, watch)
        finally:
            clock.cancel()
            await finish_before_cancel(running.end(), grace=_PATIENCE)
    return ProcessResult(output=said.text(), exit_code=process.returncode or 0, stopped_for=running.stopped_for)


async def _follow(running: _Running, stream: asyncio.StreamReader, said: "_Said", watch: Watch | None) -> None:
    """Listen until the program itself has ended; what it left behind is ended then, so that the stream ends as well."""
    async with asyncio.TaskGroup() as group:
        listening = group.create_task(_listen(running, stream, said), name="process:listen")
        watching = group.create_task(_watch(running, watch), name="process:watch")
        await running.process.wait()
        watching.cancel()
        await finish_before_cancel(running.end(), grace=_PATIENCE)
        await asyncio.wait({listening}, timeout=_PATIENCE)
        listening.cancel()


async def _listen(running: _Running, stream: asyncio.StreamReader, said: "_Said") -> None:
    while chunk := await stream.read(_CHUNK):
        said.take(chunk)
        if said.total > _MAX_OUTPUT_BYTES:
            running.stop(f"it wrote more than {_MAX_OUTPUT_BYTES // 1_000_000} MB")
            return


async def _watch(running: _Running, watch: Watch | None) -> None:
    if watch and (reason := await watch(running.process.pid)):
        running.stop(reason)


@asynccontextmanager
async def _output() -> AsyncIterator[tuple[asyncio.StreamReader, int]]:
    """Make a pipe of our own: asyncio would wait for the last writer of its, also after the program has ended."""
    source, sink = os.pipe()
    stream = asyncio.StreamReader(limit=_CHUNK)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(source, "rb", buffering=0)
    )
    try:
        yield stream, sink
    finally:
        transport.close()


class _Said:
    """Keeps the beginning and the end of what a program says, however much it is."""

    def __init__(self, shown: int) -> None:
        self.total = 0
        self._head = bytearray()
        self._tail = bytearray()
        self._head_size = shown * 2 // 3
        self._tail_size = shown - self._head_size

    def take(self, chunk: bytes) -> None:
        self.total += len(chunk)
        room = self._head_size - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        del self._tail[: -self._tail_size]

    def text(self) -> str:
        left_out = self.total - len(self._head) - len(self._tail)
        gap = f"\n[... {left_out} bytes left out ...]\n".encode() if left_out else b""
        return bytes(self._head + gap + self._tail).decode(errors="replace")
