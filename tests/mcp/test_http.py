"""The limit on what is read from an MCP server over HTTP, against a local server."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx2
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from config import McpSettings
from gateway.mcp.http import ResponseTooLarge, open_http_client

LIMIT = 10_000
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def client_of(handler: Handler) -> AsyncIterator[httpx2.AsyncClient]:
    app = web.Application()
    app.router.add_get("/", handler)
    async with TestServer(app) as server:
        settings = McpSettings.model_validate({"url": str(server.make_url("/")), "max_result_bytes": LIMIT})
        async with open_http_client(settings) as client:
            client.base_url = httpx2.URL(str(server.make_url("/")))
            yield client


@pytest.mark.parametrize(("size", "is_read"), [(LIMIT, True), (LIMIT + 1, False)])
async def test_a_body_is_read_up_to_the_limit(size: int, *, is_read: bool) -> None:
    async def answer(_request: web.Request) -> web.Response:
        return web.json_response(body=b"x" * size)

    async with client_of(answer) as client:
        if is_read:
            assert len((await client.get("/")).content) == size
        else:
            with pytest.raises(ResponseTooLarge):
                await client.get("/")


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
@pytest.mark.parametrize(("size", "is_read"), [(LIMIT // 2, True), (2 * LIMIT, False)])
async def test_the_limit_is_for_each_event_of_a_stream(end: bytes, size: int, *, is_read: bool) -> None:
    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(5):
            event = b"data: " + b"x" * size + end
            for at in range(0, len(event), 777):  # So that an end may be cut in two.
                await response.write(event[at : at + 777])
        return response

    async with client_of(stream) as client:
        if is_read:
            assert len((await client.get("/")).content) == 5 * (size + 6 + len(end))
        else:
            with pytest.raises(ResponseTooLarge):
                await client.get("/")


async def test_a_compressed_answer_is_refused() -> None:
    async def compress(request: web.Request) -> web.Response:
        assert request.headers["Accept-Encoding"] == "identity"
        response = web.json_response(body=b"x" * LIMIT)
        response.enable_compression(web.ContentCoding.gzip)
        return response

    async with client_of(compress) as client:
        with pytest.raises(httpx2.RemoteProtocolError, match="compresses"):
            await client.get("/")
