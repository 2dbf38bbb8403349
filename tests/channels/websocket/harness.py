"""A channel on a real HTTP server, with a scripted core behind it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from aiohttp import ClientWebSocketResponse, web
from aiohttp.test_utils import TestClient, TestServer

from gateway import testing
from gateway.contract import Address, Caller, Channel, ChannelContext, Outbound, OutboundKind, PeerKind, Route
from gateway.testing import Core, StubBrowser, StubPulse

__all__ = [
    "NOON",
    "OWNER",
    "Core",
    "StubBrowser",
    "StubPulse",
    "context",
    "frame",
    "outbound",
    "running",
    "say",
    "serving",
]

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
