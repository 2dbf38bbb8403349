"""Calls the Bot API over HTTP: https://core.telegram.org/bots/api#making-requests.

A call is a POST of a JSON object, or of a form if it uploads a file. The response is a JSON object.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Mapping
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import certifi
from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, FormData, TCPConnector
from msgspec import Raw, Struct
from msgspec.json import Decoder, encode
from yarl import URL

from channels.telegram.errors import BadResponse, Refusal
from channels.telegram.payloads import parse
from config import Secret
from gateway.errors import Transient, Undeliverable

PRODUCTION = "https://api.telegram.org"
CONNECT_TIMEOUT = 20
"""Shorter than the limit of a call, so that its error tells a call that never began from one that may have arrived."""
REQUEST_TIMEOUT = ClientTimeout(total=30, connect=CONNECT_TIMEOUT)
TRANSFER_TIMEOUT = ClientTimeout(total=600, connect=CONNECT_TIMEOUT)
"""For files. The core gives up much earlier; this only ends transfers that the core has abandoned."""
DNS_CACHE_SECONDS = 3600
DOWNLOAD_CHUNK = 65_536

_JSON = {"Content-Type": "application/json"}
# A proxy in front of a Bot API server gives these with a page of HTML. The server has not received the call.
_PROXY_REFUSALS = {HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.TOO_MANY_REQUESTS}


class _Parameters(Struct, frozen=True):
    """https://core.telegram.org/bots/api#responseparameters."""

    retry_after: int | None = None
    migrate_to_chat_id: int | None = None


class _Response(Struct, frozen=True):
    ok: bool
    result: Raw = Raw()
    description: str | None = None
    parameters: _Parameters | None = None


_response = Decoder(_Response)


class BotClient:
    """Calls the methods of one bot. Use it as a context manager; it connects on the first call.

    Raises `Refusal` and `BadResponse`, and aiohttp's errors as they are. Their texts may contain the token. A call
    before or after the `async with` raises `Transient`.
    """

    def __init__(self, token: Secret, base: str | None) -> None:
        self._base = (base or PRODUCTION).rstrip("/")
        self._token = token
        self._urls: dict[str, URL] = {}
        self._session: ClientSession | None = None

    async def __aenter__(self) -> Self:
        certificates: ssl.SSLContext | bool = True
        if self._base.lower().startswith("https:"):
            # Reading the certificates takes tens of milliseconds.
            certificates = await asyncio.to_thread(ssl.create_default_context, cafile=certifi.where())
        connector = TCPConnector(ssl=certificates, ttl_dns_cache=DNS_CACHE_SECONDS)
        self._session = ClientSession(connector=connector, cookie_jar=DummyCookieJar())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    @property
    def _opened(self) -> ClientSession:
        # The channel may stop while a message is being formatted. The message is sent once the channel runs again.
        if self._session is None or self._session.closed:
            raise Transient("Telegram is not connected.")
        return self._session

    async def call(self, method: str, fields: Mapping[str, object], *, limit: ClientTimeout = REQUEST_TIMEOUT) -> Raw:
        """Call a method, and return its result. Fields that are None are left out. `limit` is for the whole call."""
        given = {name: value for name, value in fields.items() if value is not None}
        return await self._post(method, encode(given), _JSON, limit)

    async def upload(self, method: str, fields: Mapping[str, object], *, field: str, path: Path, name: str) -> Raw:
        """Call a method with a file as one more field. `name` is the file's name on Telegram.

        Raises `Undeliverable` if there is no such file, and `Transient` if it cannot be read.
        """
        form = FormData(quote_fields=False)
        for other, value in fields.items():
            if value is not None:
                form.add_field(other, value if isinstance(value, str) else encode(value).decode())
        try:
            file = await asyncio.to_thread(path.open, "rb")
        except FileNotFoundError as gone:
            raise Undeliverable("The file is no longer stored.") from gone
        except OSError as error:
            raise Transient(f"The file can't be read ({error.strerror}).") from error
        with file:
            form.add_field(field, file, filename=name, content_type="application/octet-stream")
            return await self._post(method, form, None, TRANSFER_TIMEOUT)

    async def _post(
        self, method: str, data: bytes | FormData, headers: Mapping[str, str] | None, limit: ClientTimeout
    ) -> Raw:
        url = self._urls.get(method)
        if url is None:
            url = self._urls[method] = URL(f"{self._base}/bot{self._token.reveal()}/{method}")
        async with self._opened.post(url, data=data, headers=headers, timeout=limit) as http:
            content = await http.read()
        try:
            response = parse(content, _response)
        except BadResponse:
            if http.status not in _PROXY_REFUSALS:
                raise
            response = _Response(ok=False)
        if response.ok and HTTPStatus.OK <= http.status <= HTTPStatus.IM_USED:
            return response.result
        parameters = response.parameters or _Parameters()
        raise Refusal(
            http.status,
            response.description or "",
            retry_after=parameters.retry_after,
            migrate_to_chat_id=parameters.migrate_to_chat_id,
        )

    async def download(self, path: str) -> AsyncGenerator[bytes, None]:
        """Yield the content of a file. `path` is what `getFile` returned."""
        # Telegram returns the path as it is on disk, without escapes.
        url = f"{self._base}/file/bot{self._token.reveal()}/{quote(path)}"
        async with self._opened.get(url, timeout=TRANSFER_TIMEOUT, raise_for_status=True) as response:
            async for chunk in response.content.iter_chunked(DOWNLOAD_CHUNK):
                yield chunk
