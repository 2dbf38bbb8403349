"""Remembers which events were already taken, so that a platform that repeats itself gets one answer."""

from collections import OrderedDict
from collections.abc import Callable

from gateway.contract import Inbound

__all__ = ["Seen"]

KEPT_FOR = 48 * 3600.0
KEPT_AT_MOST = 200_000


class Seen:
    """A set of event ids, bounded in age and size; `clock` is monotonic seconds."""

    def __init__(self, clock: Callable[[], float], *, capacity: int = KEPT_AT_MOST) -> None:
        self._clock = clock
        self._capacity = capacity
        self._taken: OrderedDict[tuple[str, str, str], float] = OrderedDict()

    def take(self, inbound: Inbound) -> bool:
        """Mark the event as taken; False when it was taken before."""
        self._forget_old()
        key = _key(inbound)
        if key in self._taken:
            return False
        self._taken[key] = self._clock()
        return True

    def give_back(self, inbound: Inbound) -> None:
        """Forget an event that could not be taken after all, so that its repetition is welcome."""
        self._taken.pop(_key(inbound), None)

    def _forget_old(self) -> None:
        horizon = self._clock() - KEPT_FOR
        while self._taken:
            key, taken_at = next(iter(self._taken.items()))
            if taken_at >= horizon and len(self._taken) < self._capacity:
                return
            del self._taken[key]


def _key(inbound: Inbound) -> tuple[str, str, str]:
    return inbound.address.channel, inbound.address.account, inbound.event_id
