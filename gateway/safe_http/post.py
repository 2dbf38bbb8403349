"""Posts to addresses that a program names: only public ones with HTTPS, and those that the configuration lists."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus

import aiohttp
import structlog
from aiohttp.abc import AbstractResolver
from yarl import URL

from gateway.errors import Transient, Undeliverable
from gateway.safe_http.addresses import IpAddress, is_allowed
from gateway.safe_http.client import FetchFailed, NotPublic, open_session, parse_url
from gateway.text import excerpt

log = structlog.get_logger()

TIMEOUT = 30.0
"""Seconds for the whole request."""
MAX_RETRY_AFTER = 3600.0
"""Seconds. A server that asks for a longer pause is asked again after this one."""
_TRY_AGAIN = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}


async def post(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    hosts: Collection[str] = (),
    is_allowed: Callable[[IpAddress], bool] = is_allowed,
    resolver: AbstractResolver | None = None,
) -> None:
    """Post `body`, and return once the server has accepted it. Implements `gateway.contract.Post`.

    Redirects are not followed, and nothing of the response but its status and `Retry-After` is read.
    """
    try:
        target = parse_url(url)
    except FetchFailed as invalid:
        raise Undeliverable(str(invalid)) from invalid
    name = excerpt(target.host or "", 200)
    is_listed = _is_listed(target, hosts)
    if target.scheme != "https" and not is_listed:
        raise Undeliverable(f"{name} is not called without HTTPS, because it is not a listed host.")
    checked = (lambda _: True) if is_listed else is_allowed
    try:
        async with (
            asyncio.timeout(TIMEOUT),
            open_session(checked, resolver, {"User-Agent": "Gatehouse"}) as session,
            session.post(target, data=body, headers=dict(headers), allow_redirects=False) as response,
        ):
            status, wait = response.status, retry_after(response.headers.get("Retry-After", ""))
    except TimeoutError as late:
        raise Transient(f"{name} didn't answer within {TIMEOUT:g} seconds.", may_have_arrived=True) from late
    except aiohttp.ClientConnectorError as error:
        if isinstance(error.os_error, NotPublic):
            log.warning("private_address_refused", host=name, port=target.port)
            raise Undeliverable(f"{name} is not on the public web, and not a listed host.") from error
        raise Transient(f"{name} cannot be reached ({type(error).__name__}).") from error
    except (aiohttp.InvalidURL, ValueError) as error:
        raise Undeliverable("That is not a usable web address.") from error
    except (aiohttp.ClientError, OSError) as error:
        raise Transient(f"{name} did not answer properly ({type(error).__name__}).", may_have_arrived=True) from error
    if status in _TRY_AGAIN or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise Transient(f"{name} answered {status}.", retry_after=wait)
    if not HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
        raise Undeliverable(f"{name} refused it with status {status}.")


def _is_listed(target: URL, hosts: Collection[str]) -> bool:
    host = (target.raw_host or "").lower()
    name = f"[{host}]" if ":" in host else host
    return name in hosts or f"{name}:{target.port}" in hosts


def retry_after(value: str) -> float | None:
    """Return the seconds that a server asks to wait, from a number or a date."""
    if value.isascii() and value.isdecimal():
        return min(float(value[:10]), MAX_RETRY_AFTER)
    try:
        wait = (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds()
    except (TypeError, ValueError, OverflowError):  # No date, or one without a time zone or with an absurd one.
        return None
    return min(max(wait, 0.0), MAX_RETRY_AFTER)
