"""`gatehouse sandbox`: run the commands of the shell for the gateway. systemd starts it, and hands it the socket."""

import asyncio
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from gateway.cli.exits import EXIT_CONFIG, EXIT_OK, complain
from gateway.cli.usage import parser
from gateway.sandbox.host import host

__all__ = ["main"]

_NETWORK = "GATEHOUSE_SANDBOX_NETWORK"
"""Set by the drop-in that gives the service its network."""
_FIRST = 3
"""The first descriptor that systemd hands over."""


def main(arguments: Sequence[str], *, config: Path | None) -> int:
    parser(
        "sandbox", "Run commands for the gateway, in sandboxes. systemd starts this when it is needed.", config
    ).parse_args(arguments)
    if not _was_handed_a_socket(os.environ, os.getpid()):
        return complain(
            "This is started by systemd, with its socket: `gatehouse service install --system`.", EXIT_CONFIG
        )
    os.umask(0o077)
    asyncio.run(_host())
    return EXIT_OK


def _was_handed_a_socket(environ: Mapping[str, str], process: int) -> bool:
    return environ.get("LISTEN_PID") == str(process) and environ.get("LISTEN_FDS") == "1"


async def _host() -> None:
    """Serve until nobody asks any more, or until SIGTERM: what runs is ended then."""
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(_serve(), name="sandbox")
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, serving.cancel)


async def _serve() -> None:
    with socket.socket(fileno=_FIRST) as listener:
        listener.set_inheritable(False)
        await host(listener, has_network=_NETWORK in os.environ)
