"""The web channel: serves the chat page, and renders Markdown for it."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path

from aiohttp import web

from channels.websocket import WebSocketChannel
from channels.websocket.wire import message_frame
from gateway.contract import Access, Caller, ChannelContext, Outbound, Receipt, Route
from gateway.errors import Undeliverable

_MODULES = (
    "app",
    "composer",
    "conversation",
    "dom",
    "drawer",
    "history",
    "items",
    "log",
    "login",
    "outbox",
    "socket",
    "state",
    "suggestions",
    "view",
)
# A fixed list: no path of a request ever reaches the file system.
_PAGE_FILES = {
    "/": ("index.html", "text/html"),
    **{f"/{module}.js": (f"{module}.js", "text/javascript") for module in _MODULES},
    "/app.css": ("app.css", "text/css"),
    "/favicon.svg": ("favicon.svg", "image/svg+xml"),
}


class WebChannel(WebSocketChannel):
    """All browsers with the same user name share one chat."""

    max_buttons = 30
    max_file_bytes = 2_000_000_000

    def __init__(self, context: ChannelContext) -> None:
        super().__init__(context, render=_render_html)

    async def send_file(self, message: Outbound, path: Path, *, key: str) -> Receipt:
        """Show a link to the file. The gateway serves the download, and the transcript has the link as well."""
        del path  # The gateway serves the file by its reference.
        if message.file is None:
            raise Undeliverable("There is no file to send.")
        frame = message_frame(message, key=key, at=datetime.now(UTC))
        self._hub.broadcast(message.address.peer, frame)
        return Receipt(message_id=key)

    def routes(self) -> Sequence[Route]:
        page = [Route(method="GET", path=path, access=Access.PUBLIC, handle=_serve_file) for path in _PAGE_FILES]
        return [*page, Route(method="GET", path="/web/ws", access=Access.OWNER, handle=self.serve)]


def _render_html(markdown: str) -> str:
    # It loads a parser, which a gateway without browsers does not need.
    from gateway.text.markdown import render_html  # noqa: PLC0415

    return render_html(markdown)


async def _serve_file(request: web.Request, _caller: Caller) -> web.StreamResponse:
    name, media_type = _PAGE_FILES[request.path]
    body = await asyncio.to_thread(_read_file, name)
    return web.Response(body=body, content_type=media_type, charset="utf-8")


@cache
def _read_file(name: str) -> bytes:
    return files("channels.web").joinpath("page", name).read_bytes()
