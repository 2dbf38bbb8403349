"""The transport to an MCP server that is a program: JSON lines through its stdin and stdout, with a limit on each line.

It replaces the SDK's transport, which reads lines of any length, and which ends only the process group of the server.
"""

import asyncio
import errno
import os
import re
import shutil
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import anyio
import msgspec
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, JSONRPCRequest, JSONRPCResponse, jsonrpc_message_adapter

from config import McpSettings
from gateway.aio import finish_before_cancel, open_output_pipe
from gateway.mcp.limits import TOO_LARGE
from gateway.text.lines import LineSplitter, LongLine

_PROCESS_TREE = Path(__file__).with_name("process_tree.py")
_CHUNK_BYTES = 65_536
_FLUSH_TIMEOUT = 0.5
_EXIT_TIMEOUT = 2.0
"""Seconds in which a server may exit by itself after its stdin was closed."""
_KILL_TIMEOUT = 10.0
"""Seconds for `process_tree`, which kills earlier than that."""

# Servers write the id either before the result or after it. A nested object or a string cannot look like this: the
# first pattern begins with the line, and the second one ends with the brace that closes the whole message.
_VERSION = rb'"jsonrpc"\s*:\s*"2\.0"'
_ID = rb'"id"\s*:\s*(\d+|"[^"\\]*")\s*'
_FIRST_ID = re.compile(rb"\s*\{\s*(?:" + _VERSION + rb"\s*,\s*)?" + _ID + rb",")
_LAST_ID = re.compile(_ID + rb"(?:,\s*" + _VERSION + rb"\s*)?\}\s*$")
_NOT_A_RESPONSE = re.compile(rb"\s*\{\s*(?:" + _VERSION + rb'\s*,\s*)?"method"')


@asynccontextmanager
async def run_program(settings: McpSettings, errors: TextIO) -> AsyncGenerator[Any]:  # Any: not exported by the SDK.
    """Start the program of `settings` and yield the streams for the SDK. Afterwards, all its processes have ended."""
    environment = get_default_environment() | {name: secret.reveal() for name, secret in settings.env.items()}
    command, *arguments = settings.command
    program = await asyncio.to_thread(shutil.which, command, path=environment.get("PATH"))
    if program is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command)
    output, transport, sink = await open_output_pipe(_CHUNK_BYTES)
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(_PROCESS_TREE), str(os.getpid()), program, *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=sink,
            stderr=errors,
            env=environment,
            start_new_session=True,
        )
    except BaseException:
        transport.close()
        raise
    finally:
        os.close(sink)
    streams = _ProgramStreams(process, output, settings.max_result_bytes)
    try:
        async with asyncio.TaskGroup() as tasks:
            reader = tasks.create_task(streams.read_messages(), name="mcp:read")
            writer = tasks.create_task(streams.write_messages(), name="mcp:write")
            try:
                yield streams.received, streams.to_send
            finally:
                await finish_before_cancel(streams.end(writer), grace=_EXIT_TIMEOUT + _KILL_TIMEOUT)
                reader.cancel()
                writer.cancel()
    finally:
        transport.close()


class _ProgramStreams:
    """Carries messages between the pipes of a program and the two in-memory streams of the SDK."""

    def __init__(self, process: asyncio.subprocess.Process, output: asyncio.StreamReader, limit: int) -> None:
        self._process = process
        self._output = output
        self._limit = limit
        self._unanswered: set[str | int] = set()
        # Without a buffer: a program that sends more than we handle is not read on.
        self._receive, self.received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        self.to_send, self._sent = anyio.create_memory_object_stream[SessionMessage](0)

    async def read_messages(self) -> None:
        lines = LineSplitter(self._limit)
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):  # The session has ended.
            async with self._receive:
                while chunk := await self._output.read(_CHUNK_BYTES):
                    for line in lines.feed(chunk):
                        for message in self._replies_to(line) if isinstance(line, LongLine) else [_parse(line)]:
                            if isinstance(message, SessionMessage) and isinstance(
                                message.message, JSONRPCResponse | JSONRPCError
                            ):
                                self._unanswered.discard(message.message.id or 0)
                            await self._receive.send(message)
        # A program that cannot write its output cannot exit.
        while await self._output.read(_CHUNK_BYTES):
            pass

    def _replies_to(self, line: LongLine) -> list[SessionMessage]:
        """Return the error for the request that the line answers. If it does not show which one, all requests fail."""
        found = _FIRST_ID.match(line.head) or _LAST_ID.search(line.tail)
        answered = {msgspec.json.decode(found[1])} & self._unanswered if found else set(self._unanswered)
        if not found and _NOT_A_RESPONSE.match(line.head):
            answered = set()
        error = ErrorData(code=INTERNAL_ERROR, message=TOO_LARGE)
        return [SessionMessage(JSONRPCError(jsonrpc="2.0", id=each, error=error)) for each in answered]

    async def write_messages(self) -> None:
        stdin = self._process.stdin
        assert stdin is not None, "it was requested"  # noqa: S101 - for mypy and the reader.
        try:
            async for sent in self._sent:
                if isinstance(sent.message, JSONRPCRequest):
                    self._unanswered.add(sent.message.id)
                stdin.write(sent.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await stdin.drain()
        except OSError:
            # The program reads no more, so no request will be answered.
            self._receive.close()

    async def end(self, writer: asyncio.Task[None]) -> None:
        """Let the program exit by itself, then have it killed with all its processes."""
        self.received.close()
        self.to_send.close()
        await asyncio.wait({writer}, timeout=_FLUSH_TIMEOUT)
        assert self._process.stdin is not None, "it was requested"  # noqa: S101 - as above.
        self._process.stdin.close()
        for seconds, stop in (
            (_EXIT_TIMEOUT, self._process.terminate),
            (_KILL_TIMEOUT, self._process.kill),
            (_KILL_TIMEOUT, None),
        ):
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._process.wait()
                    break
            if stop is not None:
                with suppress(ProcessLookupError):
                    stop()
        self._receive.close()
        self._sent.close()


def _parse(line: bytes) -> SessionMessage | Exception:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as mistake:
        return mistake  # The session ignores it.
