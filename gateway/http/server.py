"""The HTTP server: one aiohttp app, on a TCP port for browsers and on a Unix socket for the command line."""

import asyncio
import contextlib
import errno
import os
import socket
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from aiohttp import web

from config import HttpSettings
from gateway.contract import Caller, Route
from gateway.errors import CannotStart
from gateway.http.app import HttpApp, abort_websockets
from gateway.http.auth import Auth
from gateway.http.connections import ConnectionServer
from gateway.http.forwarding import Forwarder
from gateway.http.guard import AllowedHosts, Guard, control_users
from gateway.http.request_rate import RequestRate
from gateway.http.responses import ACCEPT_BATCH, HttpLimits

CONTROL_NAME = "control.sock"
BACKLOG = 128
MAX_SOCKET_PATH = 100
"""A Unix socket's path must fit into 104 to 108 bytes, depending on the system."""


class HttpServer:
    """Serves `routes` while its context is open.

    With `listen=False` it serves the control socket only. The caller holds the lock of the data directory. Programs may
    use the API once `is_ready` returns True, with `rate_limit` requests a minute. `forwarder` connects the nodes of a
    cluster. The server closes it.
    """

    def __init__(
        self,
        settings: HttpSettings,
        *,
        auth: Auth,
        routes: Sequence[Route],
        control_path: Path,
        find_token: Callable[[str], Caller | None] = lambda _: None,
        knows_token: Callable[[str], bool] = lambda _: True,
        rate_limit: Callable[[], int] = lambda: 0,
        is_ready: Callable[[], bool] = lambda: True,
        listen: bool = True,
        limits: HttpLimits | None = None,
        forwarder: Forwarder | None = None,
    ) -> None:
        self.routes = tuple(routes)
        self.url = ""
        """The address for a browser on this machine. Empty without a port."""
        self.port = 0
        self._settings = settings
        self._auth = auth
        self._find_token = find_token
        self._knows_token = knows_token
        self._rate_limit = rate_limit
        self._is_ready = is_ready
        self._control_path = control_path
        self._listen = listen
        self._limits = limits or HttpLimits()
        self._forwarder = forwarder
        self._stack = contextlib.AsyncExitStack()
        self._connections: ConnectionServer | None = None
        self._app: web.Application | None = None

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as stack:
            await self._start(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def drop_owners(self) -> None:
        """Cut every connection that was authenticated with the token or a cookie, because the token has changed."""
        self.drop_token("")

    def drop_token(self, token: str) -> None:
        """Cut every connection that was authenticated with the API token that has this id."""
        if self._connections is not None:
            self._connections.drop_token(token)

    def drop_cookies(self, cookies: Collection[str]) -> None:
        """Cut every WebSocket that was opened with one of the cookies that have these ids."""
        if self._app is not None and cookies:
            abort_websockets(self._app, self._auth, cookies)

    async def _start(self, stack: contextlib.AsyncExitStack) -> None:
        """Start everything, and push its closing to `stack`.

        Closing happens in reverse order: stop listening, wait for requests on new connections, cut streams, close
        WebSockets, end requests, wait for the connections, clean up the app, and close the connections to other nodes.
        """
        host, listeners = self._settings.host, []
        url_host = f"[{host}]" if ":" in host else host
        if self._listen:
            listener = stack.enter_context(await listen_on_port(host, self._settings.port))
            self.port = int(listener.getsockname()[1])
            # A browser cannot open a wildcard address.
            wildcards = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - We listen where the config says.
            self.url = f"http://{wildcards.get(host, url_host)}:{self.port}"
            listeners.append(listener)
        control = await asyncio.to_thread(listen_on_socket, self._control_path)
        stack.callback(self._control_path.unlink, missing_ok=True)
        listeners.append(stack.enter_context(control))

        guard = Guard(
            auth=self._auth,
            find_token=self._find_token,
            knows_token=self._knows_token,
            rate=RequestRate(self._rate_limit, self._auth.clock.monotonic),
            is_ready=self._is_ready,
            hosts=AllowedHosts.of(url_host, self.port, self._settings.allowed_hosts),
            users=await asyncio.to_thread(control_users),
            limits=self._limits,
            max_body_bytes=self._settings.max_body_bytes,
            forwarder=self._forwarder,
        )
        if self._forwarder is not None:
            stack.push_async_callback(self._forwarder.close)
        http_app = HttpApp(self.routes, guard=guard, limits=self._limits)
        self._app = http_app.app
        app_runner = web.AppRunner(http_app.app)
        stack.push_async_callback(app_runner.cleanup)
        await app_runner.setup()
        assert app_runner.server is not None  # noqa: S101 - `setup` has made it.
        handler, make_request = app_runner.server.request_handler, app_runner.server.request_factory
        connections = self._connections = ConnectionServer(handler, make_request, limits=self._limits)
        runner = web.ServerRunner(connections, shutdown_timeout=self._limits.closing)
        stack.push_async_callback(connections.wait_closed)
        stack.push_async_callback(runner.cleanup)
        stack.push_async_callback(http_app.close_websockets)
        stack.callback(connections.drop_streams)
        stack.callback(connections.refuse_new)
        await runner.setup()
        sites = [web.SockSite(runner, listener, backlog=ACCEPT_BATCH) for listener in listeners]
        for site, listener in zip(sites, listeners, strict=True):
            await site.start()
            # asyncio accepts up to `backlog` connections before it handles the first of them. The kernel's queue may
            # be longer.
            listener.listen(BACKLOG)
        stack.push_async_callback(_stop_accepting, sites, listeners, connections)

    def end_connections(self) -> None:
        """Let each response end its connection from now on, because the server closes soon."""
        if self._connections is not None:
            self._connections.is_ending = True


async def _stop_accepting(
    sites: Sequence[web.SockSite], listeners: Sequence[socket.socket], connections: ConnectionServer
) -> None:
    """Stop listening, and serve those who have connected. Later clients are refused, and know that they were not heard.

    asyncio would lose a socket if the server were closed in the pass of the loop that has accepted it.
    """
    connections.is_ending = True
    loop = asyncio.get_running_loop()
    for listener in listeners:
        loop.remove_reader(listener)
    for _ in range(3):  # One for the task that accepts, one for its call of `connection_made`, and one to spare.
        await asyncio.sleep(0)
    for site, listener in zip(sites, listeners, strict=True):
        accepted: list[socket.socket] = []
        with contextlib.suppress(OSError):  # Until the queue of the kernel is empty.
            while True:
                accepted.append(listener.accept()[0])
        await site.stop()  # Closes the listener at once, so that no client waits in the queue of the kernel.
        for each in accepted:
            each.setblocking(False)  # noqa: FBT003 - a positional parameter of the library.
            await loop.connect_accepted_socket(connections, each)
    await connections.wait_for_first_requests()


async def listen_on_port(host: str, port: int) -> socket.socket:
    """Listen on one address. Port 0 means any free port."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        raise CannotStart(
            f"http.host is {host!r}, which is not an address of this machine. "
            "Try `gatehouse config set http.host 127.0.0.1`."
        ) from error
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        # Without this, a restarted daemon could not use its port until the old connections have expired.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        other_port = "choose another port with `gatehouse config set http.port N`."
        if error.errno == errno.EADDRINUSE:
            reason = f"Port {port} on {host} is in use, perhaps by another Gatehouse. Stop that, or {other_port}"
        elif error.errno in {errno.EACCES, errno.EPERM}:
            reason = f"This user may not listen on port {port} of {host}. Use another user, or {other_port}"
        else:
            reason = (
                f"Gatehouse can't listen on {host}, port {port} ({error.strerror}). "
                "Try `gatehouse config set http.host 127.0.0.1`."
            )
        raise CannotStart(reason) from error
    return listener


def listen_on_socket(path: Path) -> socket.socket:
    """Listen on a Unix socket that is private at all times. The caller holds the data directory's lock."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise CannotStart(f"{path} is in the way of the control socket. Move it elsewhere.")
        path.unlink()  # A killed daemon has left it: no other daemon can run while the caller holds the lock.
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # On Linux, the file is created with the mode of the socket, less the umask.
        with contextlib.suppress(OSError):
            os.fchmod(listener.fileno(), 0o600)
        with short_socket_path(path) as address:
            listener.bind(address)
        # On other systems, the directory's mode 0700 protects the file until here. No one can connect before `listen`.
        path.chmod(0o600)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise CannotStart(f"Can't create the control socket {path} ({error.strerror}).") from error
    return listener


@contextlib.contextmanager
def short_socket_path(path: Path) -> Iterator[str]:
    """Yield an address for the Unix socket `path` that is short enough. It works while the context is open."""
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
