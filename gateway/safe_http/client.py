"""A client for the public web, which fetches pages. Every address is checked when its socket is created."""

import ipaddress
import socket
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import aiohttp
import structlog
from aiohttp.abc import AbstractResolver
from yarl import URL

from gateway.documents.identify import DOCUMENT_TYPES
from gateway.errors import GatehouseError
from gateway.safe_http.addresses import IpAddress, is_allowed
from gateway.text import excerpt

log = structlog.get_logger()

_MAX_REDIRECTS = 5
_CHUNK_BYTES = 65_536
_PLAIN = {"", "identity"}
_COMPRESSED = {"gzip", "x-gzip", "deflate"}
_ANY_HEADER = 32 + zlib.MAX_WBITS
"""Makes zlib accept both gzip and zlib headers."""
_HEADERS = {
    "User-Agent": "Mozilla/5.0 (compatible; Gatehouse)",
    "Accept": "text/html,text/*;q=0.9,*/*;q=0.5",
    "Accept-Encoding": "gzip, deflate",
}


class FetchFailed(GatehouseError):
    pass


class NotPublic(OSError):
    """Raised instead of creating a socket, so nothing is sent. aiohttp wraps it into its own error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    url: str
    """The address after all redirects."""
    media_type: str
    charset: str | None
    body: bytes
    is_cut: bool
    etag: str = ""
    """The version of the content, as the server names it."""
    is_unchanged: bool = False
    """The content still has the version that was asked about, so there is no body."""


async def fetch(
    url: str,
    *,
    max_bytes: int,
    max_document_bytes: int = 0,
    etag: str = "",
    is_allowed: Callable[[IpAddress], bool] = is_allowed,
    resolver: AbstractResolver | None = None,
) -> Page:
    """Get `url` and follow redirects. Raises `FetchFailed` with a sentence. The caller sets the deadline.

    A document may have `max_document_bytes`, if that is more than `max_bytes`: only whole ones can be read. With an
    `etag`, the server need not send the content again if it has this version.
    """
    target = parse_url(url)
    headers = {**_HEADERS, "If-None-Match": etag} if etag else _HEADERS
    async with open_session(is_allowed, resolver, headers) as session:
        for _ in range(_MAX_REDIRECTS + 1):
            found = await _get(session, target, max_bytes, max_document_bytes)
            if isinstance(found, Page):
                return found
            target = parse_url(found, target)
    raise FetchFailed(f"{url} redirects more than {_MAX_REDIRECTS} times.")


def open_session(
    is_allowed: Callable[[IpAddress], bool], resolver: AbstractResolver | None, headers: Mapping[str, str]
) -> aiohttp.ClientSession:
    """Return a session that connects only to addresses that are allowed. A connection to others raises `NotPublic`.

    It reuses no connection, uses no proxy of the environment, sends no cookies, and leaves responses compressed.
    """

    # The check is here, and not where the name is resolved: a name could resolve to another address the second time.
    def open_socket(info: tuple[int, int, int, str, tuple[object, ...]]) -> socket.socket:
        family, kind, protocol, _, place = info
        if not is_allowed(ipaddress.ip_address(str(place[0]).partition("%")[0])):
            raise NotPublic
        made = socket.socket(family, kind, protocol)
        made.setblocking(False)  # noqa: FBT003 - it takes no name.
        return made

    connector = aiohttp.TCPConnector(
        socket_factory=open_socket, resolver=resolver, use_dns_cache=False, force_close=True, limit=4
    )
    return aiohttp.ClientSession(
        connector=connector,
        headers=headers,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,  # A zip bomb would be unpacked at once.
        trust_env=False,
        timeout=aiohttp.ClientTimeout(total=None),
    )


def parse_url(url: str, base: URL | None = None) -> URL:
    """Return an address of the web. Raises `FetchFailed` for anything else."""
    try:
        target = URL(url.strip()) if base is None else base.join(URL(url))
        host = target.host
    except ValueError as error:
        raise FetchFailed("That is not a web address.") from error
    if target.scheme not in {"http", "https"} or not host:
        raise FetchFailed("Only addresses that start with http:// or https:// can be fetched.")
    if target.user is not None or target.password is not None:
        raise FetchFailed("Addresses that contain a user name or a password are not fetched.")
    return target.with_fragment(None)


async def _get(session: aiohttp.ClientSession, target: URL, max_bytes: int, max_document_bytes: int) -> Page | str:
    """Return the page, or the address that it redirects to."""
    try:
        async with session.get(target, allow_redirects=False) as response:
            if response.status in {301, 302, 303, 307, 308}:
                return response.headers.get("Location", "")
            if response.status >= 400:  # noqa: PLR2004 - HTTP errors start here.
                raise FetchFailed(f"The server answered {response.status} {response.reason or ''}".rstrip() + ".")
            if response.content_type in DOCUMENT_TYPES:
                max_bytes = max(max_bytes, max_document_bytes)
            body, is_cut = await read_body(response, max_bytes)
            return Page(
                url=str(response.url),
                media_type=response.content_type,
                charset=response.charset,
                body=body,
                is_cut=is_cut,
                etag=response.headers.get("ETag", ""),
                is_unchanged=response.status == 304,  # noqa: PLR2004 - Not Modified.
            )
    except aiohttp.ClientConnectorDNSError as error:
        raise FetchFailed(f"There is no host {target.host}.") from error
    except aiohttp.ClientConnectorCertificateError as error:
        raise FetchFailed(f"The certificate of {target.host} is not valid.") from error
    except aiohttp.ClientConnectorError as error:
        if isinstance(error.os_error, NotPublic):
            log.warning("private_address_refused", host=excerpt(target.host or "", 200), port=target.port)
            raise FetchFailed(
                f"{target.host} is not on the public web. This machine and private networks can't be reached."
            ) from error
        raise FetchFailed(f"{target.host} cannot be reached: {error.os_error.strerror or 'no connection'}.") from error
    except (aiohttp.InvalidURL, ValueError) as error:
        raise FetchFailed("That is not a usable web address.") from error
    except (aiohttp.ClientError, OSError, zlib.error) as error:
        raise FetchFailed(f"{target.host} did not answer properly ({type(error).__name__}).") from error


async def read_body(response: aiohttp.ClientResponse, max_bytes: int) -> tuple[bytes, bool]:
    """Return the decompressed body, and whether there is more than `max_bytes` of it. Raises `FetchFailed`."""
    encoding = response.headers.get("Content-Encoding", "").strip().lower()
    if encoding not in _PLAIN | _COMPRESSED:
        raise FetchFailed(f"The page has an encoding that cannot be read ({encoding[:40]}).")
    unzip = zlib.decompressobj(_ANY_HEADER) if encoding in _COMPRESSED else None
    body = bytearray()
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        # One byte more than allowed shows that the page is longer.
        body += unzip.decompress(chunk, max_bytes + 1 - len(body)) if unzip else chunk
        if len(body) > max_bytes:
            break
    return bytes(body[:max_bytes]), len(body) > max_bytes
