"""The wire under the SDKs: their requests go by aiohttp, which takes half of the processor's time of their own way.

Both SDKs come with such a transport too, but some of aiohttp's errors pass through theirs as they are.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from ssl import SSLContext

import aiohttp
import httpx2
from yarl import URL

__all__ = ["AiohttpTransport"]

MAX_CONNECTIONS = 1000
"""More steps than that wait for one another; turns are limited long before."""
KEPT_OPEN_FOR = 60.0
MAX_HEADER_BYTES = 65_536

_KINDS: tuple[tuple[type[Exception], type[httpx2.TransportError]], ...] = (
    (aiohttp.ConnectionTimeoutError, httpx2.ConnectTimeout),
    (TimeoutError, httpx2.ReadTimeout),
    (aiohttp.ClientConnectorError, httpx2.ConnectError),
    (aiohttp.InvalidURL, httpx2.UnsupportedProtocol),
    (aiohttp.ClientConnectionError, httpx2.ReadError),
    (aiohttp.ClientError, httpx2.RemoteProtocolError),
    (OSError, httpx2.NetworkError),
)


class AiohttpTransport(httpx2.AsyncBaseTransport):
    """Made anywhere, also in a thread, where the certificates are read; its session belongs to the loop that asks."""

    def __init__(self) -> None:
        self._certificates = httpx2.create_ssl_context(trust_env=False)
        self._session: aiohttp.ClientSession | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Ask once: whoever wants to be redirected or to try again sees to that."""
        self._session = self._session or _session(self._certificates)
        with _translated():
            response = await self._session.request(
                request.method,
                URL(str(request.url), encoded=True),
                headers=request.headers,
                data=await request.aread() or None,
                allow_redirects=False,
                timeout=_timeout(request),
            )
        return httpx2.Response(response.status, headers=response.raw_headers, stream=_Body(response))

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()


class _Body(httpx2.AsyncByteStream):
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _translated():
            async for chunk in self._response.content.iter_any():
                yield chunk

    async def aclose(self) -> None:
        """Give the connection back; one whose answer was not read to its end is closed."""
        self._response.release()


def _session(certificates: SSLContext) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=MAX_CONNECTIONS, keepalive_timeout=KEPT_OPEN_FOR, ssl=certificates),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,  # The client above does that.
        max_line_size=MAX_HEADER_BYTES,
        max_field_size=MAX_HEADER_BYTES,
    )


def _timeout(request: httpx2.Request) -> aiohttp.ClientTimeout:
    """Take what the client above has said for each step; looking up the name is part of connecting."""
    seconds = request.extensions.get("timeout", {})
    return aiohttp.ClientTimeout(connect=seconds.get("connect"), sock_read=seconds.get("read"))


@contextmanager
def _translated() -> Iterator[None]:
    """Turn what aiohttp raises into what the SDKs know; each of them makes an error of its own of that."""
    try:
        yield
    except (aiohttp.ClientError, OSError) as error:  # A timeout is an OSError.
        ours = next(ours for theirs, ours in _KINDS if isinstance(error, theirs))
        raise ours(str(error) or type(error).__name__) from error
