"""The sandbox service, and the gateway's client for it.

The service may make sandboxes but has no network; for the gateway it is the other way round. The kernel says who
connects to the socket: only the gateway's own user and root are served.
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
"""Bytes. The longest command and the longest output are much shorter, even with every character escaped."""
IDLE_TIMEOUT = 300.0
"""Seconds without work after which the service exits. systemd keeps the socket and starts it again when needed."""

_CONNECT_TIMEOUT = 10.0
_MAX_CONCURRENT = 64
_CREDENTIALS = struct.Struct("3i")

_NO_NETWORK = (
    "The shell is not available: `tools.shell.network` is set, but the sandbox service has no network. "
    "The operator can allow it with `gatehouse service install --system --shell-network`."
)


async def run_by_service(command: SandboxCommand, service: Path) -> ProcessResult:
    """Have the service on the socket `service` run `command`. A cancellation ends it there first."""
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT):
            reader, writer = await asyncio.open_unix_connection(service, limit=MAX_LINE)
    except OSError as error:
        raise SandboxUnavailable(
            f"The shell is not available: the sandbox service cannot be reached on {service} "
            f"({error.strerror or 'no answer in time'}). The operator can check `systemctl status gatehouse-sandbox`."
        ) from error

    async def hang_up() -> None:
        """Tell the service that the result is not needed any more, and wait until its processes have ended."""
        with suppress(OSError, TimeoutError):
            writer.write_eof()
            async with asyncio.timeout(_CONNECT_TIMEOUT):
                while await reader.read(MAX_LINE):
                    pass
        writer.close()

    try:
        paths = {
            "workspace": str(command.workspace),
            "attachments": str(command.attachments) if command.attachments else None,
        }
        writer.write(_line({**asdict(command), **paths}))
        await writer.drain()
        answer = json.loads(await reader.readline())
        if "refused" in answer:
            raise SandboxUnavailable(answer["refused"])
        return ProcessResult(**answer["ended"])
    except (OSError, ValueError):
        # Part of the command may have run, so it must not be run again without the service.
        return ProcessResult(output="", exit_code=1, stopped_for="the service that runs commands has ended")
    finally:
        await finish_before_cancel(hang_up(), grace=_CONNECT_TIMEOUT)


async def serve_commands(listener: socket.socket, *, has_network: bool = False, idle: float = IDLE_TIMEOUT) -> None:
    """Serve connections until none has come for `idle` seconds and no command runs."""
    listener.settimeout(0)
    running: set[asyncio.Task[None]] = set()
    async with asyncio.TaskGroup() as group:
        while True:
            try:
                async with asyncio.timeout(idle):
                    connection, _ = await asyncio.get_running_loop().sock_accept(listener)
            except TimeoutError:
                if running:
                    continue
                return
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            _, user, _ = _CREDENTIALS.unpack(credentials)
            if user not in {0, os.geteuid()}:
                connection.close()
                continue
            task = group.create_task(_serve(connection, has_network=has_network), name="sandbox:serve")
            running.add(task)
            task.add_done_callback(running.discard)
            while len(running) >= _MAX_CONCURRENT:  # Further connections wait in the socket's queue.
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)


async def _serve(connection: socket.socket, *, has_network: bool) -> None:
    """Run one command. The client ends it by hanging up."""
    reader, writer = await asyncio.open_unix_connection(sock=connection, limit=MAX_LINE)
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT):
            command = _decode_command(await reader.readline())
        if command.network and not has_network:
            writer.write(_line({"refused": _NO_NETWORK}))
        else:
            writer.write(await _run_until_hang_up(command, reader))
        await writer.drain()
    except (OSError, ValueError, TimeoutError):  # The client is gone, or does not speak our protocol.
        pass
    finally:
        writer.close()


async def _run_until_hang_up(command: SandboxCommand, reader: asyncio.StreamReader) -> bytes:
    """Return the answer, or nothing if the client has hung up. All processes have ended by then."""

    async def run() -> bytes:
        try:
            return _line({"ended": asdict(await run_sandboxed(command))})
        except SandboxUnavailable as missing:
            return _line({"refused": str(missing)})

    async def cancel_on_hang_up() -> None:
        with suppress(OSError):
            await reader.read(1)
        running.cancel()

    async with asyncio.TaskGroup() as group:
        running = group.create_task(run(), name="sandbox:command")
        waiting = group.create_task(cancel_on_hang_up(), name="sandbox:client")
        await asyncio.wait({running})
        waiting.cancel()
    return b"" if running.cancelled() else running.result()


def _decode_command(line: bytes) -> SandboxCommand:
    """Read a command. Raises `ValueError` if the line has none."""
    given = json.loads(line)
    try:
        return SandboxCommand(
            command=str(given["command"]),
            workspace=Path(given["workspace"]),
            limits=SandboxLimits(**given["limits"]),
            bounds=RunLimits(**given["bounds"]),
            network=bool(given["network"]),
            # A daemon of an older version sends none.
            attachments=Path(given["attachments"]) if given.get("attachments") else None,
        )
    except (TypeError, KeyError) as mistake:
        raise ValueError("the line is not a command") from mistake


def _line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"
