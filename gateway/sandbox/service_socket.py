"""The socket between the gateway and the sandbox service: lines of JSON, the first with open files of the sender."""

import asyncio
import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from gateway.sandbox.bubblewrap import SandboxUnavailable

MAX_LINE = 4 * 1024 * 1024
"""Bytes. The longest command and the longest output are much shorter, even with every character escaped."""
CONNECT_TIMEOUT = 10.0

_CHUNK_BYTES = 65_536
_MAX_DESCRIPTORS = 8

NO_NETWORK = (
    "The sandbox service has no network. The operator can allow it with "
    "`gatehouse service install --system --shell-network`."
)


def encode_line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


async def send_request(
    service: Path, request: object, descriptors: Sequence[int] = ()
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the socket `service` and send the request. Raises `SandboxUnavailable` if there is no service."""
    loop = asyncio.get_running_loop()
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(0)
        async with asyncio.timeout(CONNECT_TIMEOUT):
            await loop.sock_connect(connection, str(service))
        line = encode_line(request)
        # They travel with the first bytes. A new connection always has room for some.
        sent = socket.send_fds(connection, [line], descriptors) if descriptors else 0
        await loop.sock_sendall(connection, line[sent:])
        return await asyncio.open_unix_connection(sock=connection, limit=MAX_LINE)
    except OSError as error:
        connection.close()
        raise SandboxUnavailable(
            f"The sandbox service cannot be reached on {service} ({error.strerror or 'no answer in time'}). "
            "The operator can check `systemctl status gatehouse-sandbox`."
        ) from error
    except BaseException:
        connection.close()
        raise


async def receive_request(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Return the first line and the open files that came with it, for the caller to close.

    Closes the connection if it raises: `ValueError`, or `OSError`.
    """
    line, descriptors = bytearray(), list[int]()
    try:
        while not line.endswith(b"\n"):
            await _wait_until_readable(connection)
            flags = socket.MSG_CMSG_CLOEXEC  # No program gets them by accident.
            data, received, _, _ = socket.recv_fds(connection, _CHUNK_BYTES, _MAX_DESCRIPTORS, flags)
            descriptors += received
            line += data
            if not data or len(line) > MAX_LINE:
                raise ValueError("the line does not end")  # noqa: TRY301 - the same cleanup.
    except BaseException:
        close_all(descriptors)
        connection.close()
        raise
    return bytes(line), descriptors


def close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


async def _wait_until_readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable = loop.create_future()
    loop.add_reader(connection, lambda: None if readable.done() else readable.set_result(None))
    try:
        await readable
    finally:
        loop.remove_reader(connection)
