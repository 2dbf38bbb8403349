"""The server under both dialects: plays a script, and keeps what it was asked."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.agent.wire.dialect import Dialect, Refusal

__all__ = ["CUT", "Chunk", "Reply", "Request", "WireServer", "serving"]

KEY = "canary-key-0123456789"


class _Cut:
    """The connection is reset."""


CUT: Final = _Cut()

Chunk = bytes | asyncio.Event | _Cut
Reply = Sequence[Chunk] | Refusal | asyncio.Event
"""The pieces of a stream, an answer that is none, or no answer at all until the event is set."""


@dataclass(frozen=True, slots=True)
class Request:
    headers: dict[str, str]
    body: dict[str, Any]
    size: int


class WireServer:
    def __init__(self, dialect: Dialect, script: Sequence[Reply], server: TestServer) -> None:
        self.dialect = dialect
        self.requests: list[Request] = []
        self.complaints: list[str] = []
        """What the real API would have refused; a test in which there is any fails."""
        self.script = list(script)
        self.idle = asyncio.Event()
        """Set while no answer is being given."""
        self._has_request = asyncio.Event()
        self._open = 0
        self._server = server

    def table(self, **more: object) -> dict[str, Any]:
        """Return a provider's table for this server; it gives up at once unless told otherwise."""
        url = str(self._server.make_url(self.dialect.base))
        return {"kind": self.dialect.kind, "base_url": url, "api_key": KEY, "patience": 0.0, **more}

    async def asked(self, times: int) -> None:
        """Return once the server has got this many requests."""
        while len(self.requests) < times:
            self._has_request.clear()
            await self._has_request.wait()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        body = json.loads(raw)
        self.requests.append(Request(dict(request.headers), body, len(raw)))
        self._has_request.set()
        self.complaints += self.dialect.complaints(body)
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
