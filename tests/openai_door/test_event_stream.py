"""The stream of one response: its header, comments while it is silent, and clients that are gone."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.http.responses import HttpError
from gateway.openai_door.errors import refusal
from gateway.openai_door.event_stream import EventStream, event_stream
from gateway.openai_door.responses import ResponseEvents

Body = Callable[[EventStream], Awaitable[None]]


@asynccontextmanager
async def response_of(body: Body, keepalive: float = 60.0) -> AsyncIterator[aiohttp.ClientResponse]:
    """Serve one stream, and yield the response to a request."""

    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            async with event_stream(request, keepalive) as stream:
                await body(stream)
        except HttpError as error:
            return web.Response(status=error.status, text=str(error))
        return stream.response

    app = web.Application()
    app.router.add_get("/", handle)
    async with (
        asyncio.timeout(60),
        TestServer(app) as server,
        aiohttp.ClientSession() as http,
        http.get(server.make_url("/")) as response,
    ):
        yield response


async def test_a_silent_stream_gets_comments() -> None:
    has_more = asyncio.Event()

    async def body(stream: EventStream) -> None:
        await has_more.wait()
        await stream.send({"a": 1})

    async with response_of(body, keepalive=0.01) as response:
        for _ in range(3):
            assert await response.content.readline() == b": keep-alive\n"
            assert await response.content.readline() == b"\n"
        has_more.set()
        assert (await response.text()).endswith('data: {"a":1}\n\n')


async def test_an_error_before_the_first_event_has_its_own_status() -> None:
    async def body(_: EventStream) -> None:
        raise refusal("No.", status=HTTPStatus.CONFLICT)

    async with response_of(body) as response:
        assert (response.status, await response.text()) == (409, "No.")


@pytest.mark.parametrize("error", [refusal("No.", code="why", param="input"), HttpError(HTTPStatus.BAD_GATEWAY, "No.")])
async def test_an_error_after_a_comment_is_an_event(error: HttpError) -> None:
    async def body(stream: EventStream) -> None:
        await stream.write(b": keep-alive\n\n")
        await ResponseEvents(stream).fail(error)

    async with response_of(body) as response:
        event = json.loads((await response.text()).split("data: ")[1])
        assert (event["type"], event["message"], event["sequence_number"]) == ("error", "No.", 0)
        assert event["code"] == error.extra.get("code")
