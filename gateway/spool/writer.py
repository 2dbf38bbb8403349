"""The writer thread owns the database. Everything that is queued becomes one transaction with one fsync."""

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any, NamedTuple, TypeVar

import structlog

from gateway.spool.database import open_database, preallocate_wal, wal_path
from gateway.spool.errors import DISK_FULL_MESSAGE, Cause, SpoolBroken, SpoolFull, as_spool_error, cause_of
from gateway.spool.reserve import Reserve

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_MAX_WAITING = 2_048
"""Calls that may wait for the writer. Further callers wait for a slot before they are queued."""

_MAX_BATCH = 128
"""Jobs per transaction. Under load, the first waiters get their answer while the next batch is written."""

_CHANGES_PER_CHECKPOINT = 1_000
_WAL_LIMIT = 16 * 1024 * 1024
"""After a checkpoint SQLite reuses the WAL from its start. A WAL longer than this is truncated as well."""

_T = TypeVar("_T")

OnCommitted = Callable[[BaseException | None], None]
"""Called on the event loop, before any waiter, with the error that prevented the commit, or None."""


class _Job(NamedTuple):
    work: Callable[[sqlite3.Connection], Any]  # Any: each caller's work has its own type of answer.
    waiter: asyncio.Future[Any]  # Any: as above. Cancelling it does not take back the job.
    is_intake: bool
    """Adds new work. While the disk is full, the remaining space is for work that was accepted earlier."""
    in_transaction: bool
    on_done: OnCommitted | None


class _Outcome(NamedTuple):
    job: _Job
    answer: object = None
    error: BaseException | None = None


class _BatchQueue:
    """Ordered queue from the event loop to the writer thread.

    Jobs put during one iteration of the loop wake the thread once. A wake-up costs more than most jobs, because the
    thread has to wait for the interpreter lock that the loop is holding.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._gathered: list[_Job] = []
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False
        self._queue: SimpleQueue[list[_Job] | None] = SimpleQueue()

    def put(self, job: _Job, *, max_delay: float = 0.0) -> None:
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

    def take(self) -> list[_Job]:
        """Wait, in the thread, for jobs and return all of them; an empty list after `close`."""
        taken: list[_Job] = []
        jobs = self._queue.get()
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


class Writer:
    """Runs jobs in the order in which they were submitted. A refused job does not affect the others.

    Group commit, step by step:

    1. `run` queues a job, and the event loop goes on.
    2. The thread takes all queued jobs and runs them inside one transaction.
    3. COMMIT returns when the WAL is fsynced.
    4. Only then the event loop resolves the waiters. So a message is acknowledged only after it is on disk.
    """

    def __init__(self, path: Path, *, on_broken: Callable[[], None]) -> None:
        self._path = path
        self._wal = str(wal_path(path))
        self._on_broken = on_broken
        self._loop = asyncio.get_running_loop()
        self._slots = asyncio.Semaphore(_MAX_WAITING)
        self._jobs = _BatchQueue()
        self._thread = Thread(target=self._serve, name="spool", daemon=True)
        self._opened: asyncio.Future[Path | None] = self._loop.create_future()
        self._reserve = Reserve(path.with_name("spool.reserve"))
        self._checkpointed_at = 0
        self._busy_since: float | None = None
        self._is_closed = False
        self.trouble: SpoolFull | SpoolBroken | None = None
        self.transactions = 0

    async def start(self) -> Path | None:
        """Open the file. Returns the path of a damaged file that was moved out of the way."""
        self._thread.start()
        try:
            return await self._opened
        except asyncio.CancelledError:
            self._jobs.close()
            raise

    async def run(
        self,
        work: Callable[[sqlite3.Connection], _T],
        *,
        is_intake: bool = False,
        in_transaction: bool = True,
        on_done: OnCommitted | None = None,
        max_delay: float = 0.0,
    ) -> _T:
        """Run `work` in the writer thread and return its answer once the transaction is on disk.

        If the caller is cancelled after the job was queued, the job still runs. `on_done` is called in either case.
        Work outside a transaction must not change rows.
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
        # No `await` between here and `put`: jobs are queued in the order of the calls.
        waiter: asyncio.Future[_T] = self._loop.create_future()
        self._jobs.put(_Job(work, waiter, is_intake, in_transaction, on_done), max_delay=max_delay)
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

    def _serve(self) -> None:
        """Run in the writer thread until the queue is closed."""
        try:
            connection, damaged_file = open_database(self._path)
        except BaseException as failure:  # noqa: BLE001 - raised in `start`
            self._call_on_loop(_settle, self._opened, None, failure)
            return
        self._call_on_loop(_settle, self._opened, damaged_file, None)
        preallocate_wal(self._path)  # After the answer, because it takes a while and a start need not wait for it.
        with contextlib.closing(connection):
            while batch := self._jobs.take():
                self._busy_since = monotonic()
                # `groupby` keeps the order: a copy contains exactly the commits that were submitted before it.
                for in_transaction, group in groupby(batch, key=lambda job: job.in_transaction):
                    jobs = list(group)
                    for start in range(0, len(jobs), _MAX_BATCH):
                        run = self._commit if in_transaction else _run_outside_transaction
                        self._call_on_loop(self._resolve, run(connection, jobs[start : start + _MAX_BATCH]))
                self._checkpoint(connection)
                self._busy_since = None

    def _commit(
        self, connection: sqlite3.Connection, batch: Sequence[_Job], *, is_retry: bool = False
    ) -> list[_Outcome]:
        """Run `batch` in one transaction.

        On a full disk:

        1. The reserve file is deleted and the batch runs again without its intake jobs, so that turns which were
           accepted earlier can finish.
        2. Intake is refused until there is room for the reserve again.
        3. If the disk is full even without the reserve, the whole batch fails. The next batch tries again.

        After any other error of the file the state of the last transaction is unknown, so nothing is tried any more.
        """
        if isinstance(self.trouble, SpoolBroken):
            return _all_failed(batch, self.trouble)
        has_room = not is_retry and (self._reserve.is_held or self._reserve.hold())
        admitted = batch if has_room else [job for job in batch if not job.is_intake]
        outcomes: list[_Outcome] = []
        try:
            if admitted:
                connection.execute("BEGIN IMMEDIATE")
                outcomes = _run_all(connection, admitted)
                connection.execute("COMMIT")
                self.transactions += 1
        except Exception as cause:  # noqa: BLE001 - every waiter has to get an answer, even after a bug
            error = self._fail(connection, cause)
            if isinstance(error, SpoolFull) and self._reserve.release() and not is_retry:
                return self._commit(connection, batch, is_retry=True)
            return _all_failed(batch, error)
        if has_room:
            if self.trouble:
                log.info("spool_writable_again")
            self.trouble = None
            return outcomes
        if not self.trouble:
            log.error("spool_write_failed", reason="There is no room left for the reserve.")
        self.trouble = SpoolFull(DISK_FULL_MESSAGE)
        return [*outcomes, *_all_failed([job for job in batch if job.is_intake], self.trouble)]

    def _fail(self, connection: sqlite3.Connection, cause: BaseException) -> SpoolFull | SpoolBroken:
        """Roll back, and keep the reason for `trouble` and for later jobs."""
        error = as_spool_error(cause)
        if isinstance(error, SpoolFull):
            try:
                _free_wal(connection)
            except sqlite3.Error as worse:
                error = as_spool_error(worse)
        write_log = log.debug if self.trouble else log.error  # Once per problem, not once per batch.
        write_log("spool_write_failed", reason=str(cause))
        self.trouble = error
        if isinstance(error, SpoolBroken):
            self._call_on_loop(self._on_broken)
        return error

    def _checkpoint(self, connection: sqlite3.Connection) -> None:
        """Copy the WAL into the database file when it has grown. Runs after the waiters have their answer."""
        if isinstance(self.trouble, SpoolBroken):
            return
        try:
            if self.trouble:  # The disk is full, perhaps because of the WAL.
                _free_wal(connection)
                return
            is_long = os.stat(self._wal).st_size > _WAL_LIMIT  # noqa: PTH116 - runs after each commit; this is fastest.
            if is_long or connection.total_changes - self._checkpointed_at >= _CHANGES_PER_CHECKPOINT:
                connection.execute(f"PRAGMA wal_checkpoint({'TRUNCATE' if is_long else 'PASSIVE'})").fetchall()
                self._checkpointed_at = connection.total_changes
        except (sqlite3.Error, MemoryError, OSError) as error:
            was_full = self.trouble is not None
            if isinstance(self._fail(connection, error), SpoolFull) and not was_full:
                self._reserve.release()

    def _resolve(self, outcomes: Sequence[_Outcome]) -> None:
        """Run on the event loop: pass the outcomes to the callers."""
        for job, answer, error in outcomes:
            # The waiter is scheduled before the tasks that `on_done` starts, and runs after `on_done`. So a program has
            # its response before the turn of its prompt takes the loop.
            _settle(job.waiter, answer, error)
            if job.on_done is not None:
                try:
                    job.on_done(error)
                except Exception as bug:  # noqa: BLE001 - the other callers have to get their outcomes.
                    self._loop.call_exception_handler({"message": "on_done has failed", "exception": bug})
            self._slots.release()

    def _call_on_loop(self, callback: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # The loop is closed, so there are no waiters. The data is stored.
            self._loop.call_soon_threadsafe(callback, *arguments)


def _run_all(connection: sqlite3.Connection, batch: Sequence[_Job]) -> list[_Outcome]:
    """Run the jobs in the open transaction. Raises only errors of the file, which concern all jobs."""
    try:
        return [_Outcome(job, answer=job.work(connection)) for job in batch]
    except Exception as error:
        if cause_of(error) is not Cause.CALLER or not connection.in_transaction:
            raise
    # One job was refused. Refusals are rare, so only now the batch runs again with a savepoint around each job.
    connection.execute("ROLLBACK")
    connection.execute("BEGIN IMMEDIATE")
    outcomes: list[_Outcome] = []
    for job in batch:
        connection.execute("SAVEPOINT job")
        try:
            outcomes.append(_Outcome(job, answer=job.work(connection)))
        except Exception as error:
            if cause_of(error) is not Cause.CALLER or not connection.in_transaction:
                raise
            connection.execute("ROLLBACK TO job")
            outcomes.append(_Outcome(job, error=error))
        connection.execute("RELEASE job")
    return outcomes


def _run_outside_transaction(connection: sqlite3.Connection, jobs: Sequence[_Job]) -> list[_Outcome]:
    outcomes: list[_Outcome] = []
    for job in jobs:
        try:
            outcomes.append(_Outcome(job, answer=job.work(connection)))
        except Exception as error:  # noqa: BLE001 - raised in `run`
            outcomes.append(_Outcome(job, error=error))
    return outcomes


def _all_failed(batch: Sequence[_Job], error: SpoolFull | SpoolBroken) -> list[_Outcome]:
    # Each job gets a separate exception object, because they are raised in different tasks.
    return [_Outcome(job, error=type(error)(str(error))) for job in batch]


def _free_wal(connection: sqlite3.Connection) -> None:
    """Roll back and copy the WAL into the database file. The two may take less space together afterwards."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except sqlite3.Error as error:
        if cause_of(error) is not Cause.DISK_FULL:
            raise


def _settle(waiter: asyncio.Future[Any], answer: object, error: BaseException | None) -> None:  # Any: as for `_Job`.
    if waiter.done():  # Cancelled.
        return
    if error is None:
        waiter.set_result(answer)
    else:
        waiter.set_exception(error)
