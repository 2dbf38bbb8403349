"""The HTTP server: one aiohttp app, on a TCP port for browsers and on a Unix socket for the command line."""

import asyncio
import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from aiohttp import web

from config import HttpSettings
from gateway.contract import Route
from gateway.errors import CannotStart
from gateway.http.app import HttpApp
from gateway.http.auth import Auth
from gateway.http.connections import Doorkeeper, Visitors
from gateway.http.guard import AllowedHosts, Guard, control_users
from gateway.http.responses import HttpLimits

CONTROL_NAME = "control.sock"
BACKLOG = 128
MAX_SOCKET_PATH = 100
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
        with short_socket_path(path) as address:
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
def short_socket_path(path: Path) -> Iterator[str]:
    """Give an address for the Unix socket `path` that is short enough, good while the context is open."""
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


class HttpServer:
    """Serves `routes` from entering to leaving the context.

    `listen=False` serves the control socket only. The caller holds the lock of the data directory.
    """

    def __init__(
        self,
        settings: HttpSettings,
        *,
        auth: Auth,
        routes: Sequence[Route],
        control_path: Path,
        listen: bool = True,
        limits: HttpLimits | None = None,
    ) -> None:
        self.routes = tuple(routes)
        self.url = ""
        """Where a browser on this machine finds us; empty while there is no port to find us on."""
        self.port = 0
        self._settings = settings
        self._auth = auth
        self._control_path = control_path
        self._listen = listen
        self._limits = limits or HttpLimits()
        self._closing = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as undo:
            await self._start(undo)
            self._closing = undo.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._closing.aclose()

    async def _start(self, undo: contextlib.AsyncExitStack) -> None:
        listeners = []
        if self._listen:
            listener = undo.enter_context(await listen_on_port(self._settings.host, self._settings.port))
            self.port = int(listener.getsockname()[1])
            self.url = f"http://{_browsable(self._settings.host)}:{self.port}"
            listeners.append(listener)
        control = await asyncio.to_thread(listen_on_socket, self._control_path)
        undo.callback(self._control_path.unlink, missing_ok=True)
        listeners.append(undo.enter_context(control))
        runner = await self._open_door(undo)
        for listener in listeners:
            await web.SockSite(runner, listener).start()
        undo.push_async_callback(_stop_accepting, listeners)

    async def _open_door(self, undo: contextlib.AsyncExitStack) -> web.ServerRunner:
        """Put the doorkeeper before the app. Closing goes in reverse: no newcomers, WebSockets, connections, app."""
        visitors = Visitors(self._limits)
        entrance = HttpApp(self.routes, gate=await self._gate(visitors), limits=self._limits)
        app = web.AppRunner(entrance.app)
        undo.push_async_callback(app.cleanup)
        await app.setup()
        assert app.server is not None  # noqa: S101 - `setup` has made it.
        door = Doorkeeper(
            app.server.request_handler, app.server.request_factory, visitors=visitors, limits=self._limits
        )
        runner = web.ServerRunner(door, shutdown_timeout=self._limits.closing)
        undo.push_async_callback(visitors.see_off)
        undo.push_async_callback(runner.cleanup)
        undo.push_async_callback(entrance.close_websockets)
        undo.callback(visitors.close)
        await runner.setup()
        return runner

    async def _gate(self, visitors: Visitors) -> Guard:
        settings = self._settings
        return Guard(
            auth=self._auth,
            hosts=AllowedHosts.of(_in_url(settings.host), self.port, settings.allowed_hosts),
            users=await asyncio.to_thread(control_users),
            visitors=visitors,
            limits=self._limits,
            max_body_bytes=settings.max_body_bytes,
        )


async def _stop_accepting(listeners: Sequence[socket.socket]) -> None:
    """Let what has been accepted become a connection: asyncio loses it if the server is closed in the same round."""
    for listener in listeners:
        asyncio.get_running_loop().remove_reader(listener)
    for _ in range(3):  # A task that accepts, its call to `connection_made`, and one to spare.
        await asyncio.sleep(0)


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _browsable(host: str) -> str:
    """Name the address that a browser on this machine can use, in the form that it has in a URL."""
    wildcards = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - We listen where the config says.
    return wildcards.get(host, _in_url(host))
