"""Calls a JSON API that the configuration chooses, without following redirects: a key goes to that host alone."""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

import aiohttp
import structlog
from aiohttp.abc import AbstractResolver

from gateway.safe_http.addresses import IpAddress, is_allowed
from gateway.safe_http.client import FetchFailed, NotPublic, open_session, parse_url, read_body
from gateway.safe_http.post import retry_after
from gateway.text import excerpt

log = structlog.get_logger()

_HEADERS = {"User-Agent": "Gatehouse", "Accept": "application/json", "Accept-Encoding": "gzip, deflate"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiResponse:
    """A response with any status, also that of an error."""

    status: int
    body: bytes
    is_cut: bool
    retry_after: float | None = None
    """Seconds that the server asks to wait."""


async def call_api(
    url: str,
    *,
    headers: Mapping[str, str],
    body: bytes | None = None,
    max_bytes: int,
    is_own: bool,
    is_allowed: Callable[[IpAddress], bool] = is_allowed,
    resolver: AbstractResolver | None = None,
) -> ApiResponse:
    """Get `url`, or post `body` to it. Raises `FetchFailed` with a sentence. The caller sets the deadline.

    `is_own` means that the owner has configured the host of `url`. Only then may it have a private address.
    """
    target = parse_url(url)
    name = excerpt(target.host or "", 200)
    checked = (lambda _: True) if is_own else is_allowed
    try:
        async with (
            open_session(checked, resolver, _HEADERS) as session,
            session.request(
                "GET" if body is None else "POST", target, data=body, headers=dict(headers), allow_redirects=False
            ) as response,
        ):
            content, is_cut = await read_body(response, max_bytes)
            return ApiResponse(
                status=response.status,
                body=content,
                is_cut=is_cut,
                retry_after=retry_after(response.headers.get("Retry-After", "")),
            )
    except aiohttp.ClientConnectorDNSError as error:
        raise FetchFailed(f"There is no host {name}.") from error
    except aiohttp.ClientConnectorCertificateError as error:
        raise FetchFailed(f"The certificate of {name} is not valid.") from error
    except aiohttp.ClientConnectorError as error:
        if isinstance(error.os_error, NotPublic):
            log.warning("private_address_refused", host=name, port=target.port)
            raise FetchFailed(f"{name} has a private address.") from error
        raise FetchFailed(f"{name} cannot be reached: {error.os_error.strerror or 'no connection'}.") from error
    except (aiohttp.ClientError, OSError, ValueError, zlib.error) as error:
        raise FetchFailed(f"{name} did not answer properly ({type(error).__name__}).") from error


def is_redirect(status: int) -> bool:
    return HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST
