"""HTTP routes of the chat page: upload files for a message, and download files of an answer."""

import mimetypes
from collections.abc import AsyncIterable, Callable
from datetime import datetime, timedelta
from http import HTTPStatus
from secrets import token_hex
from urllib.parse import quote

import msgspec
from aiohttp import web

from gateway.contract import Access, Attachment, AttachmentKind, Caller, Route
from gateway.errors import Refused, RefusedForNow
from gateway.files.identify import HEAD, PICTURES, RECORDINGS, UNKNOWN, media_type, safe_name
from gateway.files.store import UPLOADS, FileStore, StoredFile, TooLarge
from gateway.http.responses import HttpError
from gateway.text.plain import in_bytes

UNSENT_KEPT_FOR = timedelta(days=1)
_SWEEP_INTERVAL = timedelta(hours=1)
_BLOCK_SIZE = 1 << 16
_SHOWN = PICTURES | RECORDINGS


class FileRoutes:
    """`max_bytes` is called for each upload, because a reload can change it."""

    def __init__(self, store: FileStore, max_bytes: Callable[[], int], now: Callable[[], datetime]) -> None:
        self._store = store
        self._max_bytes = max_bytes
        self._now = now
        self._next_sweep: datetime | None = None

    def routes(self) -> list[Route]:
        return [
            Route(method="POST", path="/files", access=Access.OWNER, handle=self._upload, takes_file=True),
            Route(method="GET", path="/files/{folder}/{name}", access=Access.OWNER, handle=self._download),
        ]

    async def tidy(self) -> None:
        """Delete uploads that were never sent. The shared storage is asked once an hour."""
        now = self._now()
        before = (now - UNSENT_KEPT_FOR).timestamp()
        await self._store.drop_older(UPLOADS, before)
        if self._next_sweep is None or now >= self._next_sweep:
            self._next_sweep = now + _SWEEP_INTERVAL
            await self._store.sweep(before)

    async def _upload(self, request: web.Request, _: Caller) -> web.StreamResponse:
        """Store the body as a file. The answer has the fields of an attachment for the next message."""
        return web.json_response(msgspec.to_builtins(await self.receive(request)))

    async def receive(self, request: web.Request) -> Attachment:
        """Store the body of a request as a file, under the name in its query."""
        if (request.content_length or 0) > self._max_bytes():
            raise _too_large(self._max_bytes())
        chunks = request.content.iter_chunked(_BLOCK_SIZE)
        return await self.keep(request.query.get("name", ""), chunks)

    async def keep(self, name: str, chunks: AsyncIterable[bytes]) -> Attachment:
        """Store a file for the next message. Raises `HttpError` if it is too large."""
        name = safe_name(name)
        try:
            kept = await self._store.keep(UPLOADS, f"{token_hex(16)}-{name}", chunks, limit=self._max_bytes())
        except TooLarge as end:
            raise _too_large(end.limit) from None
        except OSError as error:
            raise RefusedForNow("The file can't be stored now. Please try again later.") from error
        return await self._describe(kept, name)

    async def find(self, ref: str, name: str) -> Attachment:
        """Return a file that was uploaded before. Raises `HttpError` if it does not exist, or was sent already."""
        gone = HttpError(HTTPStatus.UNPROCESSABLE_ENTITY, f"The file {name} was not uploaded, or was sent before.")
        if "/" in ref:
            raise gone
        try:
            found = await self._store.find(f"{UPLOADS}/{ref}")
        except RefusedForNow:
            raise
        except Refused as missing:
            raise gone from missing
        return await self._describe(found, safe_name(name))

    async def _describe(self, kept: StoredFile, name: str) -> Attachment:
        claimed = mimetypes.guess_type(name)[0] or ""
        kind = media_type(await self._store.read(kept.ref, HEAD), claimed)
        attachment_kind = AttachmentKind.AUDIO if kind.startswith("audio/") else AttachmentKind.FILE
        if kind in PICTURES:
            attachment_kind = AttachmentKind.IMAGE
        return Attachment(
            ref=kept.ref.removeprefix(f"{UPLOADS}/"), name=name, size=kept.size, media_type=kind, kind=attachment_kind
        )

    async def _download(self, request: web.Request, _: Caller) -> web.StreamResponse:
        ref = f"{request.match_info['folder']}/{request.match_info['name']}"
        return await self.send(ref, request.query.get("name", "") or request.match_info["name"], is_shown=True)

    async def send(self, ref: str, name: str, *, is_shown: bool = False) -> web.StreamResponse:
        """Send a file as a download. The browser must not open it, because its content is not trusted.

        With `is_shown`, the page may show a picture and play a recording.
        """
        try:
            found = await self._store.find(ref)
            kind = media_type(await self._store.read(ref, HEAD), "") if is_shown else UNKNOWN
        except RefusedForNow:
            raise
        except Refused as gone:
            raise HttpError(HTTPStatus.NOT_FOUND, str(gone)) from gone
        name = safe_name(name)
        return web.FileResponse(
            found.path,
            headers={
                "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
                "Content-Type": kind if kind in _SHOWN else UNKNOWN,
            },
        )


def _too_large(limit: int) -> HttpError:
    sentence = f"The file is too large. The limit is {in_bytes(limit)}."
    return HttpError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, sentence)
