"""Building blocks for asyncio: turn slots, retry delays, shutdown requests, and work that outlives a cancellation."""

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Protocol, Self, TypeVar


class TurnSlot:
    """Holds one permit of each semaphore and raises `TimeoutError` after `seconds`, not counting pauses.

    All turns acquire the semaphores in the same order, so they cannot deadlock. The time is that of the event loop,
    which is independent of the wall clock.
    """

    def __init__(self, seconds: float, *semaphores: asyncio.Semaphore) -> None:
        self._semaphores = semaphores
        self._seconds = seconds
        self._acquired: list[asyncio.Semaphore] = []
        self._deadline: asyncio.Timeout

    async def __aenter__(self) -> Self:
        await self._acquire()
        self._deadline = asyncio.timeout(self._seconds)
        await self._deadline.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._release()
        await self._deadline.__aexit__(kind, error, traceback)

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Release the permits and stop the time while the turn waits for a person or a download.

        After an exception inside, the permits are not acquired again.
        """
        loop = asyncio.get_running_loop()
        left = (self._deadline.when() or 0.0) - loop.time()
        self._deadline.reschedule(None)
        self._release()
        yield
        await self._acquire()
        self._deadline.reschedule(loop.time() + left)

    async def _acquire(self) -> None:
        try:
            for semaphore in self._semaphores:
                await semaphore.acquire()
                self._acquired.append(semaphore)
        except BaseException:  # Cancelled with some of the permits: others are waiting for them.
            self._release()
            raise

    def _release(self) -> None:
        while self._acquired:
            self._acquired.pop().release()


class Jitter(Protocol):
    def uniform(self, a: float, b: float, /) -> float: ...


_random = random.Random()  # noqa: S311 - not a secret


def backoff_delays(*, first: float = 0.5, cap: float = 60.0, jitter: Jitter = _random) -> Iterator[float]:
    """Yield retry delays that double up to `cap`. Each is shortened by up to half, so that clients spread out."""
    wait = first
    while True:
        yield wait * jitter.uniform(0.5, 1.0)
        wait = min(wait * 2, cap)


class ShutdownRequest:
    """A request to shut down. The first lets running work finish. The second ends the wait for it."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self._hurried = asyncio.Event()
        self.wants_restart = False

    def request(self) -> None:
        if self._requested.is_set():
            self._hurried.set()
        self._requested.set()

    def request_restart(self) -> None:
        self.wants_restart = True
        self.request()

    def is_requested(self) -> bool:
        return self._requested.is_set()

    async def wait(self) -> None:
        await self._requested.wait()

    async def wait_for(self, done: Coroutine[None, None, None], seconds: float) -> None:
        """Wait for `done`, but only until the deadline or a second request. Then cancel it."""

        async def hurried() -> None:
            await self._hurried.wait()

        async with asyncio.TaskGroup() as tasks:
            waits = {
                tasks.create_task(done, name="shutdown:waiting"),
                tasks.create_task(hurried(), name="shutdown:hurried"),
            }
            _, unfinished = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            for each in unfinished:
                each.cancel()


_T = TypeVar("_T")


async def finish_before_cancel(work: Coroutine[None, None, _T], *, grace: float | None = None) -> _T:
    """Run `work` to completion even if the caller is cancelled, then raise the cancellation.

    1. The first cancellation waits for `work`, at most `grace` seconds.
    2. When the grace is over, or on a second cancellation, `work` is cancelled too.
    """
    task = asyncio.ensure_future(work)
    # asyncio logs an exception that is never retrieved. After a cancellation only this callback retrieves it.
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        try:
            await asyncio.wait({task}, timeout=grace)
        finally:
            task.cancel()
        raise
    return task.result()
