"""Messages to the service manager (sd_notify)."""

import asyncio
import socket
import time
from collections.abc import Callable, Mapping

import structlog

log = structlog.get_logger()

SEND_TIMEOUT = 1.0
STATUS_INTERVAL = 10.0
CLOSE_TIMEOUT = 30.0
"""Seconds that shutdown takes after the last turn: final messages, the flush, closing the channels."""


def notify(address: str | None, state: str) -> None:
    """Send `state`, such as `READY=1`, to the service manager at `address`. Does nothing without an address.

    A failure is logged and ignored: the gateway can work without its service manager.
    """
    if not address:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as peer:
            peer.settimeout(SEND_TIMEOUT)
            # A leading @ stands for Linux's abstract namespace.
            peer.connect(f"\0{address[1:]}" if address.startswith("@") else address)
            peer.sendall(state.encode())
    except (OSError, ValueError) as error:  # ValueError: the address is malformed.
        log.warning("sd_notify_failed", state=state, reason=str(error))


def reloading() -> str:
    """Return the message for a reload, or for a restart in place. Without it, systemd would take that for an exit."""
    return f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}"


def stopping(shutdown_timeout: float) -> str:
    """Return the message that we are stopping, and how long that may take regardless of the unit's timeout."""
    return f"STOPPING=1\nEXTEND_TIMEOUT_USEC={int((shutdown_timeout + CLOSE_TIMEOUT) * 1_000_000)}"


def watchdog_interval(environ: Mapping[str, str], pid: int) -> float | None:
    """Return the seconds between watchdog messages, half of systemd's timeout. None if the watchdog is off for `pid`.

    $WATCHDOG_PID names the process that the timeout is meant for. Programs that it starts inherit the variables.
    """
    microseconds = environ.get("WATCHDOG_USEC", "")
    if not microseconds.isdecimal() or not int(microseconds) or environ.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    return int(microseconds) / 2_000_000


async def report_status(send: Callable[[str], None], status: Callable[[], str], watchdog: float | None) -> None:
    """Send the status whenever it changes, and a watchdog message every `watchdog` seconds, until cancelled.

    The watchdog message comes from a task on the event loop, so systemd also notices when the loop is stuck.
    """
    last = ""
    while True:
        line = " ".join(status().split())
        parts = ["WATCHDOG=1"] if watchdog is not None else []
        if line != last:
            parts.append(f"STATUS={line}")
        if parts:
            send("\n".join(parts))
        last = line
        await asyncio.sleep(min(watchdog or STATUS_INTERVAL, STATUS_INTERVAL))
