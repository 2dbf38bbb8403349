"""A histogram: how many values were at most so large, by fixed bounds."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

__all__ = ["Histogram"]


class Histogram:
    """Costs a search among a dozen numbers for each value, and stays as small as it is."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Yield each bound with how many values were at most that; the last bound is infinite."""
        return zip((*self._bounds, float("inf")), accumulate(self._counts), strict=True)

    def bound_of(self, share: float) -> float:
        """Return the least bound that this share of the values kept to; 0 when there are none."""
        enough = share * self.count
        return next((bound for bound, count in self.cumulative() if count >= enough), 0.0) if enough else 0.0
