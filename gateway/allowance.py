"""What a turn is allowed while it runs: a place among the turns that run at the same time, and so much time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

__all__ = ["Allowance"]


class Allowance:
    """Inside it, a turn has one of each kind of `places`, and `TimeoutError` is raised after `seconds` without pauses.

    Everybody takes those kinds in the same order, so nobody waits for ever. Time is that of the event loop, which no
    change of the clock touches.
    """

    def __init__(self, seconds: float, *places: asyncio.Semaphore) -> None:
        self._places = places
        self._seconds = seconds
        self._taken: list[asyncio.Semaphore] = []
        self._deadline: asyncio.Timeout

    async def __aenter__(self) -> Self:
        try:
            await self._take_places()
        except BaseException:
            self._leave_places()
            raise
        self._deadline = asyncio.timeout(self._seconds)
        await self._deadline.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave_places()
        await self._deadline.__aexit__(kind, error, traceback)

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Leave the places to others and stop the time; what raises inside does not wait for them again."""
        left = (self._deadline.when() or 0.0) - asyncio.get_running_loop().time()
        self._deadline.reschedule(None)
        self._leave_places()
        yield
        await self._take_places()
        self._deadline.reschedule(asyncio.get_running_loop().time() + left)

    async def _take_places(self) -> None:
        for place in self._places:
            await place.acquire()
            self._taken.append(place)

    def _leave_places(self) -> None:
        while self._taken:
            self._taken.pop().release()
