"""Runs a program within limits. No process that it started outlives the call."""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.aio import finish_before_cancel, open_output_pipe

_CHUNK_BYTES = 65_536
MAX_OUTPUT_BYTES = 10_000_000
_KILL_TIMEOUT = 10.0
_KILL_INTERVAL = 0.2

Watch = Callable[[int], Coroutine[Any, Any, str]]  # Any: as for every async function.
Kill = Callable[[int], None]
Sweep = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessResult:
    """The output of a program and how it ended. `stopped_for` says why we stopped it, if we did."""

    output: str
    exit_code: int
    stopped_for: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """Limits on the time that a program runs, and on the bytes of its output that are kept."""

    seconds: float
    shown: int


def kill_group(leader: int) -> None:
    """Kill a program and the processes it started, unless they left its process group."""
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
    descriptors: Sequence[int] = (),
) -> ProcessResult:
    """Run `argv` in a new session. `kill` ends it; `sweep` ends processes that got away from it.

    `watch` stops the program by returning a reason. Of our open files, the program gets only `descriptors`.
    """
    kept = KeptOutput(bounds.shown)
    stream, transport, sink = await open_output_pipe(_CHUNK_BYTES)
    try:
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=env,
                cwd=cwd,
                start_new_session=True,
                pass_fds=descriptors,
            )
        finally:
            os.close(sink)
        running = _RunningProcess(process, kill, sweep)
        deadline = asyncio.get_running_loop().call_later(
            bounds.seconds, running.stop, f"it took longer than {bounds.seconds:g} seconds"
        )

        async def read_output() -> None:
            while chunk := await stream.read(_CHUNK_BYTES):
                kept.add(chunk)
                if kept.total > MAX_OUTPUT_BYTES:
                    running.stop(f"it wrote more than {MAX_OUTPUT_BYTES // 1_000_000} MB")
                    return

        async def watch_process() -> None:
            if watch and (reason := await watch(process.pid)):
                running.stop(reason)

        try:
            async with asyncio.TaskGroup() as group:
                reader = group.create_task(read_output(), name="process:output")
                watcher = group.create_task(watch_process(), name="process:watch")
                await process.wait()
                watcher.cancel()
                # 1. The program has ended, but processes that it left behind may hold the pipe open.
                # 2. They are killed now, so that the stream ends.
                # 3. The rest of the output is read.
                await finish_before_cancel(running.end(), grace=_KILL_TIMEOUT)
                await asyncio.wait({reader}, timeout=_KILL_TIMEOUT)
                reader.cancel()
        finally:
            deadline.cancel()
            await finish_before_cancel(running.end(), grace=_KILL_TIMEOUT)
    finally:
        transport.close()
    return ProcessResult(output=kept.text(), exit_code=process.returncode or 0, stopped_for=running.stopped_for)


class _RunningProcess:
    def __init__(self, process: asyncio.subprocess.Process, kill: Kill, sweep: Sweep | None) -> None:
        self.stopped_for = ""
        self._process = process
        self._kill = kill
        self._sweep = sweep

    def stop(self, reason: str) -> None:
        if self._process.returncode is None:
            self.stopped_for = self.stopped_for or reason
            self._kill(self._process.pid)

    async def end(self) -> None:
        """Kill the process and the processes that got away from it, and wait for it, so that it is no zombie."""
        sweep, self._sweep = self._sweep, None
        # After the process has ended, its number may belong to another process. Not so for a group (`sweep`): no other
        # process gets its number while a member of the group is left.
        if sweep or self._process.returncode is None:
            self._kill(self._process.pid)
        if sweep:
            await asyncio.to_thread(sweep)
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_KILL_INTERVAL):
                    await self._process.wait()
            if self._process.returncode is not None:
                return
            # A sandbox that was still being set up had no process to kill yet.
            self._kill(self._process.pid)


class KeptOutput:
    """Keeps the start and the end of an output of any length."""

    def __init__(self, shown: int) -> None:
        self.total = 0
        self._head = bytearray()
        self._tail = bytearray()
        self._head_size = shown * 2 // 3
        self._tail_size = shown - self._head_size

    def add(self, chunk: bytes) -> None:
        self.total += len(chunk)
        room = self._head_size - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        del self._tail[: -self._tail_size]

    def text(self) -> str:
        left_out = self.total - len(self._head) - len(self._tail)
        gap = f"\n[... {left_out} bytes left out ...]\n".encode() if left_out else b""
        return bytes(self._head + gap + self._tail).decode(errors="replace")
