"""Building blocks for asyncio: turn slots, keyed locks, backoff, shutdown, shielded work, pipes, a worker thread."""

import asyncio
import concurrent.futures
import os
import random
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Event, Thread
from time import monotonic
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, TypeVar


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
        await self._deadline.__aexit__(kind, error, traceback)  # Turns the cancellation into a TimeoutError.

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


class KeyedLocks:
    """A lock for each key. It takes memory only while it is held, and waiters get it in the order in which they came.

    A `WeakValueDictionary` of `asyncio.Lock` does the same with many more calls, and each message needs three locks.
    """

    def __init__(self) -> None:
        self._waiters: dict[str, deque[asyncio.Future[None]]] = {}

    async def acquire(self, key: str) -> None:
        waiters = self._waiters.get(key)
        if waiters is None:
            self._waiters[key] = deque()
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # `release` has given it the lock in the same iteration of the loop.
                self.release(key)
            raise

    def release(self, key: str) -> None:
        """Pass the lock on to the next waiter that was not cancelled."""
        waiters = self._waiters[key]
        while waiters:
            turn = waiters.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._waiters[key]

    def __len__(self) -> int:
        """Return how many locks are held."""
        return len(self._waiters)


class Jitter(Protocol):
    def uniform(self, a: float, b: float, /) -> float: ...


_random = random.Random()  # noqa: S311 - not a secret


def backoff_delays(*, first: float = 0.5, cap: float = 60.0, jitter: Jitter = _random) -> Iterator[float]:
    """Yield retry delays that double up to `cap`. Each is shortened by up to half, so that clients spread out."""
    wait = first
    while True:
        yield wait * jitter.uniform(0.5, 1.0)
        wait = min(wait * 2, cap)


_T = TypeVar("_T")


class ShutdownRequested(Exception):
    """A shutdown was requested before the daemon had started. The process ends without an error."""


class ShutdownRequest:
    """A request to shut down. The first lets running work finish. The second ends the wait for it."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self._forced = asyncio.Event()
        self.wants_restart = False

    def request(self) -> None:
        if self._requested.is_set():
            self._forced.set()
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

        async def forced() -> None:
            await self._forced.wait()

        async with asyncio.TaskGroup() as tasks:
            waits = {
                tasks.create_task(done, name="shutdown:waiting"),
                tasks.create_task(forced(), name="shutdown:forced"),
            }
            # The task group waits for the cancelled ones, so that none is left running.
            _, unfinished = await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            for each in unfinished:
                each.cancel()

    async def interrupts(self, work: Coroutine[None, None, _T]) -> _T:
        """Return the result of `work`. A request cancels it, and raises `ShutdownRequested`."""
        task, request = asyncio.ensure_future(work), asyncio.ensure_future(self.wait())
        try:
            await asyncio.wait({task, request}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (task, request):
                each.cancel()
            await asyncio.wait({task, request})
        if task.cancelled():
            raise ShutdownRequested
        return task.result()


async def finish_before_cancel(work: Coroutine[None, None, _T], *, grace: float | None = None) -> _T:
    """Run `work` to completion even if the caller is cancelled, then raise the cancellation.

    1. The first cancellation waits for `work`, at most `grace` seconds.
    2. When the grace is over, or on a second cancellation, `work` is cancelled too.
    """
    loop = asyncio.get_running_loop()
    task, has_ended = loop.create_task(work), loop.create_future()

    def end(ended: asyncio.Task[_T]) -> None:
        # asyncio logs an exception that is never retrieved. After a cancellation only this line retrieves it.
        ended.cancelled() or ended.exception()
        if not has_ended.done():
            has_ended.set_result(None)

    task.add_done_callback(end)
    try:
        await has_ended
    except asyncio.CancelledError:
        try:
            await asyncio.wait({task}, timeout=grace)
        finally:
            task.cancel()
        raise
    return task.result()


async def in_daemon_thread(name: str, work: Callable[[], _T]) -> _T:
    """Run blocking work in a thread of its own. If the caller is cancelled, the process can end in the middle of it.

    asyncio waits at its end for the threads of `asyncio.to_thread`.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_T] = loop.create_future()

    def run() -> None:
        result: Any = None  # Any: it is of no type after an error.
        error: BaseException | None = None
        try:
            result = work()
        except BaseException as failure:  # noqa: BLE001 - it belongs to the caller, not to this thread.
            error = failure
        with suppress(RuntimeError):  # The loop is closed, so there is no waiter.
            loop.call_soon_threadsafe(_resolve, future, result, error)

    Thread(target=run, name=name, daemon=True).start()
    return await future


REPORT_DELAY = 0.002
"""Seconds for which a busy worker thread may hold back outcomes, so that one wake-up of the event loop reports many."""
POST_DELAY = 0.05
"""Seconds for which posted work may wait in a worker thread, so that one wake-up of the thread runs many."""


async def wait_for_any(*events: asyncio.Event) -> None:
    """Wait until one of the events is set."""
    if len(events) == 1:
        await events[0].wait()
        return
    async with asyncio.TaskGroup() as group:
        waits = [group.create_task(event.wait(), name="wait_for_any") for event in events]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for each in waits:
            each.cancel()


async def open_output_pipe(limit: int) -> tuple[asyncio.StreamReader, asyncio.ReadTransport, int]:
    """Open a pipe for the output of a process. Return its reader, the transport to close, and the end for the process.

    asyncio's own pipe would keep `wait` from returning while any process holds it open, also after the program has
    ended. `limit` is that of the reader.
    """
    source, sink = os.pipe()
    reader = asyncio.StreamReader(limit=limit)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(source, "rb", buffering=0)
    )
    return reader, transport, sink


class _ThreadJob(NamedTuple):
    work: Callable[[], Any]  # Any: jobs differ in their results.
    on_done: Callable[[Any, BaseException | None], None]
    loop: asyncio.AbstractEventLoop | None
    """Where `on_done` is called; None: in the worker thread."""
    is_posted: bool = False
    """No caller waits for it. It may be run a little later, and only its error is reported."""


class WorkerThread:
    """Runs work in one thread, in the order in which it was submitted. The queue has no limit: callers set one."""

    def __init__(self, name: str, *, post_delay: float = POST_DELAY) -> None:
        self._post_delay = post_delay
        self._queue: SimpleQueue[_ThreadJob | None] = SimpleQueue()
        self._is_stopped = False
        self._is_awaited = Event()
        """Set when a caller has started to wait for the queue."""
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[..., _T], *arguments: object) -> asyncio.Future[_T]:
        """Run `work(*arguments)` and return a future of its result. Cancelling the future does not stop the work."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()
        self._put(_ThreadJob(partial(work, *arguments), partial(_resolve, future), loop))
        return future

    def post(self, work: Callable[[], object], on_error: Callable[[BaseException], None]) -> None:
        """Run `work` soon, without waiting for it. `on_error` is called on the event loop if it raises."""
        self._put(_ThreadJob(work, partial(_report_error, on_error), asyncio.get_running_loop(), is_posted=True))

    def call(self, work: Callable[[], _T]) -> _T:
        """Run `work` and wait for its result. Call this from another thread, not from an event loop."""
        future: concurrent.futures.Future[_T] = concurrent.futures.Future()
        self._put(_ThreadJob(work, partial(_resolve, future), None))
        return future.result()

    def stop(self) -> None:
        """Finish the submitted work, then end the thread. This blocks."""
        self._is_stopped = True
        self._queue.put(None)
        self._is_awaited.set()
        self._thread.join()

    def _put(self, job: _ThreadJob) -> None:
        if self._is_stopped:
            raise RuntimeError(f"the thread {self._thread.name} has been stopped")
        self._queue.put(job)
        if not job.is_posted:
            self._is_awaited.set()

    def _run(self) -> None:
        is_running = True
        while is_running:
            job = self._queue.get()
            if job is not None and job.is_posted and self._queue.empty():
                # Wait for more: a wake-up of this thread costs more than most posted work.
                self._is_awaited.wait(self._post_delay)
            # A job is queued before the event is set. So a job whose event is cleared here is in the batch.
            self._is_awaited.clear()
            is_running = self._run_batch(job)

    def _run_batch(self, job: _ThreadJob | None) -> bool:
        """Run `job` and the jobs that have queued up behind it, then report them. Return False to end the thread."""
        reports: defaultdict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = defaultdict(list)
        deadline = monotonic() + REPORT_DELAY
        while job is not None:
            result, error = None, None
            try:
                result = job.work()
            except BaseException as failure:  # noqa: BLE001 - it belongs to the caller, not to this thread.
                error = failure
            if job.loop is None:
                job.on_done(result, error)
            elif error is not None or not job.is_posted:
                reports[job.loop].append(partial(job.on_done, result, error))
            if monotonic() > deadline:
                break
            try:
                job = self._queue.get_nowait()
            except Empty:
                break
        for loop, calls in reports.items():
            with suppress(RuntimeError):  # The loop is closed, so its futures have no waiters.
                loop.call_soon_threadsafe(_call_all, calls)
        return job is not None


def _report_error(on_error: Callable[[BaseException], None], _result: object, error: BaseException | None) -> None:
    if error is not None:
        on_error(error)


def _resolve(
    future: asyncio.Future[_T] | concurrent.futures.Future[_T], result: _T, error: BaseException | None
) -> None:
    if future.done():
        return  # The waiter was cancelled.
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def _call_all(calls: list[Callable[[], None]]) -> None:
    for call in calls:
        try:
            call()
        except Exception as bug:  # noqa: BLE001 - the other callers have to get their outcomes.
            report = {"message": "a report of a worker thread has failed", "exception": bug}
            asyncio.get_running_loop().call_exception_handler(report)
