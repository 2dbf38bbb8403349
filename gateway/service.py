"""Tells the service manager how we are doing: one datagram to the socket that systemd names."""

import socket

__all__ = ["notify"]


def notify(address: str | None, state: str) -> None:
    """Send `state`, like `READY=1`, to the service manager at `address`; do nothing where there is none."""
    if not address:
        return
    if address.startswith("@"):
        address = f"\0{address[1:]}"  # A name in Linux's abstract namespace.
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as peer:
        peer.connect(address)
        peer.sendall(state.encode())
