"""Asks the search engine, and says in one sentence why it did not answer."""

import asyncio
import time
from http import HTTPStatus
from math import ceil

import msgspec
import structlog

from config import SearchEngine, SearchSettings
from gateway.conversation import Json
from gateway.errors import GatehouseError
from gateway.safe_http.client import FetchFailed
from gateway.safe_http.json_api import ApiResponse, call_api, is_redirect
from gateway.web_search.engines import NoResultList, SearchResult, make_request, read_results

MAX_BYTES = 2_000_000
"""The largest answer that is read."""

_REJECTED_BY_BRAVE = b"SUBSCRIPTION_TOKEN_INVALID"
_OVER_THE_PLAN = {432, 433}
"""Tavily's own statuses: the limit of the plan, and that of the account's budget."""
_OPERATOR = "Only the operator can fix that, so go on without a search."

log = structlog.get_logger()


class SearchFailed(GatehouseError):
    """Its text is a sentence for the model."""


class SearchKeyRejected(SearchFailed):
    """The engine does not accept the API key, or a header that stands for one."""


async def search(settings: SearchSettings, query: str) -> list[SearchResult]:
    """Return the results for `query`, best first. Raises `SearchFailed`, and logs the reason."""
    began = time.monotonic()
    status = 0
    try:
        request = make_request(settings, query)
        deadline = asyncio.timeout(settings.timeout)
        try:
            async with deadline:
                response = await call_api(
                    request.url,
                    headers=request.headers,
                    body=request.body,
                    max_bytes=MAX_BYTES,
                    is_own=settings.url is not None,
                )
        except TimeoutError as late:
            if not deadline.expired():
                raise
            raise SearchFailed(f"The search engine did not answer within {settings.timeout:g} seconds.") from late
        except FetchFailed as failure:
            raise SearchFailed(f"The search failed: {failure}") from failure
        status = response.status
        _check_status(settings, response)
        results = await asyncio.to_thread(_read, settings, response)
    except SearchKeyRejected as rejection:
        log.error("search_key_rejected", engine=str(settings.engine), status=status, reason=str(rejection))  # noqa: TRY400 - no bug, and its frames hold the key.
        raise
    except SearchFailed as failure:
        log.warning("search_failed", engine=str(settings.engine), status=status, reason=str(failure))
        raise
    took_ms = round((time.monotonic() - began) * 1000, 1)
    log.info("search_answered", engine=str(settings.engine), results=len(results), took_ms=took_ms)
    return results


def _check_status(settings: SearchSettings, response: ApiResponse) -> None:
    """Raise for every status but 200. The answer's own text is not shown: it may quote the request."""
    status = response.status
    if status == HTTPStatus.OK:
        return
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        wait = f"Try again in {ceil(response.retry_after)} seconds" if response.retry_after else "Try again later"
        raise SearchFailed(f"The search engine allows no more searches at the moment. {wait}.")
    if status in _OVER_THE_PLAN and settings.engine is SearchEngine.TAVILY:
        raise SearchFailed(f"The plan of the search engine's account is used up. {_OPERATOR}")
    if status == HTTPStatus.FORBIDDEN and settings.engine is SearchEngine.SEARXNG:
        # https://docs.searxng.org/admin/settings/settings_search.html
        raise SearchFailed(
            "The search engine refused to answer in JSON: `json` is missing in search.formats of its settings.yml, or "
            f"its limiter blocks this machine. {_OPERATOR}"
        )
    is_rejected = status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
    # Brave answers 422 instead of 401.
    if is_rejected or (settings.engine is SearchEngine.BRAVE and _REJECTED_BY_BRAVE in response.body):
        key = "API key" if settings.api_key is not None else "access"
        raise SearchKeyRejected(f"The search engine rejected the {key} of this gateway (status {status}). {_OPERATOR}")
    if is_redirect(status):
        raise SearchFailed(f"The search engine redirects to another address, which is not followed. {_OPERATOR}")
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise SearchFailed(f"The search engine is out of order (status {status}). Try again later.")
    raise SearchFailed(f"The search engine did not accept the search (status {status}). Try other words.")


def _read(settings: SearchSettings, response: ApiResponse) -> list[SearchResult]:
    if response.is_cut:
        raise SearchFailed(f"The answer of the search engine is larger than {MAX_BYTES // 1_000_000} MB.")
    try:
        answer: Json = msgspec.json.decode(response.body)
        return read_results(settings, answer)
    except NoResultList as missing:
        raise SearchFailed(
            f"The answer of the search engine has no list of results at {missing!s}. {_OPERATOR}"
        ) from missing
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        kind = "an HTML page" if response.body.lstrip()[:1] == b"<" else "something else"
        raise SearchFailed(f"The search engine answered with {kind} instead of JSON. {_OPERATOR}") from error
