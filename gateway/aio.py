"""What a turn is allowed while it runs: a place among the turns that run at the same time, and so much time."""

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Protocol, Self, TypeVar


class TurnSlot:
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


class Jitter(Protocol):
    def uniform(self, a: float, b: float, /) -> float: ...


_chance = random.Random()  # noqa: S311 - nothing here is a secret


def backoff_delays(*, first: float = 0.5, cap: float = 60.0, jitter: Jitter = _chance) -> Iterator[float]:
    """Yield waits that double up to `cap`, each shortened by up to half so that many peers do not return at once."""
    wait = first
    while True:
        yield wait * jitter.uniform(0.5, 1.0)
        wait = min(wait * 2, cap)


class ShutdownRequest:
    """Asked once, what runs may finish; asked twice, nobody waits for it."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self._hurrying = asyncio.Event()
        self.wants_restart = False

    def request(self) -> None:
        if self._asked.is_set():
            self._hurrying.set()
        self._asked.set()

    def request_restart(self) -> None:
        self.wants_restart = True
        self.request()

    def is_requested(self) -> bool:
        return self._asked.is_set()

    async def wait(self) -> None:
        """Return once somebody has asked."""
        await self._asked.wait()

    async def wait_for(self, done: Coroutine[None, None, None], seconds: float) -> None:
        """Wait for `done`, until the deadline or until asked again."""
        async with asyncio.TaskGroup() as tasks:
            waits = {
                tasks.create_task(done, name="shutdown:waiting"),
                tasks.create_task(_wait(self._hurrying), name="shutdown:hurrying"),
            }
            _, unfinished = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            for each in unfinished:
                each.cancel()


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


_T = TypeVar("_T")


async def finish_before_cancel(work: Coroutine[None, None, _T], *, grace: float | None = None) -> _T:
    """Do `work`. Cancelled meanwhile, wait for its end, at most `grace` seconds, and be cancelled then.

    Cancelled again while waiting, it gives up.
    """
    task = asyncio.ensure_future(work)
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    task.add_done_callback(partial(_tell, done))
    try:
        await done
    except asyncio.CancelledError:
        try:
            await asyncio.wait({task}, timeout=grace)
        finally:
            task.cancel()
        raise
    return task.result()


def _tell(done: asyncio.Future[None], task: asyncio.Future[_T]) -> None:
    """Tell of the end of `task`, and look at its failure: asyncio complains of one that nobody waits for any more."""
    if not task.cancelled():
        task.exception()
    if not done.done():
        done.set_result(None)
