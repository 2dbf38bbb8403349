"""How often a bot may log in to Discord's gateway: a bot that does so without end loses its token."""

from collections import deque
from collections.abc import Callable
from time import monotonic

__all__ = ["Identifies"]

AT_MOST = 20
WINDOW = 3600.0


class Identifies:
    """Counts logins over all of a channel's runs. A connection that is resumed is no login."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._times: deque[float] = deque(maxlen=AT_MOST)

    @property
    def are_new(self) -> bool:
        """Whether there has been none yet."""
        return not self._times

    def pause(self) -> float:
        """Return the seconds until the next is allowed."""
        if len(self._times) < AT_MOST:
            return 0.0
        return max(0.0, self._times[0] + WINDOW - self._clock())

    def count(self) -> None:
        self._times.append(self._clock())
