"""Fetching from the public web: every hop is checked, and connected to at the very address that was checked."""

import ipaddress
import socket
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import structlog
from aiohttp.abc import AbstractResolver
from yarl import URL

from gateway.errors import GatehouseError
from gateway.safe_http.addresses import IpAddress, is_allowed
from gateway.text import excerpt

__all__ = ["FetchFailed", "Page", "fetch"]

log = structlog.get_logger()

_MAX_HOPS = 5
_CHUNK = 65_536
_PLAIN = {"", "identity"}
_ZIPPED = {"gzip", "x-gzip", "deflate"}
_HEADERS = {
    "User-Agent": "Mozilla/5.0 (compatible; Gatehouse)",
    "Accept": "text/html,text/*;q=0.9,*/*;q=0.5",
    "Accept-Encoding": "gzip, deflate",
}
_AUTO_WINDOW = 32 + zlib.MAX_WBITS


class FetchFailed(GatehouseError):
    pass


class _NotPublic(OSError):
    """Raised where a socket would be made, so that nothing is sent; it ends up in the connector's own error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    url: str
    """Where it was found in the end."""
    media_type: str
    charset: str | None
    body: bytes
    is_cut: bool


async def fetch(
    url: str,
    *,
    max_bytes: int,
    is_allowed: Callable[[IpAddress], bool] = is_allowed,
    resolver: AbstractResolver | None = None,
) -> Page:
    """Get `url`, following redirects. Raise `WebFailed` with a sentence; the caller sets the deadline."""
    target = _checked(url)
    async with _session(is_allowed, resolver) as session:
        for _ in range(_MAX_HOPS + 1):
            async with _answer(session, target) as answer:
                if answer.status not in {301, 302, 303, 307, 308}:
                    return await _page(answer, max_bytes)
                target = _checked(answer.headers.get("Location", ""), target)
    raise FetchFailed(f"{url} leads from one address to the next more than {_MAX_HOPS} times.")


def _checked(url: str, base: URL | None = None) -> URL:
    try:
        target = URL(url.strip()) if base is None else base.join(URL(url))
        host = target.host
    except ValueError as error:
        raise FetchFailed("That is not a web address.") from error
    if target.scheme not in {"http", "https"} or not host:
        raise FetchFailed("Only addresses that start with http:// or https:// can be fetched.")
    if target.user is not None or target.password is not None:
        raise FetchFailed("An address with a name or password in it is not fetched.")
    return target.with_fragment(None)


@asynccontextmanager
async def _session(
    is_allowed: Callable[[IpAddress], bool], resolver: AbstractResolver | None
) -> AsyncIterator[aiohttp.ClientSession]:
    def open_socket(info: tuple[int, int, int, str, tuple[object, ...]]) -> socket.socket:
        family, kind, protocol, _, place = info
        if not is_allowed(ipaddress.ip_address(str(place[0]).partition("%")[0])):
            raise _NotPublic
        made = socket.socket(family, kind, protocol)
        made.setblocking(False)  # noqa: FBT003 - it takes no name.
        return made

    connector = aiohttp.TCPConnector(
        socket_factory=open_socket, resolver=resolver, use_dns_cache=False, force_close=True, limit=4
    )
    async with aiohttp.ClientSession(
        connector=connector,
        headers=_HEADERS,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,  # A bomb must not go off in one piece.
        trust_env=False,
        timeout=aiohttp.ClientTimeout(total=None),
    ) as session:
        yield session


@asynccontextmanager
async def _answer(session: aiohttp.ClientSession, target: URL) -> AsyncIterator[aiohttp.ClientResponse]:
    try:
        async with session.get(target, allow_redirects=False) as answer:
            yield answer
    except aiohttp.ClientConnectorDNSError as error:
        raise FetchFailed(f"There is no host {target.host}.") from error
    except aiohttp.ClientConnectorCertificateError as error:
        raise FetchFailed(f"The certificate of {target.host} is not valid.") from error
    except aiohttp.ClientConnectorError as error:
        raise FetchFailed(_why_not_connected(error, target)) from error
    except (aiohttp.InvalidURL, ValueError) as error:
        raise FetchFailed("That is not a usable web address.") from error
    except (aiohttp.ClientError, OSError, zlib.error) as error:
        raise FetchFailed(f"{target.host} did not answer properly ({type(error).__name__}).") from error


def _why_not_connected(error: aiohttp.ClientConnectorError, target: URL) -> str:
    if isinstance(error.os_error, _NotPublic):
        log.warning("private_address_refused", host=excerpt(target.host or "", 200), port=target.port)
        return f"{target.host} is not on the public web. This machine and private networks are out of reach."
    return f"{target.host} cannot be reached: {error.os_error.strerror or 'no connection'}."


async def _page(answer: aiohttp.ClientResponse, max_bytes: int) -> Page:
    if answer.status >= 400:  # noqa: PLR2004 - as HTTP has it.
        raise FetchFailed(f"The server answered {answer.status} {answer.reason or ''}".rstrip() + ".")
    body = await _body(answer, max_bytes + 1)
    return Page(
        url=str(answer.url),
        media_type=answer.content_type,
        charset=answer.charset,
        body=body[:max_bytes],
        is_cut=len(body) > max_bytes,
    )


async def _body(answer: aiohttp.ClientResponse, limit: int) -> bytes:
    """Read at most `limit` bytes, as they are after decompression."""
    encoding = answer.headers.get("Content-Encoding", "").strip().lower()
    if encoding not in _PLAIN | _ZIPPED:
        raise FetchFailed(f"The page is encoded in a way that cannot be read ({encoding[:40]}).")
    unzip = zlib.decompressobj(_AUTO_WINDOW) if encoding in _ZIPPED else None
    body = bytearray()
    async for chunk in answer.content.iter_chunked(_CHUNK):
        body += unzip.decompress(chunk, limit - len(body)) if unzip else chunk
        if len(body) >= limit:
            break
    return bytes(body[:limit])
