"""Opening the two sockets that the server listens on."""

import asyncio
import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from gateway.errors import CannotStart

__all__ = ["CONTROL_NAME", "listen_on_port", "listen_on_socket", "reachable"]

CONTROL_NAME = "control.sock"
BACKLOG = 128
LONGEST_PATH = 100
"""A Unix socket's path has to fit into 104 to 108 bytes, depending on the system."""


async def listen_on_port(host: str, port: int) -> socket.socket:
    """Listen on one address. Port 0 means any that is free."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        raise CannotStart(
            f"http.host is {host!r}, which is no address of this machine; "
            "try `gatehouse config set http.host 127.0.0.1`."
        ) from error
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        # Lets a restarted daemon have its port while old connections fade.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise CannotStart(_why_not(error, host, port)) from error
    return listener


def _why_not(error: OSError, host: str, port: int) -> str:
    other_port = "choose another one with `gatehouse config set http.port N`."
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} on {host} is in use, perhaps by another Gatehouse; stop that, or {other_port}"
    if error.errno in {errno.EACCES, errno.EPERM}:
        return f"Port {port} on {host} may not be used by this user; {other_port}"
    return (
        f"Gatehouse cannot listen on {host}, port {port} ({error.strerror}); "
        "try `gatehouse config set http.host 127.0.0.1`."
    )


def listen_on_socket(path: Path) -> socket.socket:
    """Listen on a Unix socket, private from birth. The caller holds the directory's lock, so an old one is stale."""
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # On Linux the file is born with the mode of the socket, less the umask.
        with contextlib.suppress(OSError):
            os.fchmod(listener.fileno(), 0o600)
        with reachable(path) as address:
            listener.bind(address)
        # Elsewhere the directory, which is 0700, covers the moment until here; nobody can connect before `listen`.
        path.chmod(0o600)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise CannotStart(f"The control socket {path} cannot be made ({error.strerror}).") from error
    return listener


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise CannotStart(f"{path} is in the way of the control socket; move it elsewhere.")
    path.unlink()


@contextlib.contextmanager
def reachable(path: Path) -> Iterator[str]:
    """Give an address for the Unix socket `path` that is short enough, good while the context is open."""
    if len(os.fsencode(path)) <= LONGEST_PATH:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
