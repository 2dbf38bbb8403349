"""A token bucket: how much a client may ask for in a while."""

import time
from collections.abc import Callable

__all__ = ["Bucket"]


class Bucket:
    """Allows `burst` at once, and `rate` a second in the long run."""

    def __init__(self, *, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._level = float(burst)
        self._filled_at = clock()

    def take(self) -> bool:
        """Take one token, or say that there is none."""
        now = self._clock()
        self._level = min(self._burst, self._level + (now - self._filled_at) * self._rate)
        self._filled_at = now
        if self._level < 1:
            return False
        self._level -= 1
        return True
