"""Sleeps until a reminder or a schedule is due, by a wall clock that may jump."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

from gateway.spool import Spool, SpoolUnavailable

MAX_SLEEP = 60.0
"""Seconds until the wall clock is read again. It may have been set forward, or the machine was suspended."""
CLOCK_STEP = 60.0
"""The wall clock counts as set back if it falls this many seconds behind the monotonic clock."""
UNAVAILABLE_DELAY = 5.0
"""Seconds to wait while the spool is unavailable."""


class Timetable(Protocol):
    """Rows of the spool with the times at which they are due. All methods may raise `SpoolUnavailable`."""

    async def recompute(self) -> None:
        """Compute the next time of each row again. The clock, the time zone or the rows of this node have changed."""

    async def fire_due(self, tasks: asyncio.TaskGroup) -> None:
        """Do what is due now. What takes long goes on as one of `tasks`, and `next_due` leaves it out until it ends."""

    async def next_due(self) -> datetime | None:
        """Return when the next row is due, if there are any."""


class Scheduler:
    """`changed` is set when a row was added or changed, because it may be the next one that is due."""

    def __init__(
        self, spool: Spool, timetables: Sequence[Timetable], changed: asyncio.Event, *, now: Callable[[], datetime]
    ) -> None:
        self._spool = spool
        self._timetables = timetables
        self._changed = changed
        self._now = now
        self._must_recompute = True
        self._last_clocks: tuple[datetime, float] | None = None

    def recompute(self) -> None:
        """Compute all next times again, because the settings or the shards of this node have changed."""
        self._must_recompute = True
        self._changed.set()

    async def run(self) -> None:
        """Fire what is due until cancelled. What was committed takes effect now or after the next start."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                try:
                    # Cleared before the spool is read: a row that is added after the read sets it again.
                    self._changed.clear()
                    if self._was_clock_set_back() or self._must_recompute:
                        self._must_recompute = False
                        for timetable in self._timetables:
                            await timetable.recompute()
                    for timetable in self._timetables:
                        await timetable.fire_due(tasks)
                    due = [await timetable.next_due() for timetable in self._timetables]
                    await self._sleep_until(min(filter(None, due), default=None))
                except SpoolUnavailable:  # Reads fail as well.
                    self._must_recompute = True
                    await asyncio.sleep(UNAVAILABLE_DELAY)

    async def _sleep_until(self, due_at: datetime | None) -> None:
        """Sleep until `due_at` by the wall clock, a change of a row, or a step back of the clock."""
        is_in_cluster = self._spool.shards is not None
        while due_at is None or self._now() < due_at:
            # The loop's timer follows the monotonic clock, so a long sleep would miss changes of the wall clock.
            left = None if due_at is None else min(MAX_SLEEP, (due_at - self._now()).total_seconds())
            try:
                async with asyncio.timeout(MAX_SLEEP if left is None and is_in_cluster else left):
                    await self._changed.wait()
            except TimeoutError:
                if self._was_clock_set_back():
                    self._must_recompute = True
                    return
                if is_in_cluster:  # Another node may have moved a row to a scope of this one.
                    return
            else:
                return

    def _was_clock_set_back(self) -> bool:
        """Compare how far the wall clock and the monotonic clock have moved since the last call."""
        wall, steady = self._now(), asyncio.get_running_loop().time()
        before, self._last_clocks = self._last_clocks, (wall, steady)
        return before is not None and (wall - before[0]).total_seconds() < steady - before[1] - CLOCK_STEP
