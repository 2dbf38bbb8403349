"""`Spool`: the write-ahead log of the whole gateway, as the rest of the gateway sees it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from gateway.aio import backoff_delays
from gateway.contract import Address
from gateway.spool import queries, reminders, retention
from gateway.spool.apply import apply
from gateway.spool.database import copy
from gateway.spool.errors import SpoolBroken, SpoolFull
from gateway.spool.operations import AddToInbox, MarkSeen, Operation
from gateway.spool.rows import InboxRow, RecoveredWork, ReminderRow, SpoolListing, Stats, UsageTotal
from gateway.spool.writer import Job, OnCommitted, Writer

_QUEUE_LIMIT = 2_048
"""Calls that may wait for the writer; whoever comes then waits for a place in the queue."""

_NOTED_AT_ONCE = 500
_FORGOTTEN_AT_ONCE = 500
_LISTED = 1_000

_T = TypeVar("_T")


class Spool:
    """Open it once per data directory, under its lock, and use it from the event loop that opened it.

    All calls take effect in the order in which they were made. Once one has been queued, cancelling whoever waits for
    it does not take it back.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.broken = asyncio.Event()
        """Set when nothing can be stored any more: the daemon has to end, and not with success."""
        self.set_aside: Path | None = None
        self._places = asyncio.Semaphore(_QUEUE_LIMIT)
        self._writer = Writer(path, on_settled=self._make_room, on_broken=self.broken.set)
        self._is_closed = False

    @classmethod
    async def open(cls, data_dir: Path) -> Spool:
        """Open `spool.db`, or make it. `CannotStart` when it is a newer version's, or cannot be used."""
        spool = cls(data_dir / "spool.db")
        spool.set_aside = await spool._writer.start()
        return spool

    async def close(self) -> None:
        """Store what was committed before, then close the file. Commits fail afterwards."""
        if not self._is_closed:
            self._is_closed = True
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
    def trouble(self) -> str | None:
        """What keeps the spool from being written, as a sentence for the operator; None when all is well."""
        return None if self._writer.trouble is None else str(self._writer.trouble)

    @property
    def transactions(self) -> int:
        """How many were committed; fewer than calls, when the gateway is busy."""
        return self._writer.batches

    def busy_for(self) -> float:
        """Return for how many seconds the disk has been at the transaction at hand."""
        return self._writer.busy_for()

    async def commit(self, *operations: Operation, on_done: OnCommitted | None = None, max_delay: float = 0.0) -> None:
        """Store all of them or none, and return when they will survive a power cut.

        Raises `CommitRefused` or `SpoolFull` if nothing of this call was stored; after `SpoolFull` the call can be
        retried. After `SpoolBroken` only the next start can tell. On a full disk, calls with an `AddToInbox` are
        refused first.

        `on_done` is called exactly once with the outcome, before any waiter, even if the caller was cancelled. With
        `max_delay` the writer may wait that many seconds for other calls to share the fsync with.
        """
        is_intake = AddToInbox in map(type, operations)
        work = partial(apply, operations=operations)
        await (await self._put(work, operations, is_intake=is_intake, on_done=on_done, max_delay=max_delay))

    async def drain(self) -> None:
        """Return once all that was asked for before has been stored or refused, and `on_done` has heard of it."""
        with suppress(SpoolFull, SpoolBroken):
            await self._do(lambda _: None)

    async def recover(self) -> RecoveredWork:
        """Return what is unfinished. Rows that cannot be read are set to dead on the way."""
        return replace(await self._do(queries.recover), set_aside=self.set_aside)

    async def unflushed_entries(self) -> AsyncIterator[tuple[str, list[tuple[int, bytes]]]]:
        """Yield the transcript entries that no flush has made durable yet, by session and seq.

        A session with many entries comes in several parts, one after the other.
        """
        session, after = "", -1
        while part := await self._do(partial(queries.noted, session=session, after=after, limit=_NOTED_AT_ONCE)):
            yield part
            session, after = part[0], part[1][-1][0]

    async def drop_entries(self, upto: Mapping[str, int]) -> None:
        """Drop the noted entries of each session up to the given seq: they are durable elsewhere now.

        It is done in steps between which commits go on. What is left of them after a crash is dropped the next time.
        """
        sessions = list(upto.items())
        while sessions:
            at_once = sessions[:_FORGOTTEN_AT_ONCE]
            done = await self._do(partial(queries.forget, upto=at_once, limit=_FORGOTTEN_AT_ONCE))
            del sessions[:done]

    async def delete_old_rows(
        self, now: datetime, *, keep: timedelta = timedelta(hours=48), at_most: int = 200_000
    ) -> None:
        """Drop old events and finished rows, and give their room back, in steps between which commits go on."""
        limits = retention.Limits(now=now, keep=keep, at_most=at_most)
        for step in retention.STEPS:
            while await self._do(partial(_tidy, step=step, limits=limits)):
                pass

    async def was_seen(self, event: MarkSeen) -> bool:
        """Tell whether that event was taken before."""
        return await self._do(partial(queries.was_taken, event=event))

    async def find_message(self, address: Address, event_id: str) -> InboxRow | None:
        """Return the message of that event, if it was accepted in the last days."""
        return await self._do(partial(queries.accepted, address=address, event_id=event_id))

    async def delivered_ids(self, since: datetime) -> set[str]:
        """Return the platforms' ids of the messages that were delivered since."""
        return await self._do(partial(queries.receipts, since=since))

    async def facts(self, prefix: str = "") -> dict[str, str]:
        """Return the facts that were remembered under names which begin with `prefix`."""
        return await self._do(partial(queries.facts, prefix=prefix))

    async def listing(self, *, limit: int = _LISTED) -> SpoolListing:
        """Return messages that were set aside and replies that were not delivered, oldest first."""
        return await self._do(partial(queries.listing, limit=limit))

    async def usage(self, day: str, person: str | None = None) -> UsageTotal:
        """Return what a person has used on a day; without one, what all have."""
        return await self._do(partial(queries.spent, day=day, person=person))

    async def top_usage(self, day: str, *, limit: int) -> list[tuple[str, UsageTotal]]:
        """Return who has used most on a day, and how much."""
        return await self._do(partial(queries.spenders, day=day, limit=limit))

    async def reminders(self, scope: str) -> list[ReminderRow]:
        """Return those of a scope that are not over, by number."""
        return await self._do(partial(reminders.of_scope, scope=scope))

    async def due_reminders(self, now: datetime, *, limit: int) -> list[ReminderRow]:
        """Return those that are due, the earliest first. Rows that cannot be read are ended on the way."""
        return await self._do(partial(reminders.due, now=now, limit=limit))

    async def recurring_reminders(self) -> list[ReminderRow]:
        return await self._do(reminders.recurring)

    async def next_reminder(self) -> datetime | None:
        """Return when the next one is due, if there is any."""
        return await self._do(reminders.next_due)

    async def stats(self) -> Stats:
        return await self._do(partial(queries.stats, path=self.path))

    async def copy_to(self, path: Path) -> None:
        """Write all that was committed up to now to a new file, private from birth.

        Commits wait meanwhile. `OSError` or `sqlite3.Error` when it cannot be written, and then it is not there.
        """
        await (await self._put(partial(copy, path=path), is_alone=True))

    async def _do(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Have `work` done in the writer's thread, and wait for its end."""
        return await (await self._put(work))

    async def _put(
        self,
        work: Callable[[sqlite3.Connection], _T],
        operations: Sequence[Operation] = (),
        *,
        is_intake: bool = False,
        is_alone: bool = False,
        on_done: OnCommitted | None = None,
        max_delay: float = 0.0,
    ) -> asyncio.Future[_T]:
        """Queue `work` for the writer's thread; wait for a place in the queue when there is none."""
        try:
            await self._take_place()
        except BaseException as trouble:  # Also when cancelled: `on_done` is called once, whatever happens.
            if on_done is not None:
                on_done(trouble)
            raise
        waiter: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self._writer.put(Job(work, waiter, is_intake, is_alone, on_done, operations), max_delay=max_delay)
        return waiter

    async def _take_place(self) -> None:
        await self._places.acquire()
        if self._is_closed:
            self._places.release()
            raise RuntimeError("the spool is closed")

    def _make_room(self, places: int) -> None:
        for _ in range(places):
            self._places.release()


def _tidy(connection: sqlite3.Connection, *, step: retention.Step, limits: retention.Limits) -> bool:
    return step(connection, limits)


async def retry_while_full(
    work: Callable[[], Awaitable[_T]], *, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> _T:
    """Do `work`, again and again while the spool is full: then nothing of it has happened."""
    waits = backoff_delays()
    while True:
        try:
            return await work()
        except SpoolFull:
            await sleep(next(waits))
