"""The one thread that owns the database: whatever has queued up becomes one transaction, paid by one fsync."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, groupby
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any, Generic, NamedTuple, TypeVar

import structlog

from gateway.spool.apply import do_together, moves
from gateway.spool.database import lengthen_log, log_of, open_file
from gateway.spool.errors import NO_ROOM, Kind, SpoolBroken, SpoolFull, kind_of, sentence
from gateway.spool.operations import Operation
from gateway.spool.reserve import Reserve

Item = TypeVar("Item")


class _BatchQueue(Generic[Item]):
    """One event loop puts in, one thread takes out, and both keep the order.

    Waking a thread costs more than most of what it is woken for: it wants the interpreter, which the loop has.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._gathered: list[Item] = []
        self._later: asyncio.TimerHandle | None = None
        self._is_due = False
        self._queue: SimpleQueue[list[Item] | None] = SimpleQueue()

    def put(self, item: Item, *, max_delay: float = 0.0) -> None:
        """Hand `item` over after this round of the loop; with `max_delay`, when others go, or so many seconds later."""
        self._gathered.append(item)
        if max_delay:
            self._later = self._later or self._loop.call_later(max_delay, self._hand_over)
        elif not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._hand_over)

    def close(self) -> None:
        """Hand over what is left. Nothing may be put in afterwards."""
        self._hand_over()
        self._queue.put(None)

    def take(self) -> list[Item]:
        """Wait, in the thread, for what was put in, and take all of it. Nothing means: that was all."""
        taken: list[Item] = []
        items = self._queue.get()
        while items is not None:
            taken += items
            try:
                items = self._queue.get_nowait()
            except Empty:
                return taken
        if taken:
            self._queue.put(None)
        return taken

    def _hand_over(self) -> None:
        self._is_due = False
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._gathered:
            self._queue.put(self._gathered)
            self._gathered = []


log: structlog.stdlib.BoundLogger = structlog.get_logger()

Work = Callable[[sqlite3.Connection], Any]  # Any: a job's answer is as its caller's work has it.

_AT_ONCE = 128
"""Jobs in a transaction: in a rush, the first are told while the others are being stored."""

_CHANGES_PER_CHECKPOINT = 1_000
_LOG_LIMIT = 16 * 1024 * 1024
"""SQLite writes its log from the start again after a checkpoint; one that has grown beyond this is cut."""


OnCommitted = Callable[[BaseException | None], None]
"""Told, on the event loop and before any waiter, what has kept a job from being done, if anything has."""


class Job(NamedTuple):
    """Work to be done inside the next transaction, and who waits for it. A cancelled `waiter` takes nothing back."""

    work: Work
    waiter: asyncio.Future[Any]  # Any: as for `Work`.
    is_intake: bool = False
    """Brings in something new; while the disk is full, room is left for what was begun before."""
    is_alone: bool = False
    """Only reads, and cannot do so inside a transaction; what goes wrong concerns nobody else."""
    on_done: OnCommitted | None = None
    operations: Sequence[Operation] = ()
    """What the work consists of, where it can be done together with that of others."""


class _Outcome(NamedTuple):
    job: Job
    answer: object = None
    error: BaseException | None = None


class Writer:
    """Jobs take effect in the order in which they were put, and one's refusal hurts no other.

    A waiter hears only after COMMIT has returned. On a full disk the reserve is given up and nothing new is taken until
    there is room for it again; when even that is used up, whole batches fail and each next one tries anew. After any
    other trouble with the file nothing is tried any more.
    """

    def __init__(self, path: Path, *, on_settled: Callable[[int], None], on_broken: Callable[[], None]) -> None:
        self._path = path
        self._on_settled = on_settled
        self._on_broken = on_broken
        self._loop = asyncio.get_running_loop()
        self._jobs: _BatchQueue[Job] = _BatchQueue()
        self._thread = Thread(target=self._run, name="spool", daemon=True)
        self._opened: asyncio.Future[Path | None] = self._loop.create_future()
        self._reserve = Reserve(path.with_name("spool.reserve"))
        self._checkpointed_at = 0
        self._busy_since: float | None = None
        self.trouble: SpoolFull | SpoolBroken | None = None
        self.batches = 0

    async def start(self) -> Path | None:
        """Open the file; return what was set aside for being damaged."""
        self._thread.start()
        try:
            return await self._opened
        except asyncio.CancelledError:
            self._jobs.close()
            raise

    def put(self, job: Job, *, max_delay: float = 0.0) -> None:
        """Have `job` done with whatever else is asked for in this round of the loop, or within `max_delay` seconds."""
        self._jobs.put(job, max_delay=max_delay)

    async def close(self) -> None:
        """Finish what was put before, and close the file."""
        self._jobs.close()
        await asyncio.to_thread(self._thread.join)

    def busy_for(self) -> float:
        """Return for how many seconds the batch at hand has been at it: a stuck disk shows here."""
        since = self._busy_since
        return 0.0 if since is None else monotonic() - since

    def _run(self) -> None:
        try:
            opened = open_file(self._path)
        except BaseException as failure:  # noqa: BLE001 - raised where the spool is opened
            self._tell(_fail, self._opened, failure)
            return
        self._tell(_succeed, self._opened, opened.set_aside)
        lengthen_log(self._path)
        with contextlib.closing(opened.connection) as connection:
            while batch := self._jobs.take():
                self._busy_since = monotonic()
                for alone, jobs in groupby(batch, key=lambda job: job.is_alone):
                    work = self._do_alone if alone else self._commit
                    for part in _parts(list(jobs)):
                        self._tell(self._resolve, work(connection, part))
                self._checkpoint(connection)
                self._busy_since = None

    def _commit(
        self, connection: sqlite3.Connection, batch: Sequence[Job], *, is_retry: bool = False
    ) -> list[_Outcome]:
        if isinstance(self.trouble, SpoolBroken):
            return _all_failed(batch, self.trouble)
        has_room = not is_retry and self._reserve.hold()
        refused = [] if has_room else [job for job in batch if job.is_intake]
        admitted = batch if has_room else [job for job in batch if not job.is_intake]
        try:
            outcomes = self._transact(connection, admitted)
        except Exception as trouble:  # noqa: BLE001 - whatever it is, every waiter has to hear of it
            error = self._failed(connection, trouble)
            if isinstance(error, SpoolFull) and self._reserve.release() and not is_retry:
                return self._commit(connection, batch, is_retry=True)
            return _all_failed(batch, error)
        self._note_room(has_room=has_room)
        return [*outcomes, *_all_failed(refused, SpoolFull(NO_ROOM))]

    def _transact(self, connection: sqlite3.Connection, batch: Sequence[Job]) -> list[_Outcome]:
        if not batch:
            return []
        connection.execute("BEGIN IMMEDIATE")
        outcomes = self._do_all(connection, batch)
        connection.execute("COMMIT")
        self.batches += 1
        return outcomes

    def _do_all(self, connection: sqlite3.Connection, batch: Sequence[Job]) -> list[_Outcome]:
        """Do the batch in the hope that none is refused; where one is, do it again with a savepoint around each."""
        try:
            return [outcome for run in _runs(batch) for outcome in _do_run(connection, run)]
        except Exception as error:  # `kind_of` tells whose it is.
            if kind_of(error) is not Kind.CALLERS_OWN or not connection.in_transaction:
                raise
        connection.execute("ROLLBACK")
        connection.execute("BEGIN IMMEDIATE")
        return [self._do(connection, job) for job in batch]

    def _do(self, connection: sqlite3.Connection, job: Job) -> _Outcome:
        """Do one job. Raise only what concerns the file and thereby all jobs."""
        connection.execute("SAVEPOINT job")
        try:
            answer = job.work(connection)
        except Exception as error:  # `kind_of` tells whose it is.
            if kind_of(error) is not Kind.CALLERS_OWN or not connection.in_transaction:
                raise
            connection.execute("ROLLBACK TO job")
            connection.execute("RELEASE job")
            return _Outcome(job, error=error)
        connection.execute("RELEASE job")
        return _Outcome(job, answer=answer)

    def _do_alone(self, connection: sqlite3.Connection, jobs: Sequence[Job]) -> list[_Outcome]:
        """Do jobs outside of any transaction, each for itself."""
        outcomes: list[_Outcome] = []
        for job in jobs:
            try:
                outcomes.append(_Outcome(job, answer=job.work(connection)))
            except Exception as error:  # noqa: BLE001 - raised where the answer is waited for
                outcomes.append(_Outcome(job, error=error))
        return outcomes

    def _failed(self, connection: sqlite3.Connection, trouble: BaseException) -> SpoolFull | SpoolBroken:
        """Undo the batch, and remember why for those who come behind it."""
        error = sentence(trouble)
        if isinstance(error, SpoolFull):
            try:
                _make_room(connection)
            except sqlite3.Error as worse:
                error = sentence(worse)
        tell = log.debug if self.trouble else log.error
        tell("spool_not_written", reason=str(trouble))
        self.trouble = error
        if isinstance(error, SpoolBroken):
            self._tell(self._on_broken)
        return error

    def _note_room(self, *, has_room: bool) -> None:
        """Log the end of a full disk, and its beginning where that is found before anything has failed."""
        if has_room and self.trouble:
            log.info("spool_written_again")
        elif not has_room and not self.trouble:
            log.error("spool_not_written", reason="There is no room left for the reserve.")
        self.trouble = None if has_room else SpoolFull(NO_ROOM)

    def _checkpoint(self, connection: sqlite3.Connection) -> None:
        """Bring the log into the file now and then, after the answer was given: nobody waits for this."""
        if self.trouble:
            self._make_room_again(connection)
            return
        try:
            is_long = log_of(self._path).stat().st_size > _LOG_LIMIT
            if not is_long and connection.total_changes - self._checkpointed_at < _CHANGES_PER_CHECKPOINT:
                return
            connection.execute(f"PRAGMA wal_checkpoint({'TRUNCATE' if is_long else 'PASSIVE'})").fetchall()
        except (sqlite3.Error, MemoryError, OSError) as trouble:
            if isinstance(self._failed(connection, trouble), SpoolFull):
                self._reserve.release()
            return
        self._checkpointed_at = connection.total_changes

    def _make_room_again(self, connection: sqlite3.Connection) -> None:
        """On a full disk, try to bring the log into the file: it may be the log itself that takes all the room."""
        if isinstance(self.trouble, SpoolBroken):
            return
        try:
            _make_room(connection)
        except (sqlite3.Error, MemoryError) as worse:
            self._failed(connection, worse)

    def _resolve(self, outcomes: Sequence[_Outcome]) -> None:
        for job, answer, error in outcomes:
            if job.on_done is not None:
                self._loop.call_soon(job.on_done, error)
            if error is None:
                _succeed(job.waiter, answer)
            else:
                _fail(job.waiter, error)
        self._on_settled(len(outcomes))

    def _tell(self, callback: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits any more, and what is stored is.
            self._loop.call_soon_threadsafe(callback, *arguments)


def _parts(jobs: Sequence[Job]) -> Iterator[Sequence[Job]]:
    for start in range(0, len(jobs), _AT_ONCE):
        yield jobs[start : start + _AT_ONCE]


def _runs(batch: Sequence[Job]) -> Iterator[list[Job]]:
    """Cut a batch into runs of jobs that can be done together, since none touches what another of them moves."""
    run: list[Job] = []
    moved: set[str] | None = None
    for job in batch:
        moving = moves(job.operations)
        if moved is not None and moving is not None and moved.isdisjoint(moving):
            run.append(job)
            moved |= moving
            continue
        if run:
            yield run
        run, moved = [job], moving
    if run:
        yield run


def _do_run(connection: sqlite3.Connection, run: Sequence[Job]) -> list[_Outcome]:
    if len(run) == 1:
        return [_Outcome(job, answer=job.work(connection)) for job in run]
    do_together(connection, chain.from_iterable(job.operations for job in run))
    return [_Outcome(job) for job in run]


def _all_failed(batch: Sequence[Job], error: SpoolFull | SpoolBroken) -> list[_Outcome]:
    """Give each its own error: they are raised in different tasks."""
    return [_Outcome(job, error=type(error)(str(error))) for job in batch]


def _make_room(connection: sqlite3.Connection) -> None:
    """Undo what is half done, and bring the log into the file, which may need less room than both."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except sqlite3.Error as trouble:
        if kind_of(trouble) is not Kind.FULL:
            raise


def _succeed(waiter: asyncio.Future[Any], answer: object) -> None:
    if not waiter.done():
        waiter.set_result(answer)


def _fail(waiter: asyncio.Future[Any], error: BaseException) -> None:
    if not waiter.done():
        waiter.set_exception(error)
