"""Flushes: conversations made durable now and then, with an eye on how long that takes and when it last worked."""

from collections.abc import Callable
from time import monotonic
from typing import Protocol

__all__ = ["Flushes"]


class Flushable(Protocol):
    """What is flushed: the sessions. A failure raises nothing, and is told by `trouble`."""

    @property
    def trouble(self) -> str | None: ...

    async def flush(self) -> None: ...


class Flushes:
    """`note` hears how many seconds each flush took."""

    def __init__(
        self, sessions: Flushable, note: Callable[[float], None], clock: Callable[[], float] = monotonic
    ) -> None:
        self._sessions = sessions
        self._note = note
        self._clock = clock
        self._since: float | None = None
        self._worked_at = clock()
        self.took: float | None = None
        """Seconds that the last one took; None before the first."""
        self.failures = 0

    async def flush(self) -> None:
        started = self._since = self._clock()
        try:
            await self._sessions.flush()
        finally:
            self._since = None
        self.took = self._clock() - started
        self._note(self.took)
        if self._sessions.trouble is None:
            self._worked_at = self._clock()
        else:
            self.failures += 1

    def age(self) -> float:
        """Return the seconds since a flush has worked, or since the start, after which all was durable."""
        return self._clock() - self._worked_at

    def busy_for(self) -> float:
        """Return for how many seconds the flush at hand has been at it: a stuck disk shows here."""
        return 0.0 if self._since is None else self._clock() - self._since
