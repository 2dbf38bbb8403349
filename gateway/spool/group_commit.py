"""Group commit: calls from the event loop become batches, which a thread with a connection runs as transactions."""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from gateway.database.connection import Connection
from gateway.errors import GatehouseError
from gateway.spool.errors import SpoolBroken, SpoolUnavailable
from gateway.spool.retention import Step
from gateway.spool.rows import Stats

_MAX_WAITING = 2_048
"""Calls that may wait for the writer. Further callers wait for a slot before they are queued."""

MAX_BATCH = 128
"""Jobs per transaction. Under load, the first waiters get their answer while the next batch is written."""

SLOW_COMMIT = 0.25
"""Seconds. People notice when each step of an answer takes longer."""

_T = TypeVar("_T")

OnCommitted = Callable[[BaseException | None], None]
"""Called on the event loop, before any waiter, with the error that prevented the commit, or None."""


class Job(NamedTuple):
    work: Callable[[Connection], Any]  # Any: each caller's work has its own type of answer.
    waiter: asyncio.Future[Any]  # Any: as above. Cancelling it does not take back the job.
    is_intake: bool
    """Adds new work. While the disk is full, the remaining space is for work that was accepted earlier."""
    in_transaction: bool
    on_done: OnCommitted | None
    positions: tuple[int, ...] = ()
    """In a cluster, the shards whose positions the job changes."""
    usage: tuple[tuple[str, str, str], ...] = ()
    """In a cluster, the keys of the rows of usage that the job changes."""


class Outcome(NamedTuple):
    job: Job
    answer: object = None
    error: BaseException | None = None


class BatchQueue:
    """Ordered queue from the event loop to the writer thread.

    Jobs put during one iteration of the loop wake the thread once. A wake-up costs more than most jobs, because the
    thread has to wait for the interpreter lock that the loop is holding.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._gathered: list[Job] = []
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False
        self._queue: SimpleQueue[list[Job] | None] = SimpleQueue()

    def put(self, job: Job, *, max_delay: float = 0.0) -> None:
        """Pass `job` on after this iteration of the loop, or within `max_delay` seconds, together with other jobs."""
        # `call_soon` runs after all callbacks of this iteration, so that their jobs share one wake-up.
        self._gathered.append(job)
        if max_delay:
            self._timer = self._timer or self._loop.call_later(max_delay, self._hand_over)
        elif not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._hand_over)

    def close(self) -> None:
        """Pass on the remaining jobs. `put` must not be called afterwards."""
        self._hand_over()
        self._queue.put(None)

    def take(self, timeout: float | None = None) -> list[Job]:
        """Wait, in the thread, for jobs and return all of them; an empty list after `close`.

        Raises `queue.Empty` if none comes within `timeout` seconds.
        """
        taken: list[Job] = []
        jobs = self._queue.get(timeout=timeout)
        while jobs is not None:
            taken += jobs
            try:
                jobs = self._queue.get_nowait()
            except Empty:
                return taken
        if taken:  # Closed behind these jobs: the next call has to find the end again.
            self._queue.put(None)
        return taken

    def _hand_over(self) -> None:
        self._is_due = False
        # Delayed jobs go along with this batch, so their timer is not needed any more.
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._gathered:
            self._queue.put(self._gathered)
            self._gathered = []


class GroupCommit(ABC):
    """Runs jobs in the order in which they were submitted. A refused job does not affect the others.

    Step by step:

    1. `run` queues a job, and the event loop goes on.
    2. The thread takes all queued jobs and runs them inside one transaction.
    3. COMMIT returns when the transaction is fsynced.
    4. Only then the event loop resolves the waiters. So a message is acknowledged only after it is on disk.
    """

    def __init__(self, *, on_broken: Callable[[], None]) -> None:
        self._on_broken = on_broken
        self._loop = asyncio.get_running_loop()
        self._slots = asyncio.Semaphore(_MAX_WAITING)
        self._jobs = BatchQueue()
        self._thread = Thread(target=self._serve, name="spool", daemon=True)
        self._opened: asyncio.Future[Path | None] = self._loop.create_future()
        self._busy_since: float | None = None
        self._is_closed = False
        self.trouble: SpoolUnavailable | SpoolBroken | None = None
        self.transactions = 0
        self.commit_seconds = 0.0
        """The time of all batches together, until their callers were answered."""
        self.slow_commits = 0
        self.renewed_at = 0.0
        """The monotonic time from which on the lease on a database holds for its whole duration."""

    @property
    @abstractmethod
    def has_journal(self) -> bool:
        """Whether transcript entries are journaled here, because their truth is in files."""

    def give_up(self, reason: str) -> None:
        """Refuse everything from now on, because another node may have taken over. A file has one gateway."""
        raise NotImplementedError(reason)

    @abstractmethod
    def stats(self, connection: Connection) -> Stats: ...

    @abstractmethod
    def space_steps(self) -> Iterator[Step]:
        """Yield the steps that return the space of deleted rows."""

    @abstractmethod
    async def purge(self, sessions: Sequence[str]) -> None:
        """Remove what is left of deleted rows. Copies of the spool that name one of `sessions` are deleted."""

    @abstractmethod
    async def copy_to(self, path: Path) -> None:
        """Write everything committed so far to a new private `spool.db`."""

    async def start(self) -> Path | None:
        """Open the database. Returns the path of a damaged file that was moved out of the way."""
        self._thread.start()
        try:
            return await self._opened
        except asyncio.CancelledError:
            self._jobs.close()
            raise

    async def run(
        self,
        work: Callable[[Connection], _T],
        *,
        is_intake: bool = False,
        in_transaction: bool = True,
        on_done: OnCommitted | None = None,
        max_delay: float = 0.0,
        check: Callable[[], None] | None = None,
        positions: tuple[int, ...] = (),
        usage: tuple[tuple[str, str, str], ...] = (),
    ) -> _T:
        """Run `work` in the writer thread and return its answer once the transaction is on disk.

        If the caller is cancelled after the job was queued, the job still runs. `on_done` is called in either case.
        Work outside a transaction must not change rows. `check` is called just before the job is queued, and may raise
        an error that refuses it.
        """
        try:
            await self._slots.acquire()
        except asyncio.CancelledError as cancelled:  # While waiting for a slot, so the job was never queued.
            if on_done is not None:
                on_done(cancelled)
            raise
        if self._is_closed:
            self._slots.release()
            closed = RuntimeError("the spool is closed")
            if on_done is not None:
                on_done(closed)
            raise closed
        try:
            if refusal := self._refusal():
                raise refusal
            if check is not None:
                check()
        except GatehouseError as refusal:
            self._slots.release()
            if on_done is not None:
                on_done(refusal)
            raise
        # No `await` between here and `put`: jobs are queued in the order of the calls.
        waiter: asyncio.Future[_T] = self._loop.create_future()
        self._jobs.put(Job(work, waiter, is_intake, in_transaction, on_done, positions, usage), max_delay=max_delay)
        return await waiter

    async def close(self) -> None:
        """Finish the queued jobs and close the file."""
        if not self._is_closed:
            self._is_closed = True
            self._jobs.close()
            await asyncio.to_thread(self._thread.join)

    def busy_for(self) -> float:
        """Return for how many seconds the current batch has been running. A stuck disk shows up here."""
        since = self._busy_since
        return 0.0 if since is None else monotonic() - since

    def _measure_batch(self) -> None:
        """Count the time of the current batch. Call it in the thread, when its callers are answered."""
        seconds = self.busy_for()
        self.commit_seconds += seconds
        self.slow_commits += seconds > SLOW_COMMIT

    def _refusal(self) -> SpoolUnavailable | SpoolBroken | None:
        """Return why a new job cannot even be queued, if that is so."""
        return None

    @abstractmethod
    def _serve(self) -> None:
        """Run in the writer thread: resolve `_opened`, then run the queued jobs until the queue is closed."""

    def _resolve(self, outcomes: Sequence[Outcome]) -> None:
        """Run on the event loop: pass the outcomes to the callers."""
        for job, answer, error in outcomes:
            # The waiter is scheduled before the tasks that `on_done` starts, and runs after `on_done`. So a program has
            # its response before the turn of its prompt takes the loop.
            settle(job.waiter, answer, error)
            if job.on_done is not None:
                try:
                    job.on_done(error)
                except Exception as bug:  # noqa: BLE001 - the other callers have to get their outcomes.
                    self._loop.call_exception_handler({"message": "on_done has failed", "exception": bug})
            self._slots.release()

    def _call_on_loop(self, callback: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # The loop is closed, so there are no waiters. The data is stored.
            self._loop.call_soon_threadsafe(callback, *arguments)


def run_outside_transaction(connection: Connection, jobs: Sequence[Job]) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for job in jobs:
        try:
            outcomes.append(Outcome(job, answer=job.work(connection)))
        except Exception as error:  # noqa: BLE001 - raised in `run`
            outcomes.append(Outcome(job, error=error))
    return outcomes


def all_failed(batch: Sequence[Job], error: SpoolUnavailable | SpoolBroken) -> list[Outcome]:
    # Each job gets a separate exception object, because they are raised in different tasks.
    return [Outcome(job, error=type(error)(str(error))) for job in batch]


def settle(waiter: asyncio.Future[Any], answer: object, error: BaseException | None) -> None:  # Any: as for `Job`.
    if waiter.done():  # Cancelled.
        return
    if error is None:
        waiter.set_result(answer)
    else:
        waiter.set_exception(error)
