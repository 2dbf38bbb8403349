"""The archive over the control socket, for the command line.

All but deleting is a WebSocket: it has no deadline and no limit to what it carries. Binary frames are JSON lines cut
anywhere, or empty, as a sign of life; a text frame ends them, with the outcome or an `error`.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgspec
from aiohttp import WSMsgType, web

from gateway.admin.archive import Archive, LocalArchive, closing, join_into_blocks
from gateway.contract import Access, Caller, Route
from gateway.errors import Refused
from gateway.sessions import SessionManager

__all__ = ["FRAME_TIMEOUT", "MAX_LINES", "session_routes", "stream_route"]

FRAME_TIMEOUT = 60.0
"""How long either side waits for the other's next frame."""
KEEPALIVE_INTERVAL = 10.0
MAX_LINES = 100_000

_T = TypeVar("_T")

Pieces = AsyncIterator[bytes]
Query = dict[str, str]


def session_routes(sessions: SessionManager) -> list[Route]:
    archive = LocalArchive(sessions)

    async def delete(request: web.Request, _: Caller) -> web.StreamResponse:
        await archive.delete(_text(await request.json(), "key"))
        return web.json_response({"status": "deleted"})

    async def verify(request: web.Request, _: Caller) -> web.StreamResponse:
        return await _converse(request, lambda socket: _verify(archive, socket))

    async def bring_in(request: web.Request, _: Caller) -> web.StreamResponse:
        return await _converse(request, lambda socket: _import(archive, socket))

    return [
        stream_route("/sessions/list", lambda query: _listed(archive, query.get("scope"))),
        stream_route("/sessions/lines", lambda query: _lines(archive, query)),
        stream_route("/sessions/transcript", lambda query: archive.export(_text(query, "key"))),
        Route(method="GET", path="/sessions/verify", access=Access.CONTROL, handle=verify),
        Route(method="GET", path="/sessions/import", access=Access.CONTROL, handle=bring_in),
        Route(method="POST", path="/sessions/delete", access=Access.CONTROL, handle=delete),
    ]


def stream_route(path: str, pieces: Callable[[Query], Pieces]) -> Route:
    """Return a route that sends all that `pieces` yields."""

    async def handle(request: web.Request, _: Caller) -> web.StreamResponse:
        query = dict(request.query)
        return await _converse(request, lambda socket: _send_all(socket, lambda: pieces(query)))

    return Route(method="GET", path=path, access=Access.CONTROL, handle=handle)


async def _converse(
    request: web.Request, talk: Callable[[web.WebSocketResponse], Awaitable[dict[str, object]]]
) -> web.StreamResponse:
    """Open the socket, and end it with what `talk` returns, or the sentence of its refusal."""
    socket = web.WebSocketResponse(compress=False)
    await socket.prepare(request)
    try:
        last = await talk(socket)
    except Refused as refusal:
        last = {"error": str(refusal)}
    except ConnectionError:
        # Whoever asked has gone, or we are shutting down: nobody is left to hear the rest.
        return socket
    if not socket.closed:
        await socket.send_str(json.dumps(last))
        await socket.close()
    return socket


async def _send_all(socket: web.WebSocketResponse, pieces: Callable[[], Pieces]) -> dict[str, object]:
    async with closing(pieces()) as source:
        async for piece in source:
            await socket.send_bytes(piece)
    return {}


async def _verify(archive: Archive, socket: web.WebSocketResponse) -> dict[str, object]:
    report = await _patiently(socket, archive.verify())
    return {"report": msgspec.to_builtins(report)}


async def _import(archive: Archive, socket: web.WebSocketResponse) -> dict[str, object]:
    async with closing(_arriving(socket)) as blocks:
        meta = await _patiently(socket, archive.bring_in(blocks))
    return {"session": msgspec.to_builtins(meta)}


async def _patiently(socket: web.WebSocketResponse, work: Coroutine[Any, Any, _T]) -> _T:
    """Wait for what reads whole transcripts, and show meanwhile that we are alive."""
    working = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({working}, timeout=KEEPALIVE_INTERVAL))[0]:
            await socket.send_bytes(b"")
        return working.result()
    finally:
        working.cancel()
        await asyncio.wait({working})


async def _arriving(socket: web.WebSocketResponse) -> Pieces:
    """Yield what the other side sends up to its text frame; a transcript of which the end is missing is refused."""
    while True:
        try:
            message = await socket.receive(timeout=FRAME_TIMEOUT)
        except TimeoutError as late:
            raise Refused("The session stopped arriving before its end; nothing was imported.") from late
        if message.type is WSMsgType.TEXT:
            return
        if message.type is not WSMsgType.BINARY:
            raise Refused("The connection was lost before the session's end; nothing was imported.")
        yield message.data


async def _listed(archive: Archive, scope: str | None) -> Pieces:
    async def encoded() -> Pieces:
        async for listed in archive.sessions(scope):
            yield _line(listed)

    async for block in join_into_blocks(encoded()):
        yield block


async def _lines(archive: Archive, query: Query) -> Pieces:
    limit = _text(query, "limit")
    if not limit.isdecimal() or not 0 < int(limit[:9]) <= MAX_LINES:
        raise Refused(f"The number of lines has to be from 1 to {MAX_LINES}.")

    async def encoded() -> Pieces:
        for spoken in await archive.lines(_text(query, "key"), int(limit)):
            yield _line(spoken)

    async for block in join_into_blocks(encoded()):
        yield block


def _line(value: object) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def _text(given: Query, name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str) or not value:
        raise Refused(f"`{name}` is missing.")
    return value
