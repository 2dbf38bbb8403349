"""A channel on a real HTTP server, with a scripted core behind it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from aiohttp import ClientWebSocketResponse, web
from aiohttp.test_utils import TestClient, TestServer

from config import ChannelSettings
from gateway.contract import (
    Address,
    Caller,
    ChannelContext,
    CommandInfo,
    Deliver,
    Inbound,
    Line,
    OpenQuestion,
    Outbound,
    OutboundKind,
    PeerKind,
    Route,
    Sender,
    SessionInfo,
    Verdict,
)
from gateway.notebook import LooseLeaf

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
OWNER = Caller(name="owner", is_owner=True)


@dataclass(slots=True)
class StubBrowser:
    infos: list[SessionInfo] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    open_questions: list[OpenQuestion] = field(default_factory=list)
    asked_for: list[tuple[Address, Sender]] = field(default_factory=list)

    def sessions(self, address: Address, sender: Sender, _guild: str | None = None) -> list[SessionInfo]:
        self.asked_for.append((address, sender))
        return self.infos

    async def history(self, address: Address, sender: Sender, *, limit: int) -> list[Line]:
        self.asked_for.append((address, sender))
        return self.lines[-limit:]

    def questions(self, _address: Address, _sender: Sender) -> list[OpenQuestion]:
        return self.open_questions

    def commands(self) -> list[CommandInfo]:
        return [CommandInfo(name="new", arguments="[title]", summary="Start a new conversation")]


@dataclass(slots=True)
class StubPulse:
    beats: asyncio.Event = field(default_factory=asyncio.Event)

    def up(self) -> None:
        self.beats.set()

    def down(self, reason: str) -> None:
        raise AssertionError(reason)


@dataclass(slots=True)
class Core:
    """Takes every message, or what `verdict` says; `gate` holds a message back until it is set."""

    taken: list[Inbound] = field(default_factory=list)
    verdict: Verdict | Exception = Verdict.ACCEPTED
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    has_arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    async def deliver(self, inbound: Inbound) -> Verdict:
        self.taken.append(inbound)
        self.has_arrived.set()
        await self.gate.wait()
        if isinstance(self.verdict, Exception):
            raise self.verdict
        return self.verdict


class Running(Protocol):
    async def run(self, deliver: Deliver) -> None: ...


def context(browser: StubBrowser, pulse: StubPulse, name: str = "web") -> ChannelContext:
    return ChannelContext(
        name=name, account="default", settings=ChannelSettings(), browser=browser, notebook=LooseLeaf(), pulse=pulse
    )


def outbound(text: str, kind: OutboundKind = OutboundKind.REPLY, peer: str = "owner", session: int = 1) -> Outbound:
    address = Address(channel="web", kind=PeerKind.DIRECT, peer=peer)
    return Outbound(address=address, text=text, kind=kind, session=session)


@asynccontextmanager
async def running(channel: Running, core: Core, pulse: StubPulse) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(channel.run(core.deliver), name="channel")
        await pulse.beats.wait()
        yield
        task.cancel()


@asynccontextmanager
async def serving(routes: Sequence[Route], caller: Caller = OWNER) -> AsyncIterator[TestClient[Any, Any]]:
    app = web.Application()
    for route in routes:
        app.router.add_route(route.method, route.path, _handler(route, caller))
    server = TestServer(app, shutdown_timeout=0.1)
    async with TestClient(server) as client, asyncio.timeout(20):
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
