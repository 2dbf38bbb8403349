"""The service manager: telling it how we are doing, and whether it keeps what we print."""

import os
import socket

import structlog

__all__ = ["goes_to_journal", "notify"]

log = structlog.get_logger()


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
