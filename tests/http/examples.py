"""Example routes of a channel, one of each kind."""

import asyncio
from collections.abc import Mapping
from http import HTTPStatus

from aiohttp import WSMsgType, web

from gateway.contract import Access, Caller, Route, TokenScope
from gateway.errors import Refused
from gateway.http.responses import HttpError


async def echo(request: web.Request, caller: Caller) -> web.StreamResponse:
    return web.json_response({"heard": await request.json(), "caller": caller.name})


async def look(_: web.Request, caller: Caller) -> web.StreamResponse:
    return web.json_response({"caller": caller.name})


async def crash(_request: web.Request, _: Caller) -> web.StreamResponse:
    raise ValueError("the insides")


async def crash_midway(request: web.Request, _: Caller) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"half of")
    raise ValueError("the insides")


async def refuse(_request: web.Request, _: Caller) -> web.StreamResponse:
    raise Refused("Not today.")


async def lose_a_server(_request: web.Request, _: Caller) -> web.StreamResponse:
    raise ConnectionRefusedError("some other server")


async def send_elsewhere(_request: web.Request, _: Caller) -> web.StreamResponse:
    raise web.HTTPSeeOther("/healthz")


async def hang(_request: web.Request, _: Caller) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def talk(request: web.Request, _: Caller) -> web.StreamResponse:
    websocket = web.WebSocketResponse()
    await websocket.prepare(request)
    async for message in websocket:
        if message.type is WSMsgType.TEXT:
            await websocket.send_str(message.data.upper())
    return websocket


async def talk_nonsense(request: web.Request, _: Caller) -> web.StreamResponse:
    websocket = web.WebSocketResponse()
    await websocket.prepare(request)
    raise Refused("Too late to refuse.")


async def stream(request: web.Request, _: Caller) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b"first")
    await asyncio.Event().wait()
    raise AssertionError


async def explain(_request: web.Request, _: Caller) -> web.StreamResponse:
    extra = {"type": "too_full", "param": "text", "code": "full", "limit": 5}
    raise HttpError(HTTPStatus.UNPROCESSABLE_ENTITY, "Too full.", extra=extra)


async def echo_bytes(request: web.Request, _: Caller) -> web.StreamResponse:
    return web.Response(body=await request.read())


def is_signed(headers: Mapping[str, str]) -> bool:
    return headers.get("X-Signature") == "signed"


API_EXAMPLES = [
    Route(method="GET", path="/api/example", access=Access.API, handle=look),
    Route(method="GET", path="/api/example/{name}", access=Access.API, scope=TokenScope.READ, handle=look),
    Route(method="POST", path="/api/example", access=Access.API, scope=TokenScope.PROMPT, handle=echo),
    Route(method="DELETE", path="/api/example/{name}", access=Access.API, scope=TokenScope.MANAGE, handle=look),
    Route(method="POST", path="/v1/example", access=Access.API, scope=TokenScope.PROMPT, handle=echo),
    Route(method="GET", path="/v1/example/refuse", access=Access.API, scope=TokenScope.READ, handle=refuse),
    Route(method="GET", path="/v1/example/crash", access=Access.API, scope=TokenScope.READ, handle=crash),
    Route(method="GET", path="/v1/example/explain", access=Access.API, scope=TokenScope.READ, handle=explain),
    Route(method="GET", path="/api/refuse", access=Access.API, scope=TokenScope.READ, handle=refuse),
    Route(method="GET", path="/api/crash", access=Access.API, scope=TokenScope.READ, handle=crash),
    Route(method="GET", path="/api/explain", access=Access.API, scope=TokenScope.READ, handle=explain),
    Route(method="GET", path="/api/stream", access=Access.API, scope=TokenScope.READ, handle=stream, is_stream=True),
    Route(method="GET", path="/api/admin", access=Access.API, scope=TokenScope.ADMIN, handle=look),
    Route(
        method="POST",
        path="/hooks/example",
        access=Access.CHANNEL,
        handle=echo_bytes,
        knows=is_signed,
        takes_any_type=True,
    ),
]


EXAMPLES = [
    *API_EXAMPLES,
    Route(method="GET", path="/example", access=Access.OWNER, handle=look),
    Route(method="POST", path="/example", access=Access.OWNER, handle=echo),
    Route(method="POST", path="/example/public", access=Access.PUBLIC, handle=echo),
    Route(method="GET", path="/example/public", access=Access.PUBLIC, handle=look),
    Route(method="GET", path="/example/things/{name}", access=Access.OWNER, handle=look),
    Route(method="DELETE", path="/example/things/{name}", access=Access.OWNER, handle=look),
    Route(method="POST", path="/example/control", access=Access.CONTROL, handle=echo),
    Route(method="GET", path="/example/control", access=Access.CONTROL, handle=look),
    Route(method="GET", path="/example/crash", access=Access.OWNER, handle=crash),
    Route(method="GET", path="/example/crash-midway", access=Access.OWNER, handle=crash_midway),
    Route(method="GET", path="/example/refuse", access=Access.OWNER, handle=refuse),
    Route(method="GET", path="/example/lose", access=Access.OWNER, handle=lose_a_server),
    Route(method="GET", path="/example/elsewhere", access=Access.OWNER, handle=send_elsewhere),
    Route(method="GET", path="/example/hang", access=Access.OWNER, handle=hang),
    Route(method="GET", path="/example/talk", access=Access.OWNER, handle=talk),
    Route(method="GET", path="/example/nonsense", access=Access.OWNER, handle=talk_nonsense),
]
