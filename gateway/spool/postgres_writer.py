"""`PostgresWriter`: the thread that writes to PostgreSQL. Everything that is queued becomes one transaction.

A batch takes two round trips. The first sends all statements in a pipeline; the second is COMMIT. What can go wrong:

1. A job is refused, such as a duplicate. The batch is rolled back, and its jobs run one by one with savepoints.
2. A deadlock, a serialisation failure, or a connection lost before COMMIT: nothing was stored. The batch runs again.
3. The connection is lost after COMMIT was sent: the outcome is unknown, and the callers wait. After the reconnect the
   number of the last committed batch, in the row of the lease, says whether the batch has to run again.
4. The database is away, full or read-only: jobs are refused with `SpoolUnavailable`, until it is back.
5. Another gateway has taken the lease: the spool is broken, and the daemon has to stop.
6. The database has lost commits, as after the promotion of a standby that did not have them: the sessions in memory
   are newer than the stored ones. The spool is broken, too. After a restart, the daemon knows what is stored.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from queue import Empty
from time import monotonic, sleep
from typing import TYPE_CHECKING

import structlog

from gateway.aio import backoff_delays
from gateway.database.lease import CommitsLost, Lease, LeaseLost, LeaseTaken, SingleLease
from gateway.database.migrate import require_usable
from gateway.database.postgres import MIN_VERSION, Cause, PostgresConnection, cause_of, refusal, require_utf8, summary
from gateway.errors import CannotStart
from gateway.spool import queries
from gateway.spool.copies import write_copy
from gateway.spool.errors import SpoolBroken, SpoolUnavailable
from gateway.spool.group_commit import MAX_BATCH, GroupCommit, Job, Outcome, all_failed, settle

if TYPE_CHECKING:
    from datetime import datetime

    from gateway.database.connection import Connection
    from gateway.spool.retention import Step
    from gateway.spool.rows import Stats

log: structlog.stdlib.BoundLogger = structlog.get_logger()

START_TIMEOUT = 30.0
"""Seconds for which a start waits for a database that is starting too."""
_CLOSE_TIMEOUT = 10.0
"""Seconds for which `close` waits for the outcome of a batch."""
_FIRST_DELAY, _MAX_DELAY = 0.1, 5.0
_TRIES = 5

_TABLES = "inbox, outbox, drafts, facts, reminders, schedules, schedule_runs, deletions, session, entry"
_SIZE = "SELECT coalesce(sum(pg_total_relation_size(to_regclass(name))), 0)::bigint FROM unnest(?::text[]) AS name"

_LOCK_USAGE = """
    SELECT 1 FROM usage JOIN unnest(?::text[], ?::text[], ?::text[]) AS wanted (day, person, model)
    USING (day, person, model) ORDER BY day, person, model FOR NO KEY UPDATE OF usage
"""

_REASONS = {
    Cause.LOST: "The database can't be reached, so nothing can be accepted until it is back.",
    Cause.FULL: "The disk of the database is full, so nothing can be accepted until there is room again.",
    Cause.READ_ONLY: "The database is read-only, so nothing can be accepted until it can be written again.",
    Cause.BUSY: "The database is locked or too slow, so nothing was stored. Try again later.",
    Cause.ROLLED_BACK: "The database is too busy, so nothing was stored. Try again later.",
    Cause.FORBIDDEN: "The database refuses access, so nothing can be accepted until that is fixed.",
    Cause.FAILED: "The database has failed, so nothing was stored. Try again later.",
}


class _Closed(Exception):
    """The queue was closed while the thread was waiting for the database."""


class PostgresWriter(GroupCommit):
    """Owns the spool's tables in PostgreSQL. `connect` opens a connection; it is called again after each loss."""

    def __init__(
        self,
        connect: Callable[..., PostgresConnection],
        path: Path,
        *,
        name: str,
        on_broken: Callable[[], None],
        lease: Lease | None = None,
        start_timeout: float = START_TIMEOUT,
    ) -> None:
        """`name` is what people call the database. `path` is in the data directory, which the single lease names."""
        super().__init__(on_broken=on_broken)
        self._connect = connect
        self._name = name
        self._lease: Lease = lease or SingleLease(path.parent)
        self._renewal_interval = self._lease.seconds / 4
        self._start_timeout = start_timeout
        self._connection: PostgresConnection | None = None
        self._batch = 0
        self._committed = 0
        """The number of the last batch that was committed."""
        self._begun_at = 0.0
        self._renewal_at = 0.0
        """When the lease was renewed for the last time, or that was tried."""
        self._loop_asked_at: float | None = None
        """When the event loop was asked whether it runs, if it has not answered yet."""
        self._is_closing = False
        self._given_up: SpoolBroken | None = None
        """Why the daemon has given up, which happens on the event loop at any moment."""

    @property
    def has_journal(self) -> bool:
        return False

    def stats(self, connection: Connection) -> Stats:
        (seen,) = connection.execute("SELECT count(*) FROM seen").fetchone()
        (size,) = connection.execute(_SIZE, (["seen", *_TABLES.split(", ")],)).fetchone()
        return queries.stats(connection, seen=seen, file_bytes=size)

    def space_steps(self) -> Iterator[Step]:
        yield from ()  # Autovacuum does it.

    async def purge(self, sessions: Sequence[str]) -> None:
        """Let the server reuse the space of deleted rows. It overwrites them in its own time."""
        del sessions
        await self._run_apart(lambda connection: connection.execute(f"VACUUM {_TABLES}"))

    def give_up(self, reason: str) -> None:
        """Refuse everything from now on, also what waits for an answer of the database. Call it on the event loop."""
        self._given_up = self.trouble = SpoolBroken(reason)
        if (connection := self._connection) is not None:
            connection.abort()

    async def copy_to(self, path: Path) -> None:
        def copy(connection: PostgresConnection) -> None:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            write_copy(path, connection)
            connection.commit()

        await self.run(lambda _: None)  # What was submitted before is in the copy.
        await self._run_apart(copy)

    async def _run_apart(self, work: Callable[[PostgresConnection], object]) -> None:
        """Run long work in a thread and a connection of its own, so that commits go on."""

        def run() -> None:
            with self._connect(statement_timeout=0.0) as connection:
                work(connection)

        try:
            await asyncio.to_thread(run)
        except Exception as error:
            if (reason := _REASONS.get(cause_of(error))) is None:
                raise
            raise SpoolUnavailable(reason) from error

    @property
    def _is_broken(self) -> bool:
        return self._given_up is not None or isinstance(self.trouble, SpoolBroken)

    def _refusal(self) -> SpoolUnavailable | SpoolBroken | None:
        if self._given_up is not None:
            return SpoolBroken(str(self._given_up))
        trouble = self.trouble
        is_away = self._connection is None and isinstance(trouble, SpoolUnavailable)
        return SpoolUnavailable(str(trouble)) if is_away else None

    def _serve(self) -> None:
        try:
            self._connection = self._start()
        except BaseException as failure:  # noqa: BLE001 - raised in `start`
            self._call_on_loop(settle, self._opened, None, failure)
            return
        self._call_on_loop(settle, self._opened, None, None)
        with contextlib.suppress(_Closed):
            while not self._is_closing:
                if self._connection is None and not self._is_broken:
                    self._reconnect()
                    continue
                try:
                    jobs = self._take(self._renewal_interval)
                except Empty:
                    jobs = []
                self._busy_since = monotonic()
                self._run(jobs)
                if jobs:
                    self._measure_batch()
                self._renew_if_due()
                self._busy_since = None
        if self._connection is not None:
            with contextlib.suppress(Exception):  # Otherwise the lease expires.
                self._connection.begin()
                self._lease.release(self._connection)
                self._connection.commit()
            self._connection.close()

    def _take(self, timeout: float) -> list[Job]:
        """Return the queued jobs. Raises `Empty` after `timeout`, and `_Closed` behind the last job."""
        if self._is_closing:
            sleep(timeout)
            raise Empty
        jobs = self._jobs.take(timeout)
        if not jobs:
            self._is_closing = True
            raise _Closed
        return jobs

    def _start(self) -> PostgresConnection:
        """Connect and take the lease. Waits a while for a database that is starting too, and for a lease to expire.

        A gateway that has crashed on another machine keeps its lease for some seconds, but does not renew it.
        """
        deadline = monotonic() + self._start_timeout
        renewed_at: datetime | None = None
        for delay in backoff_delays(first=_FIRST_DELAY, cap=2.0):
            try:
                return self._connect_first()
            except LeaseTaken as taken:
                if renewed_at not in (None, taken.renewed_at) or monotonic() + delay > deadline:
                    raise
                if renewed_at is None:
                    log.info("lease_awaited", reason=str(taken))
                renewed_at = taken.renewed_at
            except CannotStart:
                raise
            except Exception as error:
                failure = self._start_failure(error)
                if isinstance(failure, CannotStart) or monotonic() + delay > deadline:
                    raise failure from error
            with contextlib.suppress(Empty):
                self._take(delay)
        raise AssertionError("delays never end")

    def _connect_first(self) -> PostgresConnection:
        connection = self._connect()
        try:
            self._require_usable(connection)
            begun_at = monotonic()
            connection.begin()
            require_usable(connection)
            self._lease.take(connection)
            connection.commit()
        except BaseException:
            connection.close()
            raise
        self._note_renewal(begun_at)
        return connection

    def _require_usable(self, connection: PostgresConnection) -> None:
        if connection.version < MIN_VERSION:
            raise CannotStart(
                f"The database {self._name} runs on PostgreSQL {connection.version}. "
                f"Gatehouse needs version {MIN_VERSION} or later."
            )
        (encoding,) = connection.execute("SHOW server_encoding").fetchone()
        require_utf8(encoding, self._name)

    def _start_failure(self, error: Exception) -> Exception:
        match cause_of(error):
            case Cause.FORBIDDEN:
                return refusal(self._name, error)
            case Cause.WRONG_SCHEMA:
                return CannotStart(
                    f"The database {self._name} does not have the tables of this version ({summary(error)}). "
                    "Run `gatehouse db upgrade`, or check that storage.url names the right database."
                )
            case Cause.CALLER:
                return error
            case cause:
                return SpoolUnavailable(f"{_REASONS[cause]} It is {self._name} ({summary(error)}).")

    def _run(self, jobs: Sequence[Job]) -> None:
        # `groupby` keeps the order: a job outside a transaction finds exactly the commits before it.
        for in_transaction, group in groupby(jobs, key=lambda job: job.in_transaction):
            of_kind = list(group)
            for start in range(0, len(of_kind), MAX_BATCH):
                run = self._commit if in_transaction else self._run_outside_transaction
                self._call_on_loop(self._resolve, run(of_kind[start : start + MAX_BATCH]))
                self._renew_if_due()

    def _commit(self, batch: Sequence[Job]) -> list[Outcome]:
        """Run `batch` in one transaction, and again while that may help. See the steps in the module's docstring."""
        for is_last in (*[False] * (_TRIES - 1), True):
            connection = self._connection
            if connection is None:
                return all_failed(batch, self.trouble or SpoolUnavailable(_REASONS[Cause.LOST]))
            self._batch += 1
            outcomes: list[Outcome] | None = None
            try:
                answers = self._run_all(connection, batch)
                if connection.has_changed:
                    outcomes = answers
                    connection.commit()
                else:  # It has only read, so there is nothing to fsync.
                    connection.rollback()
            except LeaseLost as lost:
                return all_failed(batch, self._break(lost))
            except Exception as error:  # noqa: BLE001 - every waiter has to get an answer, even after a bug
                cause = Cause.LOST if connection.is_lost else cause_of(error)
                if cause is Cause.LOST and outcomes is not None:
                    if self._was_committed(error):
                        return outcomes
                elif cause is Cause.LOST:
                    self._lose(error, cause)
                    self._try_reconnect()
                elif cause is not Cause.ROLLED_BACK or is_last:
                    return all_failed(batch, self._fail(connection, error, cause))
                else:
                    connection.rollback()
            else:
                self.transactions += 1
                if outcomes is not None:
                    self._committed = self._batch
                    self._note_renewal(self._begun_at)
                self._mark_writable()
                return answers
        return all_failed(batch, self.trouble or SpoolUnavailable(_REASONS[Cause.LOST]))

    def _run_all(self, connection: PostgresConnection, batch: Sequence[Job]) -> list[Outcome]:
        """Run the jobs in a new transaction. Raises only errors that concern all jobs."""
        try:
            with connection.pipeline():
                self._begin(connection, batch)
                return [Outcome(job, answer=job.work(connection)) for job in batch]
        except Exception as error:
            if connection.is_lost or cause_of(error) is not Cause.CALLER:
                raise
        connection.rollback()
        self._begin(connection, batch)
        return [_run_one(connection, job) for job in batch]

    def _begin(self, connection: PostgresConnection, batch: Sequence[Job]) -> None:
        self._begun_at = monotonic()
        connection.begin()
        self._lease.fence(connection, self._batch, after=self._committed)
        connection.has_changed = False
        # In one order for all nodes, so that no two of them wait for each other.
        if positions := sorted({shard for job in batch for shard in job.positions}):
            connection.execute(
                "SELECT 1 FROM shard_position WHERE shard = ANY(?) ORDER BY shard FOR NO KEY UPDATE", (positions,)
            )
        usage = {key for job in batch for key in job.usage}
        if len(usage) > 1:
            connection.execute(_LOCK_USAGE, tuple(map(list, zip(*usage, strict=True))))

    def _was_committed(self, error: Exception) -> bool:
        """Reconnect, and find out whether the last batch was committed. Later jobs are refused until then."""
        self._lose(error, Cause.LOST)
        log.warning("commit_outcome_unknown", batch=self._batch)
        try:
            last = self._reconnect(grace=_CLOSE_TIMEOUT)
        except _Closed:
            self._break("The connection to the database was lost during a commit. Its outcome is not known.")
            return False
        is_stored = last == self._batch
        log.info("commit_outcome_known", batch=self._batch, is_stored=is_stored)
        if is_stored:
            self.transactions += 1
            self._committed = self._batch
        return is_stored

    def _reconnect(self, *, grace: float = 0.0) -> int | None:
        """Connect again, with backoff. Refuse jobs until then. Returns the number of the last committed batch.

        Raises `_Closed` if the database is not back `grace` seconds after the queue was closed.
        """
        deadline: float | None = None
        for delay in backoff_delays(first=_FIRST_DELAY, cap=_MAX_DELAY):
            if (last := self._try_reconnect()) is not None or self._is_broken:
                return last
            wait_until = monotonic() + delay
            while (left := wait_until - monotonic()) > 0:
                try:
                    jobs = self._take(left)
                except Empty:
                    break
                except _Closed:
                    deadline = monotonic() + grace
                    break
                self._call_on_loop(self._resolve, all_failed(jobs, self.trouble or SpoolUnavailable()))
            if deadline is not None and monotonic() >= deadline:
                raise _Closed
        raise AssertionError("delays never end")

    def _try_reconnect(self) -> int | None:
        """Connect once more, and return the number of the last committed batch; None if that fails."""
        if self._given_up is not None:
            return None
        try:
            connection = self._connect()
        except Exception as error:  # noqa: BLE001 - the next attempt may succeed, whatever it was.
            self._lose(error, cause_of(error))
            return None
        begun_at = monotonic()
        try:
            last = self._lease.last_batch(connection, at_least=self._committed)
        except LeaseLost as lost:
            connection.close()
            self._break(lost)
            return None
        except Exception as error:  # noqa: BLE001 - as above
            connection.close()
            self._lose(error, cause_of(error))
            return None
        if self._given_up is not None:
            connection.close()
            return None
        self._connection = connection
        self._note_renewal(begun_at)
        self._mark_writable()
        return last

    def _renew_if_due(self) -> None:
        """Renew the lease if no commit has renewed it for a while. A batch that is rolled back does not.

        A gateway whose event loop hangs does not renew it, so that others take over.
        """
        connection = self._connection
        if connection is None or self._is_broken:
            return
        begun_at = monotonic()
        if begun_at - self._renewal_at < self._renewal_interval:
            return
        self._renewal_at = begun_at
        if self._loop_asked_at is None:
            self._loop_asked_at = begun_at
            self._call_on_loop(self._note_loop_answer)
        elif begun_at - self._loop_asked_at > self._lease.seconds / 2:
            return
        try:
            self._lease.last_batch(connection, at_least=self._committed)
        except LeaseLost as lost:
            self._break(lost)
        except Exception as error:  # noqa: BLE001 - the next one may succeed.
            cause = Cause.LOST if connection.is_lost else cause_of(error)
            if cause is Cause.LOST:
                self._lose(error, cause)
                self._try_reconnect()
            else:
                log.debug("lease_not_renewed", reason=summary(error))
        else:
            self._note_renewal(begun_at)
            self._mark_writable()  # Without new messages, nothing else would find that out.

    def _note_loop_answer(self) -> None:
        self._loop_asked_at = None

    def _note_renewal(self, begun_at: float) -> None:
        """Remember that the lease was renewed by a statement that was sent after `begun_at`."""
        self._renewal_at = self.renewed_at = begun_at

    def _run_outside_transaction(self, jobs: Sequence[Job]) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for job in jobs:
            connection = self._connection
            if connection is None:
                outcomes += all_failed([job], self.trouble or SpoolUnavailable(_REASONS[Cause.LOST]))
                continue
            try:
                outcomes.append(Outcome(job, answer=job.work(connection)))
            except Exception as error:  # noqa: BLE001 - raised in `run`
                cause = Cause.LOST if connection.is_lost else cause_of(error)
                if cause is Cause.LOST:
                    self._lose(error, cause)
                reason = _REASONS.get(cause)
                outcomes.append(Outcome(job, error=error if reason is None else SpoolUnavailable(reason)))
        return outcomes

    def _fail(self, connection: PostgresConnection, error: Exception, cause: Cause) -> SpoolUnavailable | SpoolBroken:
        """Roll back, and keep the reason for `trouble`."""
        if cause in {Cause.READ_ONLY, Cause.FORBIDDEN}:  # Another connection may reach the right server.
            return self._lose(error, cause)
        if cause not in _REASONS:
            return self._break(f"The database does not work as expected ({summary(error)}).")
        with contextlib.suppress(Exception):  # The next batch finds out that the connection is lost.
            connection.rollback()
        return self._set_trouble(error, cause)

    def _lose(self, error: Exception, cause: Cause) -> SpoolUnavailable | SpoolBroken:
        """Close the connection. From now on new jobs are refused at once, until there is another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        return self._set_trouble(error, cause)

    def _set_trouble(self, error: Exception, cause: Cause) -> SpoolUnavailable | SpoolBroken:
        if self._given_up is not None:
            return self._given_up
        write_log = log.debug if self.trouble else log.error  # Once per problem, not once per batch.
        write_log("spool_write_failed", reason=summary(error))
        self.trouble = SpoolUnavailable(_REASONS.get(cause, _REASONS[Cause.FAILED]))
        return self.trouble

    def _break(self, cause: LeaseLost | str) -> SpoolBroken:
        match cause:
            case str():
                reason = cause
            case CommitsLost():
                reason = (
                    f"The database {self._name} has lost messages that were stored: a standby that did not have them "
                    "was promoted, or a backup was restored. Restart the gateway: it goes on with what is stored."
                )
            case _:
                reason = str(cause) or (
                    f"Another gateway has taken over the database {self._name}, so this one can't write to it any more."
                )
        self.trouble = SpoolBroken(reason)
        log.error("spool_write_failed", reason=str(self.trouble))
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._call_on_loop(self._on_broken)
        return self.trouble

    def _mark_writable(self) -> None:
        if self.trouble and self._given_up is None:
            log.info("spool_writable_again")
        self.trouble = self._given_up


def _run_one(connection: PostgresConnection, job: Job) -> Outcome:
    """Run a job of a batch in which a job was refused. Raises only errors that concern all jobs."""
    try:
        with connection.pipeline():
            connection.execute("SAVEPOINT job")
            outcome = Outcome(job, answer=job.work(connection))
    except Exception as error:
        if connection.is_lost or cause_of(error) is not Cause.CALLER:
            raise
        connection.execute("ROLLBACK TO job")
        outcome = _run_without_pipeline(connection, job)
    connection.execute("RELEASE job")
    return outcome


def _run_without_pipeline(connection: PostgresConnection, job: Job) -> Outcome:
    try:
        return Outcome(job, answer=job.work(connection))
    except Exception as error:
        if connection.is_lost or cause_of(error) is not Cause.CALLER:
            raise
        connection.execute("ROLLBACK TO job")
        return Outcome(job, error=error)
