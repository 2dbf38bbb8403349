"""The web channel: serves the chat page, and renders Markdown for it."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePath

from aiohttp import web

from channels.websocket import WebSocketChannel
from channels.websocket.wire import message_frame
from gateway.contract import Access, Caller, ChannelContext, Outbound, Receipt, Route
from gateway.errors import Undeliverable

_PAGE = files("channels.web") / "page"
_START_PAGES = {"/": "index.html", "/console": "console/index.html"}
_MEDIA_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
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
        page = [Route(method="GET", path=path, access=Access.PUBLIC, handle=_serve_file) for path in page_files()]
        return [*page, Route(method="GET", path="/web/ws", access=Access.OWNER, handle=self.serve)]


def _render_html(markdown: str) -> str:
    # It loads a parser, which a gateway without browsers does not need.
    from gateway.text.markdown import render_html  # noqa: PLC0415

    return render_html(markdown)


@cache
def page_files() -> dict[str, tuple[Traversable, str]]:
    """Return the files of the page and their media types, by path.

    No path of a request ever reaches the file system: a file that is not in this table is not served.
    """
    found = dict(_walk(_PAGE, ""))
    return {path: found[name] for path, name in _START_PAGES.items()} | {
        f"/{name}": file for name, file in found.items() if name not in _START_PAGES.values()
    }


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, tuple[Traversable, str]]]:
    for each in sorted(folder.iterdir(), key=lambda entry: entry.name):
        name = f"{prefix}{each.name}"
        if each.is_dir():
            yield from _walk(each, f"{name}/")
        elif media_type := _MEDIA_TYPES.get(PurePath(each.name).suffix):
            yield name, (each, media_type)


async def _serve_file(request: web.Request, _caller: Caller) -> web.StreamResponse:
    # The files are small, and each is read once.
    body = _read_file(request.path)
    _, media_type = page_files()[request.path]
    is_text = not media_type.endswith("png")
    return web.Response(body=body, content_type=media_type, charset="utf-8" if is_text else None)


@cache
def _read_file(path: str) -> bytes:
    return page_files()[path][0].read_bytes()
