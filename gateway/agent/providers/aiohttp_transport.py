"""Sends the SDKs' requests with aiohttp, which needs half the CPU time of their own HTTP client.

Both SDKs ship an aiohttp transport as well, but theirs lets some of aiohttp's errors through untranslated.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import aiohttp
import httpx2
from yarl import URL

MAX_CONNECTIONS = 1000
"""Further requests wait. The limit on turns is much lower."""
KEEP_ALIVE = 60.0
MAX_HEADER_BYTES = 65_536

# The first entry that matches counts, so specific errors come before their base classes.
_TRANSLATIONS: tuple[tuple[type[Exception], type[httpx2.TransportError]], ...] = (
    (aiohttp.ConnectionTimeoutError, httpx2.ConnectTimeout),
    (TimeoutError, httpx2.ReadTimeout),
    (aiohttp.ClientConnectorError, httpx2.ConnectError),
    (aiohttp.InvalidURL, httpx2.UnsupportedProtocol),
    (aiohttp.ClientConnectionError, httpx2.ReadError),
    (aiohttp.ClientError, httpx2.RemoteProtocolError),
    (OSError, httpx2.NetworkError),
)


class AiohttpTransport(httpx2.AsyncBaseTransport):
    """May be created in any thread, which reads the certificates. Its session belongs to the loop of its requests."""

    def __init__(self) -> None:
        self._certificates = httpx2.create_ssl_context(trust_env=False)
        self._session: aiohttp.ClientSession | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request, without redirects and retries."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=MAX_CONNECTIONS, keepalive_timeout=KEEP_ALIVE, ssl=self._certificates
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,  # httpx2 does that.
                max_line_size=MAX_HEADER_BYTES,
                max_field_size=MAX_HEADER_BYTES,
            )
        timeouts = request.extensions.get("timeout", {})
        with _translate_errors():
            response = await self._session.request(
                request.method,
                URL(str(request.url), encoded=True),
                headers=request.headers,
                data=await request.aread() or None,
                allow_redirects=False,
                # aiohttp's `connect` includes the DNS lookup; its `sock_connect` would not.
                timeout=aiohttp.ClientTimeout(connect=timeouts.get("connect"), sock_read=timeouts.get("read")),
            )
        return httpx2.Response(response.status, headers=response.raw_headers, stream=_Body(response))

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()


class _Body(httpx2.AsyncByteStream):
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _translate_errors():
            async for chunk in self._response.content.iter_any():
                yield chunk

    async def aclose(self) -> None:
        """Return the connection to the pool. If the response was not read to its end, aiohttp closes the connection."""
        self._response.release()


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Turn aiohttp's errors into those of httpx2, which the SDKs translate into their own."""
    try:
        yield
    except (aiohttp.ClientError, OSError) as error:  # A timeout is an OSError.
        translation = next(theirs for ours, theirs in _TRANSLATIONS if isinstance(error, ours))
        raise translation(str(error) or type(error).__name__) from error
