"""Whether the wall clock can be believed: a machine may start with a wrong one, and have it put right later."""

from datetime import datetime

__all__ = ["Steadiness"]


class Steadiness:
    """The wall clock is steady once it has gone along with the monotonic one for `needed` seconds."""

    def __init__(self, *, needed: float = 3600.0, tolerance: float = 60.0) -> None:
        self._needed = needed
        self._tolerance = tolerance
        self._last: tuple[datetime, float] | None = None
        self._since = 0.0

    def look(self, wall: datetime, monotonic: float) -> bool:
        """Compare the clocks, some time after the last look; tell whether the wall clock is steady by now."""
        if self._last is None or self._drift(wall, monotonic) > self._tolerance:
            self._since = monotonic
        self._last = wall, monotonic
        return monotonic - self._since >= self._needed

    def _drift(self, wall: datetime, monotonic: float) -> float:
        assert self._last is not None, "there is no drift before the second look"  # noqa: S101 - for mypy and the reader
        was, then = self._last
        return abs((wall - was).total_seconds() - (monotonic - then))
