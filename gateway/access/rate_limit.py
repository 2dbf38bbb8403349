"""How fast one person may write: so many messages a minute, after which one polite sentence and then silence."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from gateway.access.guests import Person
from gateway.bounded import BoundedDict

__all__ = ["FloodGate", "Pace"]

REMEMBERED = 10_000
"""People whose pace is known; the one who has been quiet for longest is forgotten, and starts anew."""
RESERVE = 5
"""What is kept for stopping: one who has sent too much must be able to take it back."""
MINUTE = 60.0


class Pace(StrEnum):
    FINE = "fine"
    TOO_FAST = "too fast"
    """And they have not been told yet."""
    TOO_FAST_STILL = "too fast still"


@dataclass(slots=True)
class _Meter:
    left: float
    filled_at: float
    written_at: float
    told_at: float | None = None


class FloodGate:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._meters = BoundedDict[Person, _Meter](REMEMBERED)

    def pace(self, person: Person, *, per_minute: int, is_stop: bool = False, age: float = 0.0) -> Pace:
        """Count one message. `per_minute` may come at once, and as many a minute in the long run; 0 is no limit.

        `age` is how many seconds ago it was written: what comes late, all at once, was not written all at once.
        """
        if per_minute == 0:
            return Pace.FINE
        meter = self._meter(person, per_minute, age)
        if meter.left >= (1 - RESERVE if is_stop else 1):
            meter.left -= 1
            return Pace.FINE
        if meter.told_at is not None and self._clock() - meter.told_at < MINUTE:
            return Pace.TOO_FAST_STILL
        meter.told_at = self._clock()
        return Pace.TOO_FAST

    def _meter(self, person: Person, per_minute: int, age: float) -> _Meter:
        now = self._clock()
        written = now - age
        meter = self._meters.setdefault(person, _Meter(left=per_minute, filled_at=now, written_at=written))
        self._meters.move_to_end(person)
        passed = max(now - meter.filled_at, written - meter.written_at)
        meter.left = min(per_minute, meter.left + passed * per_minute / MINUTE)
        meter.filled_at = now
        meter.written_at += passed
        return meter
