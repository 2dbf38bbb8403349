"""The HTTP server: one aiohttp app, on a TCP port for browsers and on a Unix socket for the command line."""

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from aiohttp import web

from config import HttpSettings
from gateway.contract import Route
from gateway.http.app import Entrance
from gateway.http.auth import Auth
from gateway.http.checks import Gate, Hosts, control_users
from gateway.http.door import Doorkeeper, Visitors
from gateway.http.limits import Limits
from gateway.http.sockets import listen_on_port, listen_on_socket

__all__ = ["HttpServer"]


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
        limits: Limits | None = None,
    ) -> None:
        self.routes = tuple(routes)
        self.url = ""
        """Where a browser on this machine finds us; empty while there is no port to find us on."""
        self.port = 0
        self._settings = settings
        self._auth = auth
        self._control_path = control_path
        self._listen = listen
        self._limits = limits or Limits()
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
        entrance = Entrance(self.routes, gate=await self._gate(visitors), limits=self._limits)
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

    async def _gate(self, visitors: Visitors) -> Gate:
        settings = self._settings
        return Gate(
            auth=self._auth,
            hosts=Hosts.of(_in_url(settings.host), self.port, settings.allowed_hosts),
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
