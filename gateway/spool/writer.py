"""`Writer`: the thread that owns `spool.db`. Everything that is queued becomes one transaction with one fsync."""

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from time import monotonic

import structlog

from gateway.database.connection import Connection
from gateway.database.sqlite import open_writer
from gateway.private_files import delete_copies
from gateway.spool import deletion, queries, retention
from gateway.spool.database import WAL_SIZE, copy_database, open_database, preallocate_wal, wal_path
from gateway.spool.errors import DISK_FULL_MESSAGE, Cause, SpoolBroken, SpoolUnavailable, as_spool_error, cause_of
from gateway.spool.group_commit import MAX_BATCH, GroupCommit, Job, Outcome, all_failed, run_outside_transaction, settle
from gateway.spool.reserve import Reserve
from gateway.spool.rows import Stats

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_CHANGES_PER_CHECKPOINT = 1_000
_WAL_LIMIT = 16 * 1024 * 1024
"""After a checkpoint SQLite reuses the WAL from its start. A WAL longer than this is truncated as well."""


class Writer(GroupCommit):
    """Owns `spool.db`."""

    def __init__(self, path: Path, *, on_broken: Callable[[], None]) -> None:
        super().__init__(on_broken=on_broken)
        self._path = path
        self._wal = str(wal_path(path))
        self._reserve = Reserve(path.with_name(f"{path.stem}.reserve"))
        self._checkpointed_at = 0

    @property
    def has_journal(self) -> bool:
        return True

    def stats(self, connection: Connection) -> Stats:
        # The oldest are deleted first, so there are no gaps.
        (seen,) = connection.execute("SELECT coalesce(max(id) - min(id) + 1, 0) FROM seen").fetchone()
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        (page_size,) = connection.execute("PRAGMA page_size").fetchone()
        # `page_count` includes pages that are still in the WAL, so only its growth beyond the preallocated size counts.
        wal = wal_path(self._path)
        wal_growth = wal.stat().st_size - WAL_SIZE if wal.exists() else 0
        return queries.stats(connection, seen=seen, file_bytes=int(pages * page_size) + max(0, wal_growth))

    def space_steps(self) -> Iterator[retention.Step]:
        yield retention.return_free_pages

    async def purge(self, sessions: Sequence[str]) -> None:
        try:
            await self.run(partial(deletion.purge, self._path), in_transaction=False)
        except sqlite3.Error as error:
            raise as_spool_error(error) from error
        await asyncio.to_thread(delete_copies, self._path, [session.encode() for session in sessions])

    async def copy_to(self, path: Path) -> None:
        await self.run(partial(copy_database, path), in_transaction=False)

    def _open(self) -> tuple[sqlite3.Connection, Path | None]:
        """Open the file, in the writer thread. Returns the new path of a damaged one that was moved out of the way."""
        return open_database(self._path)

    def _serve(self) -> None:
        """Run in the writer thread until the queue is closed."""
        try:
            connection, damaged_file = self._open()
        except BaseException as failure:  # noqa: BLE001 - raised in `start`
            self._call_on_loop(settle, self._opened, None, failure)
            return
        self._call_on_loop(settle, self._opened, damaged_file, None)
        preallocate_wal(self._path)  # After the answer, because it takes a while and a start need not wait for it.
        with contextlib.closing(connection):
            while batch := self._jobs.take():
                self._busy_since = monotonic()
                # `groupby` keeps the order: a copy contains exactly the commits that were submitted before it.
                for in_transaction, group in groupby(batch, key=lambda job: job.in_transaction):
                    jobs = list(group)
                    for start in range(0, len(jobs), MAX_BATCH):
                        run = self._commit if in_transaction else run_outside_transaction
                        self._call_on_loop(self._resolve, run(connection, jobs[start : start + MAX_BATCH]))
                self._measure_batch()
                self._checkpoint(connection)
                self._busy_since = None

    def _commit(self, connection: sqlite3.Connection, batch: Sequence[Job], *, is_retry: bool = False) -> list[Outcome]:
        """Run `batch` in one transaction.

        On a full disk:

        1. The reserve file is deleted and the batch runs again without its intake jobs, so that turns which were
           accepted earlier can finish.
        2. Intake is refused until there is room for the reserve again.
        3. If the disk is full even without the reserve, the whole batch fails. The next batch tries again.

        After any other error of the file the state of the last transaction is unknown, so nothing is tried any more.
        """
        if isinstance(self.trouble, SpoolBroken):
            return all_failed(batch, self.trouble)
        has_room = not is_retry and (self._reserve.is_held or self._reserve.hold())
        admitted = batch if has_room else [job for job in batch if not job.is_intake]
        outcomes: list[Outcome] = []
        try:
            if admitted:
                connection.execute("BEGIN IMMEDIATE")
                outcomes = _run_all(connection, admitted)
                connection.execute("COMMIT")
                self.transactions += 1
        except Exception as cause:  # noqa: BLE001 - every waiter has to get an answer, even after a bug
            error = self._fail(connection, cause)
            if isinstance(error, SpoolUnavailable) and self._reserve.release() and not is_retry:
                return self._commit(connection, batch, is_retry=True)
            return all_failed(batch, error)
        if has_room:
            if self.trouble:
                log.info("spool_writable_again")
            self.trouble = None
            return outcomes
        if not self.trouble:
            log.error("spool_write_failed", reason="There is no room left for the reserve.")
        self.trouble = SpoolUnavailable(DISK_FULL_MESSAGE)
        return [*outcomes, *all_failed([job for job in batch if job.is_intake], self.trouble)]

    def _fail(self, connection: sqlite3.Connection, cause: BaseException) -> SpoolUnavailable | SpoolBroken:
        """Roll back, and keep the reason for `trouble` and for later jobs."""
        error = as_spool_error(cause)
        if isinstance(error, SpoolUnavailable):
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
            if isinstance(self._fail(connection, error), SpoolUnavailable) and not was_full:
                self._reserve.release()


class DatabaseFileWriter(Writer):
    """Owns the file of a SQLite database that has the sessions, too. Others may read it at the same time."""

    @property
    def has_journal(self) -> bool:
        return False

    def _open(self) -> tuple[sqlite3.Connection, Path | None]:
        return open_writer(self._path), None


def _run_all(connection: sqlite3.Connection, batch: Sequence[Job]) -> list[Outcome]:
    """Run the jobs in the open transaction. Raises only errors of the file, which concern all jobs."""
    try:
        return [Outcome(job, answer=job.work(connection)) for job in batch]
    except Exception as error:
        if cause_of(error) is not Cause.CALLER or not connection.in_transaction:
            raise
    # One job was refused. Refusals are rare, so only now the batch runs again with a savepoint around each job.
    connection.execute("ROLLBACK")
    connection.execute("BEGIN IMMEDIATE")
    outcomes: list[Outcome] = []
    for job in batch:
        connection.execute("SAVEPOINT job")
        try:
            outcomes.append(Outcome(job, answer=job.work(connection)))
        except Exception as error:
            if cause_of(error) is not Cause.CALLER or not connection.in_transaction:
                raise
            connection.execute("ROLLBACK TO job")
            outcomes.append(Outcome(job, error=error))
        connection.execute("RELEASE job")
    return outcomes


def _free_wal(connection: sqlite3.Connection) -> None:
    """Roll back and copy the WAL into the database file. The two may take less space together afterwards."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")
    try:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except sqlite3.Error as error:
        if cause_of(error) is not Cause.DISK_FULL:
            raise
