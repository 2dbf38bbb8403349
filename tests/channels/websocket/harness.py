"""A channel on a real HTTP server, with a scripted core behind it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from aiohttp import ClientWebSocketResponse, web
from aiohttp.test_utils import TestClient, TestServer

from channels.websocket import WebSocketChannel
from channels.websocket.channel import HEARTBEAT
from channels.websocket.wire import MAX_FRAME_SIZE
from gateway import testing
from gateway.contract import Access, Address, Caller, Channel, ChannelContext, Outbound, OutboundKind, PeerKind, Route
from gateway.testing import Core, StubBrowser, StubPulse

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
OWNER = Caller(name="owner", is_owner=True)


def context(browser: StubBrowser, pulse: StubPulse, name: str = "web") -> ChannelContext:
    return testing.context(name, browser, pulse)


def outbound(text: str, kind: OutboundKind = OutboundKind.REPLY, peer: str = "owner", session: int = 1) -> Outbound:
    address = Address(channel="web", kind=PeerKind.DIRECT, peer=peer)
    return Outbound(address=address, text=text, kind=kind, session=session)


@asynccontextmanager
async def running(channel: Channel, core: Core, pulse: StubPulse) -> AsyncIterator[None]:
    async with testing.running(channel, core.deliver, pulse):
        yield


@asynccontextmanager
async def serving(routes: Sequence[Route], caller: Caller = OWNER) -> AsyncIterator[TestClient[Any, Any]]:
    app = web.Application()
    for route in routes:
        app.router.add_route(route.method, route.path, _handler(route, caller))
    server = TestServer(app, shutdown_timeout=0.1)
    async with TestClient(server) as client, asyncio.timeout(60):
        yield client


def _handler(route: Route, caller: Caller) -> Any:  # noqa: ANN401 - aiohttp's own type for a handler is not public.
    async def handle(request: web.Request) -> web.StreamResponse:
        return await route.handle(request, caller)

    return handle


async def frame(socket: ClientWebSocketResponse, kind: str) -> dict[str, Any]:
    """Read on until a frame of this type comes."""
    while True:
        received: dict[str, Any] = await socket.receive_json()
        if received["type"] == kind:
            return received


async def say(socket: ClientWebSocketResponse, text: str, name: str = "m1") -> None:
    await socket.send_json({"type": "message", "id": name, "text": text})


@dataclass(slots=True, kw_only=True)
class Served:
    channel: WebSocketChannel
    core: Core
    browser: StubBrowser
    pulse: StubPulse
    client: TestClient[Any, Any]
    handlers: list[asyncio.Task[Any]]

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[ClientWebSocketResponse]:
        async with self.client.ws_connect("/ws") as socket:
            assert await socket.receive_json() == {
                "type": "hello",
                "name": "owner",
                "max_frame_bytes": MAX_FRAME_SIZE,
                "max_text_chars": 32_000,
                "needs_setup": False,
                "transcribes": False,
            }
            yield socket


@asynccontextmanager
async def serving_channel(
    heartbeat: float = HEARTBEAT,
    clock: Callable[[], float] = time.monotonic,
    browser: StubBrowser | None = None,
) -> AsyncIterator[Served]:
    browser, pulse = browser or StubBrowser(), StubPulse()
    channel = WebSocketChannel(
        context(browser, pulse), render=lambda text: f"<p>{text}</p>", heartbeat=heartbeat, clock=clock
    )
    handlers: list[asyncio.Task[Any]] = []

    async def handle(request: web.Request, caller: Caller) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        handlers.append(task)
        return await channel.serve(request, caller)

    route = Route(method="GET", path="/ws", access=Access.OWNER, handle=handle)
    async with serving([route]) as client:
        yield Served(channel=channel, core=Core(), browser=browser, pulse=pulse, client=client, handlers=handlers)


def transport_of(socket: ClientWebSocketResponse) -> asyncio.Transport:
    """Return what is below the socket, to misbehave with."""
    connection = socket._response.connection  # noqa: SLF001 - a well-behaved client has no public way to do this.
    assert connection is not None
    assert isinstance(connection.transport, asyncio.Transport)
    return connection.transport
