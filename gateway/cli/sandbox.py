"""`gatehouse sandbox`: runs shell commands for the gateway. systemd starts it and passes it the socket."""

import asyncio
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

from gateway.cli.common import EXIT_CONFIG, EXIT_OK, command_parser, fail
from gateway.sandbox.remote import serve_commands

_NETWORK = "GATEHOUSE_SANDBOX_NETWORK"
"""Set by the drop-in that gives the service network access."""
_FIRST_DESCRIPTOR = 3
"""systemd passes sockets from this descriptor on (SD_LISTEN_FDS_START)."""


def main(arguments: Sequence[str], *, config: Path | None) -> int:
    description = "Run shell commands for the gateway, in sandboxes. systemd starts this command when it is needed."
    command_parser("sandbox", description, config).parse_args(arguments)
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or os.environ.get("LISTEN_FDS") != "1":
        return fail(
            "systemd starts this command and passes it a socket. Run `gatehouse service install --system`.",
            EXIT_CONFIG,
        )
    os.umask(0o077)
    asyncio.run(_host())
    return EXIT_OK


async def _host() -> None:
    """Serve until no more requests come. SIGTERM ends the service and all commands that run."""

    async def serve() -> None:
        with socket.socket(fileno=_FIRST_DESCRIPTOR) as listener:
            listener.set_inheritable(False)  # Commands in the sandbox must not get the socket.
            await serve_commands(listener, has_network=_NETWORK in os.environ)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(serve(), name="sandbox")
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
