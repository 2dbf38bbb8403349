"""The service manager: telling it how we are doing, and whether it keeps what we print."""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Mapping

import structlog

__all__ = ["goes_to_journal", "keep_informed", "notify", "reloading", "stopping", "watchdog_pause"]

log = structlog.get_logger()

PATIENCE = 1.0
"""Seconds in which a manager that is very busy may take what it is told."""
STATUS_PAUSE = 10.0
CLOSING = 30.0
"""Seconds that the end takes beyond the turns: last words, the flush, the channels."""


def notify(address: str | None, state: str) -> None:
    """Send `state`, like `READY=1`, to the service manager at `address`; do nothing where there is none.

    One that cannot be reached will act as if we had said nothing; that is no reason to stop working.
    """
    if not address:
        return
    try:
        _send(f"\0{address[1:]}" if address.startswith("@") else address, state)  # @: Linux's abstract namespace.
    except (OSError, ValueError) as trouble:  # ValueError: what is no address at all.
        log.warning("service_manager_not_told", state=state, reason=str(trouble))


def _send(address: str, state: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as peer:
        peer.settimeout(PATIENCE)
        peer.connect(address)
        peer.sendall(state.encode())


def goes_to_journal(descriptor: int, journal_stream: str | None) -> bool:
    """Tell whether `descriptor` is the one that $JOURNAL_STREAM speaks of, by systemd's convention `device:inode`.

    That the variable is set says little: programs that were started by a service inherit it, shells of a desktop too.
    """
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False
    return journal_stream == f"{found.st_dev}:{found.st_ino}"


def reloading() -> str:
    """Say that `READY=1` will come again: else systemd would take a restart in place for our end."""
    return f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}"


def stopping(shutdown_timeout: float) -> str:
    """Say that we end, and how long that may take, whatever the unit says."""
    return f"STOPPING=1\nEXTEND_TIMEOUT_USEC={int((shutdown_timeout + CLOSING) * 1_000_000)}"


def watchdog_pause(environ: Mapping[str, str], pid: int) -> float | None:
    """Return the seconds between two signs of life: half of what the manager waits. None where it waits for none.

    $WATCHDOG_PID says for whom that is; programs that we start inherit it.
    """
    microseconds = environ.get("WATCHDOG_USEC", "")
    if not microseconds.isdecimal() or not int(microseconds) or environ.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    return int(microseconds) / 2_000_000


async def keep_informed(tell: Callable[[str], None], status: Callable[[], str], pause: float | None) -> None:
    """Tell how we are, until cancelled. As a task of the event loop, it also tells by its silence that this is stuck.

    With `pause`, a sign of life is given that often.
    """
    last = ""
    while True:
        line = " ".join(status().split())
        news = [f"STATUS={line}"] if line != last else []
        signs = ["WATCHDOG=1"] if pause is not None else []
        if news or signs:
            tell("\n".join([*signs, *news]))
        last = line
        await asyncio.sleep(min(pause or STATUS_PAUSE, STATUS_PAUSE))
