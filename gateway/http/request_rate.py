"""The rate limit of the API: how many requests a minute one credential may send. Response headers report it."""

import math
from collections.abc import Callable
from http import HTTPStatus

from aiohttp import web
from msgspec import Struct

from gateway.bounded import BoundedDict
from gateway.http.responses import HttpError

MAX_CREDENTIALS = 4096
"""Credentials whose rate is known. Beyond that, the one that was not used for longest gets a fresh allowance."""
MINUTE = 60.0


class Allowance(Struct, frozen=True, kw_only=True):
    """How many requests a credential has left, and in how many seconds it has all of them again."""

    limit: int
    remaining: int
    reset: int

    def headers(self, *, is_openai: bool) -> dict[str, str]:
        """Return the headers of the IETF draft, and those that clients of OpenAI read."""
        found = {
            "RateLimit-Limit": str(self.limit),
            "RateLimit-Remaining": str(self.remaining),
            "RateLimit-Reset": str(self.reset),
        }
        if is_openai:
            found |= {
                "x-ratelimit-limit-requests": str(self.limit),
                "x-ratelimit-remaining-requests": str(self.remaining),
                "x-ratelimit-reset-requests": f"{self.reset}s",
            }
        return found


ALLOWANCE = web.RequestKey("allowance", Allowance)
"""What the credential of a request has left."""


class TooManyRequests(HttpError):
    def __init__(self, limit: int, retry_after: float) -> None:
        seconds = max(1, math.ceil(retry_after))
        super().__init__(
            HTTPStatus.TOO_MANY_REQUESTS,
            f"This token may send {limit} requests a minute. Try again in {seconds} seconds.",
            headers={"Retry-After": str(seconds)},
        )


class RequestRate:
    """A token bucket for each credential. `limit` returns the requests a minute, and 0 for no limit."""

    def __init__(self, limit: Callable[[], int], monotonic: Callable[[], float]) -> None:
        self._limit = limit
        self._monotonic = monotonic
        self._buckets = BoundedDict[str, tuple[float, float]](MAX_CREDENTIALS)
        """For each credential, how many requests it had left, and when."""

    def count(self, credential: str, request: web.Request) -> None:
        """Count a request, and note what is left for the headers of its response. Raises `TooManyRequests`."""
        limit = self._limit()
        if limit == 0:
            return
        now = self._monotonic()
        left, at = self._buckets.get(credential, (float(limit), now))
        left = min(limit, left + (now - at) * limit / MINUTE)
        is_allowed = left >= 1
        left -= is_allowed
        self._buckets[credential] = left, now
        reset = math.ceil((limit - left) * MINUTE / limit)
        request[ALLOWANCE] = Allowance(limit=limit, remaining=int(left), reset=reset)
        if not is_allowed:
            raise TooManyRequests(limit, (1 - left) * MINUTE / limit)
