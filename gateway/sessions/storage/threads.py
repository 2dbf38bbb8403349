"""A thread that does what it is asked, in order. What has queued up is done, and told, in one go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")


class Reader:
    """Does one thing after the other."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sessions-reader")

    async def do(self, work: Callable[..., _T], *arguments: object) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *arguments))

    async def close(self) -> None:
        """Return once nothing is being read any more."""
        await asyncio.to_thread(self._threads.shutdown)


_PATIENCE = 0.002
"""Seconds for which finished work is held back, so that one wake-up of the event loop tells of much."""


class _Job(Generic[_T]):
    """Work, and who waits for it: an event loop, or a thread. `loop` is the one that is to be told of it."""

    __slots__ = ("_error", "_result", "_work", "loop", "waiting")

    def __init__(self, work: Callable[[], _T], waiting: asyncio.Future[_T] | Future[_T]) -> None:
        self.waiting = waiting
        self.loop = waiting.get_loop() if isinstance(waiting, asyncio.Future) else None
        self._work = work
        self._result: _T
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._result = self._work()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to the one who waits.
            self._error = error
        if self.loop is None:
            self.tell()

    def tell(self) -> None:
        if self.waiting.done():
            return  # Whoever waited was cancelled; the work is done all the same.
        if self._error is not None:
            self.waiting.set_exception(self._error)
        else:
            self.waiting.set_result(self._result)


class _Entrusted:
    """Work that nobody waits for. `loop` is to be told of it only when it fails."""

    __slots__ = ("_error", "_on_trouble", "_own_loop", "_work", "loop")

    def __init__(self, work: Callable[[], object], on_trouble: Callable[[Exception], None]) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._own_loop = asyncio.get_running_loop()
        self._work = work
        self._on_trouble = on_trouble
        self._error: Exception

    def run(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - whatever it is, somebody is told of it.
            self._error, self.loop = error, self._own_loop

    def tell(self) -> None:
        self._on_trouble(self._error)


_Any = _Job[Any] | _Entrusted  # Any: jobs differ in what they return.


class Worker:
    """Its queue holds what is on its way to the disk; `SessionManager` bounds that."""

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[_Any | None] = SimpleQueue()
        self._is_stopped = False
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], _T]) -> asyncio.Future[_T]:
        """Ask for `work` from an event loop. It is done even when the one who waits for it is cancelled."""
        self._insist_on_running()
        future: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self._queue.put(_Job(work, future))
        return future

    def entrust(self, work: Callable[[], object], on_trouble: Callable[[Exception], None]) -> None:
        """Ask for `work` from an event loop, which hears of it only when it fails."""
        self._insist_on_running()
        self._queue.put(_Entrusted(work, on_trouble))

    def call(self, work: Callable[[], _T]) -> _T:
        """Have `work` done, from any other thread, and wait for it."""
        self._insist_on_running()
        future: Future[_T] = Future()
        self._queue.put(_Job(work, future))
        return future.result()

    def stop(self) -> None:
        """End once everything asked for is done."""
        self._is_stopped = True
        self._queue.put(None)
        self._thread.join()

    def _insist_on_running(self) -> None:
        if self._is_stopped:
            raise RuntimeError("the sessions have been closed")

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            done, job = self._work_off(job)
            _tell(done)
            if job is None:
                return

    def _work_off(self, job: _Any) -> tuple[list[_Any], _Any | None]:
        """Do `job` and what has queued up behind it; return what was done, and the last job, or None to end."""
        done: list[_Any] = []
        until = monotonic() + _PATIENCE
        following: _Any | None = job
        while following is not None:
            following.run()
            done.append(following)
            if monotonic() > until:
                break
            try:
                following = self._queue.get_nowait()
            except Empty:
                break
        return done, following


def _tell(done: list[_Any]) -> None:
    """Wake each event loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Any]] = {}
    for job in done:
        if job.loop is not None:
            by_loop.setdefault(job.loop, []).append(job)
    for loop, jobs in by_loop.items():
        with suppress(RuntimeError):  # The loop was closed: nobody waits any more.
            loop.call_soon_threadsafe(_tell_all, jobs)


def _tell_all(jobs: list[_Any]) -> None:
    for job in jobs:
        job.tell()
