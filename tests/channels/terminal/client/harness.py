"""A scripted gateway on a real WebSocket."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import ClientSession, ClientWebSocketResponse, web
from aiohttp.test_utils import TestServer

from channels.terminal.channel import PATH
from channels.terminal.client.gateway_connection import Connect
from gateway.errors import Transient

NOON = "2026-03-01T12:00:00Z"

Script = Callable[["Client"], Awaitable[None]]
"""Plays the gateway on one connection. The connection is closed when the script returns."""


class Client:
    """One client, as a script sees it."""

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self._socket = socket

    async def heard(self) -> dict[str, Any]:
        """Return the next message of the client, and skip its other requests."""
        while True:
            frame: dict[str, Any] = await self._socket.receive_json()
            if frame["type"] == "message":
                return frame

    async def requested(self) -> str:
        """Return the type of the next frame of the client."""
        return str((await self._socket.receive_json())["type"])

    async def show(self, type_: str, **fields: object) -> None:
        await self._socket.send_json({"type": type_, **fields})

    async def ack(self, said: dict[str, Any], verdict: str = "accepted") -> None:
        await self.show("ack", id=said["id"], verdict=verdict, at=NOON)

    async def message(
        self, text: str, *, kind: str = "reply", to: dict[str, Any] | None = None, key: str = "k"
    ) -> None:
        about = {"reply_to": to["id"]} if to else {}
        await self.show("message", key=key, kind=kind, text=text, at=NOON, **about)

    async def draft(self, text: str, *, to: dict[str, Any], key: str = "k") -> None:
        await self.show("draft", key=key, text=text, reply_to=to["id"])

    async def answer(self, text: str, said: dict[str, Any]) -> None:
        await self.ack(said)
        await self.message(text, to=said, key=f"answer to {said['id']}")

    async def hang_up(self, code: int) -> None:
        await self._socket.close(code=code)

    async def stay(self) -> None:
        """Keep the connection open until the client leaves."""
        async for _ in self._socket:
            pass


async def echoing(client: Client) -> None:
    while True:
        said = await client.heard()
        await client.answer(f"You said: {said['text']}", said)


@asynccontextmanager
async def gateway(*scripts: Script) -> AsyncIterator[Connect]:
    """Play one script per connection, in order. After the last one, connecting fails."""
    waiting = list(scripts)

    async def handle(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_json({"type": "hello", "name": "ada"})
        try:
            await waiting.pop(0)(Client(socket))
        except TypeError:  # aiohttp had no JSON to receive: the client has left.
            return socket
        await socket.close()
        return socket

    app = web.Application()
    app.router.add_get(PATH, handle)
    async with (
        TestServer(app, shutdown_timeout=0.1) as server,
        ClientSession(str(server.make_url("/"))) as session,
        asyncio.timeout(60),
    ):

        async def connect(path: str) -> ClientWebSocketResponse:
            if not waiting:
                raise Transient("The gateway is not running.")
            return await session.ws_connect(path)

        yield connect


def ignore(_frame: object, _exchange: object) -> None:
    """Ignore a received frame."""


NO_DELAYS: Sequence[float] = (0.0, 0.0, 0.0)
