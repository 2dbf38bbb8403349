"""`Spool`: commits operations and runs queries, and `retry_while_unavailable` repeats a commit that was not stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from math import inf
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Self, TypeVar, Unpack
from weakref import WeakSet

from msgspec.structs import replace

from gateway.aio import backoff_delays
from gateway.contract import Address
from gateway.database.connection import Connection
from gateway.database.lease import Lease
from gateway.database.postgres import ConnectionOptions, PostgresConnection, ReconnectingPostgres, describe
from gateway.shards import Shards, shard_of
from gateway.spool import deletion, queries, retention
from gateway.spool.errors import SpoolBroken, SpoolUnavailable
from gateway.spool.group_commit import GroupCommit, OnCommitted
from gateway.spool.operations import AddArrival, AddToInbox, AddUsage, MarkSeen, Operation, SetFact, TakeFact, WakeNodes
from gateway.spool.postgres_writer import PostgresWriter
from gateway.spool.rows import (
    ArrivalRow,
    DailyUsage,
    InboxRow,
    OutboxRow,
    RecoveredWork,
    ReminderRow,
    ScheduleRow,
    ScheduleRun,
    SpoolListing,
    Stats,
    UsageTotal,
)
from gateway.spool.writer import DatabaseFileWriter, Writer

_ENTRIES_PER_STEP = 500
"""Long reads and deletions run in steps, so that commits get their turn between two steps."""

_LISTING_LIMIT = 1_000

_T = TypeVar("_T")


class Spool:
    """Open it once per data directory, under its lock, and use it from the event loop that opened it.

    All calls take effect in the order in which they were made. Cancelling a caller does not take back its call.
    """

    def __init__(self, path: Path, writer: Callable[..., GroupCommit] = Writer) -> None:
        """`writer` makes the writer; it is called with `on_broken` and the path of the file."""
        self.path = path
        self.broken = asyncio.Event()
        """Set when nothing can be stored any more. The daemon has to stop with an error."""
        self.damaged_file: Path | None = None
        self.loss: str | None = None
        """A sentence for the operator if an earlier spool was lost, and its loss was reported in this run."""
        self.shards: Shards | None = None
        """In a cluster, the shards that this node owns. Then only they can be changed."""
        self.safe_seconds = inf
        """In a cluster, the seconds after a renewal of the lease for which this node may act."""
        self.shared_facts: tuple[str, ...] = ()
        """In a cluster, the prefixes of the facts that all nodes have in memory. A change wakes the other nodes."""
        self.readers = WeakSet[ReconnectingPostgres]()
        """The other connections of a node, which end with this one when the node gives up."""
        self._writer = writer(path, on_broken=self.broken.set)

    @classmethod
    async def open(cls, data_dir: Path) -> Self:
        """Open or create `spool.db`. Raises `CannotStart` if it cannot be used, or a newer version has written it."""
        return await cls(data_dir / "spool.db").start()

    @classmethod
    async def open_sqlite(cls, path: Path) -> Self:
        """Open a SQLite database that has the sessions, too. Raises `CannotStart` if it cannot be used."""
        return await cls(path, DatabaseFileWriter).start()

    @classmethod
    async def open_database(
        cls, url: str, data_dir: Path, *, lease: Lease | None = None, **options: Unpack[ConnectionOptions]
    ) -> Self:
        """Open a PostgreSQL database that has the sessions, too, and take the lease.

        Without a `lease`, that is the one of the only gateway on a database, for this data directory. Raises
        `CannotStart` if it cannot be used or another gateway uses it, and `SpoolUnavailable` if it is away.
        """
        # A node may be paused or cut off inside a transaction. Its locks must not hold up the takeover by another node.
        idle_timeout = 0.0 if lease is None else lease.seconds / 2
        connect = partial(PostgresConnection, url, idle_timeout=idle_timeout, **options)
        writer = partial(PostgresWriter, connect, name=describe(url), lease=lease)
        return await cls(data_dir / "spool.db", writer).start()

    async def start(self) -> Self:
        """Open the database. Call this once, before anything else."""
        self.damaged_file = await self._writer.start()
        return self

    async def close(self) -> None:
        """Store everything that was committed before, and close the file. Later commits fail."""
        await self._writer.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def home(self) -> str:
        """In a cluster, the scope of messages that belong to no conversation, such as those to owners. Else empty."""
        return "" if self.shards is None else self.shards.home

    @property
    def trouble(self) -> str | None:
        """The reason, for the operator, why the spool cannot be written; None if it can."""
        return None if self._writer.trouble is None else str(self._writer.trouble)

    @property
    def transactions(self) -> int:
        """The number of transactions. There are fewer than calls under load."""
        return self._writer.transactions

    @property
    def commit_seconds(self) -> float:
        """The time that all transactions have taken together."""
        return self._writer.commit_seconds

    @property
    def slow_commits(self) -> int:
        return self._writer.slow_commits

    @property
    def renewed_at(self) -> float:
        """The monotonic time from which on the lease on a database holds for its whole duration."""
        return self._writer.renewed_at

    @property
    def safe_seconds_left(self) -> float:
        """For how long this node may still act, such as send a message. Then others may do it.

        A process that was paused goes on where it was. So look at this right before what no two nodes may do.
        """
        return self.renewed_at + self.safe_seconds - monotonic()

    def give_up(self, reason: str) -> None:
        """Refuse everything from now on with `SpoolBroken`, also what waits for the database. The node has to end."""
        self._writer.give_up(reason)
        for reader in list(self.readers):
            reader.abort()

    def busy_for(self) -> float:
        """Return for how many seconds the current transaction has been running."""
        return self._writer.busy_for()

    async def commit(
        self,
        *operations: Operation,
        scope: str | None = None,
        on_done: OnCommitted | None = None,
        max_delay: float = 0.0,
    ) -> None:
        """Store all operations or none. Returns when they will survive a power cut.

        Raises `CommitRefused` or `SpoolUnavailable` if nothing of this call was stored; after the latter it can be
        retried. After `SpoolBroken` only the next start can tell. On a full disk, calls with an `AddToInbox` are
        refused first. In a cluster, `HeldElsewhere` means that this node does not own the `scope`.

        `on_done` is called exactly once with the outcome, before any waiter, even if the caller was cancelled. With
        `max_delay` the writer may wait that many seconds for other calls to share the fsync with.
        """
        if self.shared_facts and any(
            isinstance(each, SetFact | TakeFact) and each.name.startswith(self.shared_facts) for each in operations
        ):
            operations = (*operations, WakeNodes())

        def apply(connection: Connection) -> None:
            for operation in operations:
                operation.apply(connection)

        is_intake = AddToInbox in map(type, operations)
        if self.shards is None:
            await self._writer.run(apply, is_intake=is_intake, on_done=on_done, max_delay=max_delay)
            return
        arrivals = [each.arrival for each in operations if isinstance(each, MarkSeen)]
        scopes = [each.scope for each in arrivals if each is not None and not each.position]
        scopes += [each.scope for each in operations if isinstance(each, AddArrival)]
        await self._writer.run(
            apply,
            is_intake=is_intake,
            on_done=on_done if scope is None else self.shards.track(scope, on_done),
            max_delay=max_delay,
            check=None if scope is None else partial(self.shards.require, scope),
            positions=tuple(map(shard_of, scopes)),
            usage=tuple([(each.day, each.person, each.model) for each in operations if isinstance(each, AddUsage)]),
        )

    async def drain(self) -> None:
        """Wait until all earlier calls are stored or refused and their `on_done` was called."""
        with suppress(SpoolUnavailable, SpoolBroken):
            await self.commit()

    async def recover(self, shards: Sequence[int] | None = None) -> RecoveredWork:
        """Return the unfinished work: all, or that of some shards. Rows that cannot be read become dead."""
        found = await self._writer.run(partial(queries.recover, shards))
        return replace(found, damaged_file=self.damaged_file)

    async def unanswered(self, shards: Sequence[int]) -> list[InboxRow]:
        """Return the messages of some shards that are waiting or being answered, oldest first."""
        return await self._writer.run(partial(queries.unanswered, shards))

    async def arrivals(self, after: Mapping[int, int], *, limit: int) -> list[ArrivalRow]:
        """Return the first messages of some shards that other nodes have accepted, in their order.

        `after` has the position of each shard behind which they are.
        """
        return await self._writer.run(partial(queries.arrivals, after, limit))

    async def take_revived(self) -> list[OutboxRow]:
        """Return the replies that a person has revived at any node of the cluster, and that this node has to send."""
        return await self._writer.run(partial(queries.take_revived, self._shards() or []))

    async def run(self, work: Callable[[Connection], _T], *, check: Callable[[], None] | None = None) -> _T:
        """Run statements of the cluster in a transaction. They take effect in order with all commits.

        `check` may raise an error just before the work is queued. Then nothing happens.
        """
        return await self._writer.run(work, check=check)

    async def unflushed_entries(self) -> AsyncIterator[tuple[str, list[tuple[int, bytes]]]]:
        """Yield the journaled transcript entries that no flush has written yet, by session and seq.

        A session with many entries comes in several parts, one after the other.
        """
        if not self._writer.has_journal:
            return
        session, after = "", -1
        while part := await self._writer.run(partial(queries.entries_after, session, after, _ENTRIES_PER_STEP)):
            yield part
            session, after = part[0], part[1][-1][0]

    async def drop_entries(self, upto: Mapping[str, int]) -> None:
        """Delete the journaled entries of each session up to the given seq, after a flush has written them.

        A crash between two steps leaves entries behind. The next flush deletes them.
        """
        sessions = list(upto.items()) if self._writer.has_journal else []
        while sessions:
            step = partial(queries.drop_entries, sessions[:_ENTRIES_PER_STEP], _ENTRIES_PER_STEP)
            del sessions[: await self._writer.run(step)]

    async def deletions(self) -> list[str]:
        """Return the keys of deleted sessions whose text may still be in the spool or in files."""
        return await self._writer.run(deletion.deletions)

    async def undelivered_turns(self, session: str) -> set[str]:
        """Return the turns of a session whose replies are not delivered yet."""
        return await self._writer.run(partial(deletion.undelivered_turns, session))

    async def purge(self, sessions: Collection[str]) -> list[str]:
        """Remove the last copies of the text of deleted sessions, and return the keys of those that have none left.

        The others have replies that wait to be sent: call this again for them. Commits wait while it runs. Raises
        `SpoolUnavailable`, `SpoolBroken` or `OSError` if the text is not removed.
        """
        due = await self._writer.run(partial(deletion.to_purge, list(sessions)))
        if not due:
            return []
        await self._writer.purge(due)
        return await self._writer.run(partial(deletion.end_deletions, due))

    async def delete_old_rows(
        self, now: datetime, *, keep: timedelta = timedelta(hours=48), max_seen: int = 200_000
    ) -> None:
        """Delete old events and finished rows, and return their space, in steps."""
        for step in (*retention.steps(now, keep=keep, max_seen=max_seen), *self._writer.space_steps()):
            while await self._writer.run(step):
                pass

    async def was_seen(self, event: MarkSeen) -> bool:
        return await self._writer.run(partial(queries.was_seen, event))

    async def find_message(self, address: Address, event_id: str) -> InboxRow | None:
        """Return the message of that event in any state; None if it is unknown or was deleted as old."""
        return await self._writer.run(partial(queries.find_message, address, event_id))

    async def open_messages(self, session: str) -> list[InboxRow]:
        """Return the messages of a session that are waiting or being answered, oldest first."""
        return await self._writer.run(partial(queries.open_messages, session))

    async def delivered_ids(self, since: datetime) -> set[str]:
        """Return the platforms' ids of the messages that were delivered since then."""
        return await self._writer.run(partial(queries.delivered_ids, since))

    async def facts(self, prefix: str = "") -> dict[str, str]:
        """Return the facts whose names start with `prefix`."""
        return await self._writer.run(partial(queries.facts, prefix))

    async def facts_after(self, prefix: str, after: str, *, limit: int) -> dict[str, str]:
        """Return the first `limit` facts whose names start with `prefix` and come after `after`, in order."""
        return await self._writer.run(partial(queries.facts_after, prefix, after, limit))

    async def count_facts(self, prefix: str) -> int:
        """Return how many facts have names that start with `prefix`."""
        return await self._writer.run(partial(queries.count_facts, prefix))

    async def use_facts(self, prefix: str, use: Callable[[dict[str, str]], None]) -> None:
        """Call `use` with the facts whose names start with `prefix`, in order with the `on_done` of all commits."""
        found: dict[str, str] = {}
        failures: list[Exception] = []

        def read(connection: Connection) -> None:
            found.update(queries.facts(prefix, connection))

        def on_done(error: BaseException | None) -> None:
            if error is None:
                try:
                    use(found)
                except Exception as bug:  # noqa: BLE001 - raised below.
                    failures.append(bug)

        await self._writer.run(read, on_done=on_done)
        if failures:
            raise failures[0]

    async def listing(self, *, limit: int = _LISTING_LIMIT) -> SpoolListing:
        """Return dead messages and undelivered replies, oldest first."""
        return await self._writer.run(partial(queries.listing, limit))

    async def usage(self, day: str, person: str | None = None) -> UsageTotal:
        """Return a person's usage on a day, or that of all people."""
        return await self._writer.run(partial(queries.usage, day, person))

    async def top_usage(self, day: str, *, limit: int) -> list[tuple[str, UsageTotal]]:
        """Return the people with the highest usage on a day."""
        return await self._writer.run(partial(queries.top_usage, day, limit))

    async def usage_between(self, since: str, until: str, person: str | None = None, *, limit: int) -> list[DailyUsage]:
        """Return the usage from one day to another, the newest first, of one person or of all."""
        return await self._writer.run(partial(queries.usage_between, since, until, person, limit))

    async def reminders(self, scope: str) -> list[ReminderRow]:
        """Return the active reminders of a scope, by number."""
        return await self._writer.run(partial(queries.reminders, scope))

    async def due_reminders(self, now: datetime, *, limit: int) -> list[ReminderRow]:
        """Return the reminders that are due, earliest first. Rows that cannot be read are ended.

        In a cluster, those of a shard that was taken over are due when its unfinished work was read: a message that is
        committed before that would be sent twice.
        """
        return await self._writer.run(partial(queries.due_reminders, now, limit, self._shards()))

    async def recurring_reminders(self) -> list[ReminderRow]:
        return await self._writer.run(partial(queries.recurring_reminders, self._shards()))

    async def next_reminder(self) -> datetime | None:
        """Return when the next reminder is due, if there are any."""
        return await self._writer.run(partial(queries.next_reminder, self._shards()))

    async def schedules(
        self, scope: str = "", *, ended: bool = False, after: str = "", limit: int = 0
    ) -> list[ScheduleRow]:
        """Return schedules by id, those behind `after`: all, or those of a scope. Of a cluster, those of all nodes.

        Those that have `ended`, or were deleted, are left out if they are not wanted. Rows that cannot be read are
        paused.
        """
        return await self._writer.run(partial(queries.schedules, scope=scope, ended=ended, after=after, limit=limit))

    async def own_schedules(self, *, after: str, limit: int) -> list[ScheduleRow]:
        """Return schedules by id, those behind `after`. In a cluster, those that this node fires."""
        return await self._writer.run(partial(queries.schedules_of_shards, self._shards(), after, limit))

    async def find_schedule(self, name: str) -> ScheduleRow | None:
        """Return the schedule with an id, also one that has ended."""
        return await self._writer.run(partial(queries.find_schedule, name))

    async def due_schedules(self, now: datetime, *, limit: int, excluded: Sequence[str]) -> list[ScheduleRow]:
        """Return the schedules that are due, earliest first, but for the `excluded` ids. For clusters as above."""
        return await self._writer.run(partial(queries.due_schedules, now, limit, excluded, self._shards()))

    async def next_schedule(self, excluded: Sequence[str]) -> datetime | None:
        """Return when the next schedule is due, if there are any but the `excluded` ones."""
        return await self._writer.run(partial(queries.next_schedule, excluded, self._shards()))

    async def schedule_runs(self, name: str, *, limit: int) -> list[ScheduleRun]:
        """Return the newest runs of a schedule, the newest first."""
        return await self._writer.run(partial(queries.schedule_runs, name, limit))

    async def schedule_counts(self) -> dict[str, int]:
        return await self._writer.run(queries.schedule_counts)

    def _shards(self) -> list[int] | None:
        """Return the shards that this node owns and has read; None without a cluster."""
        return None if self.shards is None else sorted(self.shards.epochs.keys() - self.shards.loading)

    async def stats(self) -> Stats:
        return await self._writer.run(self._writer.stats)

    async def copy_to(self, path: Path) -> None:
        """Write everything committed so far to a new private file. Commits wait for it.

        Raises `OSError` or `sqlite3.Error` if it cannot be written, and leaves no file behind.
        """
        await self._writer.copy_to(path)


async def retry_while_unavailable(
    work: Callable[[], Awaitable[_T]], *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> _T:
    """Repeat `work` with backoff while it raises `SpoolUnavailable`, which means that none of it was stored."""
    waits: Iterator[float] | None = None
    while True:
        try:
            return await work()
        except SpoolUnavailable:
            waits = waits or backoff_delays()
            await sleep(next(waits))
