"""Measures the time to the first streamed token on the web channel, compared with a bare WebSocket echo."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from statistics import median, quantiles
from time import perf_counter
from uuid import uuid4

from aiohttp import ClientSession, ClientWebSocketResponse, web
from aiohttp.test_utils import BaseTestServer, TestServer

from bench.daemon import Daemon, started
from bench.table import Row

TIMES = 40
LIMIT_MS = 15


def rows() -> Iterator[Row]:
    with started() as daemon:
        first, later = asyncio.run(_first_tokens(daemon))
    echo = asyncio.run(_echoes())
    yield Row(
        what="first streamed token, web channel",
        measured=f"p50 {median(later):.1f} ms, p95 {_p95(later):.1f} ms; a new daemon's first: {first:.1f} ms",
        baseline=f"WebSocket echo: p50 {median(echo):.1f} ms",
        target=f"< {LIMIT_MS} ms",
        is_met=_p95(later) < LIMIT_MS and first < LIMIT_MS,
    )


def _p95(values: list[float]) -> float:
    return quantiles(values, n=20)[-1]


async def _first_tokens(daemon: Daemon) -> tuple[float, list[float]]:
    headers = {"Authorization": f"Bearer {daemon.token}"}
    async with ClientSession(daemon.url, headers=headers) as session, session.ws_connect("/web/ws") as socket:
        await socket.receive_json()
        first, *later = [await _first_token_ms(socket) for _ in range(TIMES + 1)]
        return first, later


async def _first_token_ms(socket: ClientWebSocketResponse) -> float:
    """Send a message, and wait for the complete answer. Returns the milliseconds to its first draft."""
    began = perf_counter()
    await socket.send_json({"type": "message", "id": uuid4().hex, "text": "hello"})
    first = 0.0
    while True:
        frame = await socket.receive_json()
        if frame["type"] == "draft" and not first:
            first = (perf_counter() - began) * 1000
        if frame["type"] == "message" and frame["kind"] == "reply":
            return first


async def _echoes() -> list[float]:
    async with _echo_server() as server, ClientSession() as session, session.ws_connect(server.make_url("/")) as socket:
        return [await _echo_ms(socket) for _ in range(TIMES)]


async def _echo_ms(socket: ClientWebSocketResponse) -> float:
    began = perf_counter()
    await socket.send_json({"type": "message", "id": uuid4().hex, "text": "hello"})
    await socket.receive_json()
    return (perf_counter() - began) * 1000


@asynccontextmanager
async def _echo_server() -> AsyncIterator[BaseTestServer]:
    async def echo(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str(message.data)
        return socket

    app = web.Application()
    app.router.add_get("/", echo)
    async with TestServer(app) as server:
        yield server
