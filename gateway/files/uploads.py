"""HTTP routes of the chat page: upload files for a message, and download files of an answer."""

import mimetypes
from collections.abc import Callable
from datetime import datetime, timedelta
from http import HTTPStatus
from secrets import token_hex
from urllib.parse import quote

from aiohttp import web

from gateway.contract import Access, AttachmentKind, Caller, Route
from gateway.errors import Refused
from gateway.files.identify import HEAD, PICTURES, media_type, safe_name
from gateway.files.store import UPLOADS, FileStore, TooLarge
from gateway.http.responses import HttpError
from gateway.text.plain import in_bytes

UNSENT_KEPT_FOR = timedelta(days=1)
_BLOCK_SIZE = 1 << 16


class FileRoutes:
    """`max_bytes` is called for each upload, because a reload can change it."""

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
        """Delete uploads that were never sent."""
        await self._store.drop_older(UPLOADS, (self._now() - UNSENT_KEPT_FOR).timestamp())

    async def _upload(self, request: web.Request, _: Caller) -> web.StreamResponse:
        """Store the body as a file. The answer has the fields of an attachment for the next message."""
        limit = self._max_bytes()
        name = safe_name(request.query.get("name", ""))
        sentence = f"The file is too large. The limit is {in_bytes(limit)}."
        if (request.content_length or 0) > limit:
            raise HttpError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, sentence)
        try:
            kept = await self._store.keep(
                UPLOADS, f"{token_hex(16)}-{name}", request.content.iter_chunked(_BLOCK_SIZE), limit=limit
            )
        except TooLarge:
            raise HttpError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, sentence) from None
        except OSError as error:
            raise Refused("The file couldn't be written to the disk.") from error
        claimed = mimetypes.guess_type(name)[0] or ""
        kind = media_type(await self._store.read(kept.ref, HEAD), claimed)
        attachment_kind = AttachmentKind.AUDIO if kind.startswith("audio/") else AttachmentKind.FILE
        if kind in PICTURES:
            attachment_kind = AttachmentKind.IMAGE
        return web.json_response(
            {
                "ref": kept.ref.removeprefix(f"{UPLOADS}/"),
                "name": name,
                "size": kept.size,
                "media_type": kind,
                "kind": attachment_kind,
            }
        )

    async def _download(self, request: web.Request, _: Caller) -> web.StreamResponse:
        """Send a file as a download. The browser must not show it, because its content is not trusted."""
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
