"""The rate limit: how many messages a minute one person may send."""

import time
from collections.abc import Callable
from enum import StrEnum

from msgspec import Struct

from gateway.access.guests import Person
from gateway.bounded import BoundedDict

MAX_PEOPLE = 10_000
"""People whose rate is known. Beyond that, the person who has been silent for longest gets a fresh allowance."""
STOP_RESERVE = 5
"""Extra messages for `/stop`, so that a person who has sent too much can still stop it."""
MINUTE = 60.0


class RateCheck(StrEnum):
    ALLOWED = "allowed"
    LIMITED = "limited"
    """Over the limit, and not notified within the last minute."""
    LIMITED_AGAIN = "limited again"
    """Over the limit, and notified already."""


class _Bucket(Struct):
    tokens: float
    filled_at: float
    written_at: float
    notified_at: float | None = None


class RateLimiter:
    """A token bucket for each person."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets = BoundedDict[Person, _Bucket](MAX_PEOPLE)

    def check(self, person: Person, *, per_minute: int, is_stop: bool = False, age: float = 0.0) -> RateCheck:
        """Count one message. A burst of `per_minute` is allowed, and the same number each minute; 0 means no limit.

        `age` says how many seconds ago the message was written: messages that arrive late, all at once, were not
        written all at once.
        """
        if per_minute == 0:
            return RateCheck.ALLOWED
        now = self._clock()
        written_at = now - age
        bucket = self._buckets.setdefault(person, _Bucket(tokens=per_minute, filled_at=now, written_at=written_at))
        self._buckets.move_to_end(person)
        # The bucket fills by the time that has passed here or between the writing of two messages, whichever is more.
        # `written_at` moves by the same amount, so no span of time counts twice.
        passed = max(now - bucket.filled_at, written_at - bucket.written_at)
        bucket.tokens = min(per_minute, bucket.tokens + passed * per_minute / MINUTE)
        bucket.filled_at = now
        bucket.written_at += passed
        # A /stop may overdraw the bucket.
        if bucket.tokens >= (1 - STOP_RESERVE if is_stop else 1):
            bucket.tokens -= 1
            return RateCheck.ALLOWED
        if bucket.notified_at is not None and now - bucket.notified_at < MINUTE:
            return RateCheck.LIMITED_AGAIN
        bucket.notified_at = now
        return RateCheck.LIMITED
