"""The service that runs commands for the gateway: it may build sandboxes, and has no network; the gateway the reverse.

Who asks over the socket is told by the kernel: the gateway's own user and root are served, anybody else is not.
"""

import asyncio
import json
import os
import socket
import struct
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from gateway.aio import finish_before_cancel
from gateway.sandbox.bubblewrap import SandboxCommand, SandboxLimits, SandboxUnavailable, run_sandboxed
from gateway.sandbox.processes import ProcessResult, RunLimits

MAX_LINE = 4 * 1024 * 1024
"""Bytes. The longest command and the longest output are much shorter, also with every character escaped."""


def encode_command(script: SandboxCommand) -> bytes:
    return _line({**asdict(script), "workspace": str(script.workspace)})


def decode_command(line: bytes) -> SandboxCommand:
    """Raise `ValueError` for what is no script."""
    told = json.loads(line)
    try:
        return SandboxCommand(
            command=str(told["command"]),
            workspace=Path(told["workspace"]),
            limits=SandboxLimits(**told["limits"]),
            bounds=RunLimits(**told["bounds"]),
            network=bool(told["network"]),
        )
    except (TypeError, KeyError) as misfit:
        raise ValueError("that is no script") from misfit


def encode_result(ended: ProcessResult) -> bytes:
    return _line({"ended": asdict(ended)})


def encode_refusal(reason: str) -> bytes:
    return _line({"refused": reason})


def decode_result(line: bytes) -> ProcessResult:
    """Raise `NoSandbox` where the far side had none, and `ValueError` for what is no answer."""
    told = json.loads(line)
    if "refused" in told:
        raise SandboxUnavailable(told["refused"])
    return ProcessResult(**told["ended"])


def _line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


_PATIENCE = 10.0


async def run_by_service(script: SandboxCommand, service: Path) -> ProcessResult:
    """Have `script` run by whoever listens on the socket `service`; cancelled, it is ended there first."""
    try:
        async with asyncio.timeout(_PATIENCE):
            reader, writer = await asyncio.open_unix_connection(service, limit=MAX_LINE)
    except OSError as trouble:
        raise SandboxUnavailable(_silent(service, trouble)) from trouble
    try:
        writer.write(encode_command(script))
        await writer.drain()
        return decode_result(await reader.readline())
    except (OSError, ValueError):  # Who asks must not run it once more elsewhere: a part of it was done.
        return ProcessResult(output="", exit_code=1, stopped_for="the service that runs commands has ended")
    finally:
        await finish_before_cancel(_hang_up(reader, writer), grace=_PATIENCE)


async def _hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Tell that nothing is waited for any more, and wait until all has ended there."""
    with suppress(OSError, TimeoutError):
        writer.write_eof()
        async with asyncio.timeout(_PATIENCE):
            while await reader.read(MAX_LINE):
                pass
    writer.close()


def _silent(service: Path, trouble: OSError) -> str:
    reason = trouble.strerror or "no answer in time"
    return (
        f"The shell is not available: the service that runs commands cannot be reached on {service} ({reason}). "
        "The operator can look at `systemctl status gatehouse-sandbox`."
    )


IDLE_TIMEOUT = 300.0
"""Seconds without work after which it ends. systemd keeps the socket, and starts it again for the next command."""
_SIDE_BY_SIDE = 64
_CREDENTIALS = struct.Struct("3i")

_NO_NETWORK = (
    "The shell is not available: `tools.shell.network` is set, and the service that runs commands has no network. "
    "The operator can allow it by `gatehouse service install --system --shell-network`."
)


async def serve_commands(listener: socket.socket, *, has_network: bool = False, idle: float = IDLE_TIMEOUT) -> None:
    """Serve whoever connects, until nobody has for `idle` seconds and nothing runs."""
    listener.settimeout(0)
    running: set[asyncio.Task[None]] = set()
    async with asyncio.TaskGroup() as group:
        while (connection := await _next(listener, idle)) or running:
            if connection is None:
                continue
            if not _is_trusted(connection):
                connection.close()
                continue
            task = group.create_task(_serve(connection, has_network=has_network), name="sandbox:serve")
            running.add(task)
            task.add_done_callback(running.discard)
            while len(running) >= _SIDE_BY_SIDE:  # Who comes now waits, in the socket's own queue.
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)


async def _next(listener: socket.socket, idle: float) -> socket.socket | None:
    try:
        async with asyncio.timeout(idle):
            connection, _ = await asyncio.get_running_loop().sock_accept(listener)
    except TimeoutError:
        return None
    return connection


def _is_trusted(connection: socket.socket) -> bool:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(raw)
    return user in {0, os.geteuid()}


async def _serve(connection: socket.socket, *, has_network: bool) -> None:
    """Run one script. Whoever asked ends it by hanging up."""
    reader, writer = await asyncio.open_unix_connection(sock=connection, limit=MAX_LINE)
    try:
        async with asyncio.timeout(_PATIENCE):
            script = decode_command(await reader.readline())
        refused = encode_refusal(_NO_NETWORK) if script.network and not has_network else b""
        writer.write(refused or await _ended(script, reader))
        await writer.drain()
    except (OSError, ValueError, TimeoutError):  # It has gone, or talks of something else.
        pass
    finally:
        writer.close()


async def _ended(script: SandboxCommand, reader: asyncio.StreamReader) -> bytes:
    """Return the answer; nothing when nobody waits for it any more. What was started has ended by then."""
    async with asyncio.TaskGroup() as group:
        running = group.create_task(_outcome(script), name="sandbox:script")
        waiting = group.create_task(_cancelled_by_hanging_up(running, reader), name="sandbox:asker")
        await asyncio.wait({running})
        waiting.cancel()
    return b"" if running.cancelled() else running.result()


async def _cancelled_by_hanging_up(running: asyncio.Task[bytes], reader: asyncio.StreamReader) -> None:
    with suppress(OSError):
        await reader.read(1)
    running.cancel()


async def _outcome(script: SandboxCommand) -> bytes:
    try:
        return encode_result(await run_sandboxed(script))
    except SandboxUnavailable as missing:
        return encode_refusal(str(missing))
