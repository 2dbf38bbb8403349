"""What a turn is allowed while it runs: a place among the turns that run at the same time, and so much time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

__all__ = ["Allowance"]


class Allowance:
    """Inside it, a turn has its place, and `TimeoutError` is raised after `seconds`, pauses not counted.

    Time is that of the event loop, which no change of the clock touches.
    """

    def __init__(self, places: asyncio.Semaphore, seconds: float) -> None:
        self._places = places
        self._seconds = seconds
        self._has_place = False
        self._deadline = asyncio.timeout(None)

    async def __aenter__(self) -> Self:
        await self._take_place()
        await self._deadline.__aenter__()
        self._go_on(self._seconds)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._has_place:
            self._places.release()
        await self._deadline.__aexit__(kind, error, traceback)

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Leave the place to others and stop the time; what raises inside does not wait for a place again."""
        left = (self._deadline.when() or 0.0) - asyncio.get_running_loop().time()
        self._deadline.reschedule(None)
        self._has_place = False
        self._places.release()
        yield
        await self._take_place()
        self._go_on(left)

    async def _take_place(self) -> None:
        await self._places.acquire()
        self._has_place = True

    def _go_on(self, seconds: float) -> None:
        self._deadline.reschedule(asyncio.get_running_loop().time() + seconds)
