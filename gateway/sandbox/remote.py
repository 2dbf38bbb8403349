"""The sandbox service, and the gateway's client for it.

The service may make sandboxes but has no network; for the gateway it is the other way round. The kernel says who
connects to the socket: only the gateway's own user and root are served.
"""

import asyncio
import json
import os
import socket
import struct
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gateway.aio import finish_before_cancel
from gateway.sandbox.bubblewrap import SandboxCommand, SandboxLimits, SandboxUnavailable, run_sandboxed
from gateway.sandbox.processes import ProcessResult, RunLimits
from gateway.sandbox.remote_program import serve_program
from gateway.sandbox.service_socket import (
    CONNECT_TIMEOUT,
    MAX_LINE,
    NO_NETWORK,
    close_all,
    encode_line,
    receive_request,
    send_request,
)

IDLE_TIMEOUT = 300.0
"""Seconds without work after which the service exits. systemd keeps the socket and starts it again when needed."""

_MAX_CONCURRENT = 64
"""Commands, not programs: the gateway limits those, and they run for hours."""
_CREDENTIALS = struct.Struct("3i")


async def run_by_service(command: SandboxCommand, service: Path) -> ProcessResult:
    """Have the service on the socket `service` run `command`. A cancellation ends it there first."""
    paths = {
        "workspace": str(command.workspace),
        "attachments": str(command.attachments) if command.attachments else None,
        "skills": {name: str(folder) for name, folder in command.skills.items()},
    }
    reader, writer = await send_request(service, {**asdict(command), **paths})

    async def hang_up() -> None:
        """Tell the service that the result is not needed any more, and wait until its processes have ended."""
        with suppress(OSError, TimeoutError):
            writer.write_eof()
            async with asyncio.timeout(CONNECT_TIMEOUT):
                while await reader.read(MAX_LINE):
                    pass
        writer.close()

    try:
        answer = json.loads(await reader.readline())
        if "refused" in answer:
            raise SandboxUnavailable(answer["refused"])
        return ProcessResult(**answer["ended"])
    except (OSError, ValueError):
        # Part of the command may have run, so it must not be run again without the service.
        return ProcessResult(output="", exit_code=1, stopped_for="the service that runs commands has ended")
    finally:
        await finish_before_cancel(hang_up(), grace=CONNECT_TIMEOUT)


async def serve_commands(listener: socket.socket, *, has_network: bool = False, idle: float = IDLE_TIMEOUT) -> None:
    """Serve connections until none has come for `idle` seconds and no command runs."""
    listener.settimeout(0)
    running: set[asyncio.Task[None]] = set()
    slots = asyncio.Semaphore(_MAX_CONCURRENT)
    async with asyncio.TaskGroup() as group:
        while True:
            await slots.acquire()  # Further connections wait in the socket's queue.
            try:
                async with asyncio.timeout(idle):
                    connection, _ = await asyncio.get_running_loop().sock_accept(listener)
            except TimeoutError:
                slots.release()
                if running:
                    continue
                return
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            _, user, _ = _CREDENTIALS.unpack(credentials)
            if user not in {0, os.geteuid()}:
                slots.release()
                connection.close()
                continue
            task = group.create_task(_serve(connection, slots, has_network=has_network), name="sandbox:serve")
            running.add(task)
            task.add_done_callback(running.discard)


async def _serve(connection: socket.socket, slots: asyncio.Semaphore, *, has_network: bool) -> None:
    """Run one command or program, and release a slot. The client ends it by hanging up."""
    slot = ExitStack()
    slot.callback(slots.release)
    with slot, suppress(OSError, ValueError):  # The client is gone, or does not speak our protocol.
        async with asyncio.timeout(CONNECT_TIMEOUT):
            line, descriptors = await receive_request(connection)
        reader, writer = await asyncio.open_unix_connection(sock=connection, limit=MAX_LINE)
        try:
            request = json.loads(line)
            if isinstance(request, dict) and "program" in request:
                slot.close()  # Commands do not wait for programs.
                await serve_program(request, descriptors, reader, writer, has_network=has_network)
                return
            command = _decode_command(request)
            if command.network and not has_network:
                writer.write(encode_line({"refused": NO_NETWORK}))
            else:
                writer.write(await _run_until_hang_up(command, reader))
            await writer.drain()
        finally:
            close_all(descriptors)
            writer.close()


async def _run_until_hang_up(command: SandboxCommand, reader: asyncio.StreamReader) -> bytes:
    """Return the answer, or nothing if the client has hung up. All processes have ended by then."""

    async def run() -> bytes:
        try:
            return encode_line({"ended": asdict(await run_sandboxed(command))})
        except SandboxUnavailable as missing:
            return encode_line({"refused": str(missing)})

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


def _decode_command(given: dict[str, Any]) -> SandboxCommand:  # Any: JSON of the gateway.
    """Read a command. Raises `ValueError` if the request has none."""
    try:
        return SandboxCommand(
            command=str(given["command"]),
            workspace=Path(given["workspace"]),
            limits=SandboxLimits(**given["limits"]),
            bounds=RunLimits(**given["bounds"]),
            network=bool(given["network"]),
            # A daemon of an older version sends none.
            attachments=Path(given["attachments"]) if given.get("attachments") else None,
            skills={str(name): Path(folder) for name, folder in given.get("skills", {}).items()},
        )
    except (AttributeError, TypeError, KeyError) as mistake:
        raise ValueError("the line is not a command") from mistake
