"""Runs a long-lived program in a sandbox and talks to it through pipes. Coding agents run like this, and git."""

import asyncio
import os
import re
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Protocol

from gateway.sandbox.bubblewrap import SandboxUnavailable
from gateway.sandbox.layout import AGENT_HOME, SandboxedProgram
from gateway.sandbox.processes import MAX_OUTPUT_BYTES, KeptOutput, ProcessResult
from gateway.sandbox.program_process import GO, READY, ProgramExit, Stdio, start_process
from gateway.sandbox.remote_program import start_by_service

__all__ = ["AGENT_HOME", "ProgramExit", "RunningProgram", "SandboxedProgram", "open_program", "run_program"]

_STDOUT_LIMIT = 65_536
_CHUNK_BYTES = 65_536
_TAIL_BYTES = 4096
_TAIL_LINES = 40
_START_TIMEOUT = 30.0
"""Seconds for the sandbox, not for the program in it."""
_END_TIMEOUT = 10.0
_CONTROL_CHARACTERS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[^\n\t\x20-\x7e\xa0-\U0010ffff]")


class _Control(Protocol):
    """A running sandbox: made by this process or by the service."""

    @property
    def pid(self) -> int: ...

    async def wait(self) -> ProgramExit: ...

    async def terminate(self) -> None: ...

    def kill(self) -> None: ...


class RunningProgram:
    def __init__(
        self, stdin: asyncio.StreamWriter, stdout: asyncio.StreamReader, stderr: "_Tail", control: _Control
    ) -> None:
        self.stdin = stdin
        self.stdout = stdout
        self.pid = control.pid
        """The process of bubblewrap, for logs."""
        self._stderr = stderr
        self._control = control

    def stderr_tail(self) -> str:
        """Return the last lines of the program's standard error, without control characters."""
        return self._stderr.text()

    async def wait(self) -> ProgramExit:
        """Return when the program has ended and no process of its sandbox is left."""
        exit_ = await self._control.wait()
        await asyncio.wait({self._stderr.closed}, timeout=_END_TIMEOUT)
        return exit_

    async def end(self, grace: float = 2.0) -> None:
        """Ask all processes of the sandbox to end, and kill them after `grace` seconds. Return when all are gone."""
        self.stdin.close()
        if grace > 0:
            try:
                async with asyncio.timeout(grace):
                    await self._control.terminate()
                    await self.wait()
            except TimeoutError:
                pass
            else:
                return
        self._control.kill()
        await self.wait()


@asynccontextmanager
async def open_program(program: SandboxedProgram, service: Path | None = None) -> AsyncIterator[RunningProgram]:
    """Run `program` in a sandbox, made here or by the sandbox service. Leaving kills everything in it.

    Raises `SandboxUnavailable`. If the program itself cannot be run, it ends at once with exit code 126 or 127.
    """
    async with _open(program, service) as running:
        yield running


async def run_program(
    program: SandboxedProgram, *, seconds: float, max_output: int, service: Path | None = None, stdin: bytes = b""
) -> ProcessResult:
    """Run `program` to its end. Of its output and errors together, `max_output` bytes are kept."""
    kept = KeptOutput(max_output)
    stopped_for = ""
    async with _open(program, service, is_merged=True) as running:
        try:
            async with asyncio.timeout(seconds):
                running.stdin.write(stdin)
                running.stdin.close()  # After it was written.
                while chunk := await running.stdout.read(_CHUNK_BYTES):
                    kept.add(chunk)
                    if kept.total > max(MAX_OUTPUT_BYTES, max_output):
                        stopped_for = f"it wrote more than {kept.total // 1_000_000} MB"
                        break
                else:
                    await running.wait()
        except TimeoutError:
            stopped_for = f"it took longer than {seconds:g} seconds"
        if stopped_for:
            await running.end(grace=0)
        ended = await running.wait()
    return ProcessResult(output=kept.text(), exit_code=ended.code, stopped_for=stopped_for or ended.stopped_for)


@asynccontextmanager
async def _open(
    program: SandboxedProgram, service: Path | None, *, is_merged: bool = False
) -> AsyncIterator[RunningProgram]:
    async with AsyncExitStack() as stack, AsyncExitStack() as ends:
        source, stdin = await _open_writer(stack)
        ends.callback(os.close, source)
        stdout = asyncio.StreamReader(limit=_STDOUT_LIMIT)
        sink = await _open_reader(stack, asyncio.StreamReaderProtocol(stdout))
        ends.callback(os.close, sink)
        stderr, errors = _Tail(), sink
        if not is_merged:
            errors = await _open_reader(stack, stderr)
            ends.callback(os.close, errors)
        else:
            stderr.connection_lost(None)
        stdio = Stdio(source, sink, errors)
        starting = start_by_service(program, stdio, service) if service else start_process(program, stdio)
        control: _Control = await stack.enter_async_context(starting)
        await ends.aclose()  # The program alone has them now, so that the streams end with it.
        running = RunningProgram(stdin, stdout, stderr, control)
        await _pass_gate(running)
        yield running


async def _open_writer(stack: AsyncExitStack) -> tuple[int, asyncio.StreamWriter]:
    """Return the end of a pipe for the program's standard input, and its writer."""
    loop = asyncio.get_running_loop()
    source, sink = os.pipe()
    protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())  # For the flow control. Nothing is read.
    transport, _ = await loop.connect_write_pipe(lambda: protocol, os.fdopen(sink, "wb", buffering=0))
    stack.callback(_close_writer, transport)
    return source, asyncio.StreamWriter(transport, protocol, None, loop)


def _close_writer(transport: asyncio.WriteTransport) -> None:
    if transport.get_write_buffer_size():  # The program has ended without reading it.
        transport.abort()
    else:
        transport.close()


async def _open_reader(stack: AsyncExitStack, protocol: asyncio.Protocol) -> int:
    """Return the end of a pipe for an output of the program, which goes to `protocol`."""
    source, sink = os.pipe()
    file = os.fdopen(source, "rb", buffering=0)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, file)
    stack.callback(transport.close)
    return sink


async def _pass_gate(running: RunningProgram) -> None:
    """Wait until the sandbox is set up, then let the program start."""
    complaints: list[bytes] = []
    try:
        async with asyncio.timeout(_START_TIMEOUT):
            while (line := await running.stdout.readline()) != READY:
                if not line:
                    await running.wait()
                    complaint = b"".join(complaints).decode(errors="replace").strip() or running.stderr_tail()
                    raise SandboxUnavailable(f"The sandbox for the program could not be set up: {complaint[-300:]}")
                complaints.append(line)
    except TimeoutError as late:
        raise SandboxUnavailable(
            f"The sandbox for the program was not ready after {_START_TIMEOUT:g} seconds."
        ) from late
    running.stdin.write(GO)


class _Tail(asyncio.Protocol):
    """Reads a stream all the time and keeps its end."""

    def __init__(self) -> None:
        self.closed = asyncio.get_running_loop().create_future()
        self._kept = bytearray()

    def data_received(self, data: bytes) -> None:
        self._kept += data
        del self._kept[:-_TAIL_BYTES]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(exc)

    def text(self) -> str:
        text = _CONTROL_CHARACTERS.sub(
            "", self._kept.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
        )
        return "\n".join(deque(text.strip().splitlines(), _TAIL_LINES))
