"""Files over HTTP: a page of ours uploads what goes with a message, and downloads what came with an answer."""

import mimetypes
from collections.abc import Callable
from datetime import datetime, timedelta
from http import HTTPStatus
from secrets import token_hex
from urllib.parse import quote

from aiohttp import web

from gateway.contract import Access, AttachmentKind, Caller, Route
from gateway.errors import Refused
from gateway.files.identify import HEAD, PICTURES, in_bytes, media_type, safe_name
from gateway.files.store import FileStore, TooLarge
from gateway.http.responses import HttpError

__all__ = ["UPLOADS", "FileRoutes"]

UPLOADS = "uploads"
"""The store's folder of what has come in and belongs to no message yet."""
KEPT_FOR = timedelta(days=1)
BLOCK = 1 << 16


class FileRoutes:
    """`max_bytes` is asked for each upload."""

    def __init__(self, store: FileStore, max_bytes: Callable[[], int], now: Callable[[], datetime]) -> None:
        self._store = store
        self._max_bytes = max_bytes
        self._now = now

    def routes(self) -> list[Route]:
        return [
            Route(method="POST", path="/files", access=Access.OWNER, handle=self._upload, takes_file=True),
            Route(method="GET", path="/files/{folder}/{name}", access=Access.OWNER, handle=self._download),
        ]

    async def tidy(self) -> None:
        """Remove what was uploaded long ago and never sent."""
        await self._store.drop_older(UPLOADS, (self._now() - KEPT_FOR).timestamp())

    async def _upload(self, request: web.Request, _: Caller) -> web.StreamResponse:
        """Take the body as a file, and answer with what a message has to say to bring it along."""
        limit = self._max_bytes()
        name = safe_name(request.query.get("name", ""))
        sentence = f"The file is too large; files of up to {in_bytes(limit)} are taken."
        if (request.content_length or 0) > limit:
            raise HttpError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, sentence)
        try:
            kept = await self._store.keep(
                UPLOADS, f"{token_hex(16)}-{name}", request.content.iter_chunked(BLOCK), limit=limit
            )
        except TooLarge:
            raise HttpError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, sentence) from None
        except OSError as trouble:
            raise Refused("The file could not be written to the disk.") from trouble
        claimed = mimetypes.guess_type(name)[0] or ""
        kind = media_type(await self._store.read(kept.ref, HEAD), claimed)
        return web.json_response(
            {
                "ref": kept.ref.removeprefix(f"{UPLOADS}/"),
                "name": name,
                "size": kept.size,
                "media_type": kind,
                "kind": _kind(kind),
            }
        )

    async def _download(self, request: web.Request, _: Caller) -> web.StreamResponse:
        """Hand over a file, to be saved and never to be shown: it is whatever somebody or a model has made."""
        try:
            found = await self._store.find(f"{request.match_info['folder']}/{request.match_info['name']}")
        except Refused as gone:
            raise HttpError(HTTPStatus.NOT_FOUND, str(gone)) from gone
        name = safe_name(request.query.get("name", "") or request.match_info["name"])
        return web.FileResponse(
            found.path,
            headers={
                "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
                "Content-Type": "application/octet-stream",
            },
        )


def _kind(found: str) -> AttachmentKind:
    if found in PICTURES:
        return AttachmentKind.IMAGE
    return AttachmentKind.AUDIO if found.startswith("audio/") else AttachmentKind.FILE
