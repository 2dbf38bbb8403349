"""The files of the chat page: a fixed list, each read once. No path of a request ever reaches the file system."""

import asyncio
from functools import cache
from importlib.resources import files

from aiohttp import web

from gateway.contract import Access, Caller, Route

__all__ = ["asset_routes"]

_ASSETS = {
    "/": ("index.html", "text/html"),
    "/app.js": ("app.js", "text/javascript"),
    "/app.css": ("app.css", "text/css"),
    "/favicon.svg": ("favicon.svg", "image/svg+xml"),
}


def asset_routes() -> list[Route]:
    return [Route(method="GET", path=path, access=Access.PUBLIC, handle=_serve) for path in _ASSETS]


async def _serve(request: web.Request, _caller: Caller) -> web.StreamResponse:
    name, media_type = _ASSETS[request.path]
    body = await asyncio.to_thread(_read, name)
    return web.Response(body=body, content_type=media_type, charset="utf-8")


@cache
def _read(name: str) -> bytes:
    return files("channels.web").joinpath("page", name).read_bytes()
