"""The server for both dialects: sends scripted replies, and stores the requests."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.agent.wire.dialect import Dialect, Refusal

KEY = "canary-key-0123456789"


class _Cut:
    """Resets the connection."""


CUT: Final = _Cut()

Chunk = bytes | asyncio.Event | _Cut
Reply = Sequence[Chunk] | Refusal | asyncio.Event
"""The chunks of a stream, an error, or no response until the event is set."""


@dataclass(frozen=True, slots=True)
class Request:
    headers: dict[str, str]
    body: dict[str, Any]
    size: int
    query: str = ""


class WireServer:
    def __init__(self, dialect: Dialect, script: Sequence[Reply], server: TestServer) -> None:
        self.dialect = dialect
        self.requests: list[Request] = []
        self.complaints: list[str] = []
        """Reasons for which the real API would have refused a request. Any complaint fails the test."""
        self.script = list(script)
        self.choose: Callable[[dict[str, Any]], Reply | None] = lambda _body: None
        """Returns the reply to a request by its body, or None for the next one of the script."""
        self.idle = asyncio.Event()
        """Set while no response is being sent."""
        self._has_request = asyncio.Event()
        self._open = 0
        self._server = server

    def table(self, **more: object) -> dict[str, Any]:
        """Return the configuration table of a provider for this server. By default it does not retry."""
        url = str(self._server.make_url(self.dialect.base))
        return {"kind": self.dialect.kind, "base_url": url, "api_key": KEY, "patience": 0.0, **more}

    async def asked(self, times: int) -> None:
        """Wait until the server has received this many requests."""
        while len(self.requests) < times:
            self._has_request.clear()
            await self._has_request.wait()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = json.loads(raw)
        self.requests.append(Request(dict(request.headers), body, len(raw), request.query_string))
        self._has_request.set()
        self.complaints += self.dialect.complaints(body)
        reply = self.choose(body)
        if reply is None:
            reply = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        self._open += 1
        self.idle.clear()
        try:
            return await _reply(reply, request)
        finally:
            self._open -= 1
            if not self._open:
                self.idle.set()


async def _reply(reply: Reply, request: web.Request) -> web.StreamResponse:
    if isinstance(reply, asyncio.Event):
        await reply.wait()
        return web.Response()
    return await (_refuse(reply) if isinstance(reply, Refusal) else _play(reply, request))


async def _refuse(refusal: Refusal) -> web.StreamResponse:
    text = refusal.body if isinstance(refusal.body, str) else json.dumps(refusal.body)
    content_type = "text/html" if isinstance(refusal.body, str) else "application/json"
    return web.Response(text=text, status=refusal.status, headers=refusal.headers, content_type=content_type)


async def _play(chunks: Sequence[Chunk], request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for chunk in chunks:
        if isinstance(chunk, asyncio.Event):
            await chunk.wait()
        elif isinstance(chunk, _Cut):
            if request.transport:
                request.transport.abort()
            return response
        else:
            await response.write(chunk)
    return response


@asynccontextmanager
async def serving(dialect: Dialect, *script: Reply) -> AsyncIterator[WireServer]:
    app = web.Application()
    server = TestServer(app)
    wire = WireServer(dialect, script, server)
    app.router.add_post(dialect.path, wire.handle)
    async with server:
        yield wire
    assert not wire.complaints
