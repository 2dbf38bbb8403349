"""Periodic work: flushes sessions, expires old data, checks the disk and frees memory."""

import asyncio
import gc
import shutil
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Protocol

import structlog

from config import Backend
from gateway.access.rules import Live
from gateway.errors import HeldElsewhere
from gateway.files.uploads import FileRoutes
from gateway.job import Job
from gateway.lanes import Lanes
from gateway.sessions import SessionManager
from gateway.sessions.keys import parse_key
from gateway.sessions.retention import SweepReport
from gateway.spool import Spool, SpoolUnavailable
from gateway.turns.grants import GrantBook

log = structlog.get_logger()

GC_THRESHOLD = 10_000
"""New objects before the garbage collector runs. With Python's default it takes a tenth of a message's time."""
TRANSACTIONS_BEFORE_TRIM = 100
"""Spool transactions after which the C library may hold memory that is worth returning."""


class Flushable(Protocol):
    """The sessions. `flush` does not raise; `trouble` says whether it failed."""

    @property
    def trouble(self) -> str | None: ...

    async def flush(self) -> None: ...


class SessionFlusher:
    """Flushes the sessions and measures how long that takes. `observe` gets the seconds of each flush."""

    def __init__(
        self, sessions: Flushable, observe: Callable[[float], None], clock: Callable[[], float] = monotonic
    ) -> None:
        self._sessions = sessions
        self._observe = observe
        self._clock = clock
        self._running_since: float | None = None
        self._succeeded_at = clock()
        self.took: float | None = None
        """Seconds of the last flush. None before the first."""
        self.failures = 0

    async def flush(self) -> None:
        started = self._running_since = self._clock()
        try:
            await self._sessions.flush()
        finally:
            self._running_since = None
        self.took = self._clock() - started
        self._observe(self.took)
        if self._sessions.trouble is None:
            self._succeeded_at = self._clock()
        else:
            self.failures += 1

    def age(self) -> float:
        """Return the seconds since the last successful flush, or since the start."""
        return self._clock() - self._succeeded_at

    def busy_for(self) -> float:
        """Return the seconds that the running flush has taken so far. A stuck disk shows here."""
        return 0.0 if self._running_since is None else self._clock() - self._running_since


class ClockCheck:
    """Trusts the wall clock once it has run in step with the monotonic clock for `needed` seconds.

    Sessions expire by the wall clock. A machine that boots with a wrong date must not expire them all.
    """

    def __init__(self, *, needed: float = 3600.0, tolerance: float = 60.0) -> None:
        self._needed = needed
        self._tolerance = tolerance
        self._last: tuple[datetime, float] | None = None
        self._in_step_since = 0.0

    def is_trusted(self, wall: datetime, monotonic: float) -> bool:
        """Compare the clocks with the previous call."""
        if self._last is None:
            self._in_step_since = monotonic
        else:
            last_wall, last_monotonic = self._last
            if abs((wall - last_wall).total_seconds() - (monotonic - last_monotonic)) > self._tolerance:
                self._in_step_since = monotonic
        self._last = wall, monotonic
        return monotonic - self._in_step_since >= self._needed


class DiskSpace:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.free: int | None = None
        """Bytes. None before the first check."""

    async def check(self) -> None:
        with suppress(OSError):  # The next write there reports a better error.
            self.free = (await asyncio.to_thread(shutil.disk_usage, self._directory)).free


class Housekeeping:
    def __init__(
        self,
        *,
        live: Live,
        flusher: SessionFlusher,
        disk: DiskSpace,
        sessions: SessionManager,
        lanes: Lanes[Job],
        spool: Spool,
        uploads: FileRoutes,
        grants: GrantBook,
        now: Callable[[], datetime],
    ) -> None:
        self._live = live
        self._flusher = flusher
        self._disk = disk
        self._sessions = sessions
        self._lanes = lanes
        self._spool = spool
        self._uploads = uploads
        self._grants = grants
        self._now = now
        self._clock_check = ClockCheck()
        self._trimmed_at = 0
        """The number of spool transactions at the last trim."""
        self._failing: set[str] = set()
        """Jobs that have failed in the last round."""

    async def run(self) -> None:
        """Repeat until cancelled. The interval is shorter while flushes fail."""
        while True:
            await self._attempt("disk space", self._disk.check)
            await asyncio.sleep(self._sessions.flush_delay(self._live.settings.gateway.flush_interval))
            await self._attempt("flush", self._flusher.flush)
            is_clock_trusted = self._clock_check.is_trusted(self._now(), asyncio.get_running_loop().time())
            await self._attempt("sessions", partial(self.sweep, expires=is_clock_trusted))
            await self._attempt("grants", self._remove_grants)
            if self._spool.shards is None or 0 in self._spool.shards.epochs:  # One node of a cluster is enough.
                await self._attempt("spool", partial(self._spool.delete_old_rows, self._now()))
            await self._attempt("uploads", self._uploads.tidy)
            if self._spool.transactions - self._trimmed_at >= TRANSACTIONS_BEFORE_TRIM:
                self._trimmed_at = self._spool.transactions
                await self._attempt("memory", partial(asyncio.to_thread, return_free_memory))

    async def sweep(self, *, expires: bool = True) -> SweepReport:
        """Complete idle sessions and archive old ones, except those with a turn."""
        agents = self._live.settings.agents
        # The program of a coding agent takes hundreds of megabytes, so its sessions have a limit of their own.
        minutes = {name: agent.idle_minutes for name, agent in agents.items() if agent.backend is Backend.ACP}
        return await self._sessions.sweep(is_busy=self._lanes.is_busy, expires=expires, minutes_of_agents=minutes)

    async def _remove_grants(self) -> None:
        """Remove what was allowed for sessions that were pruned, archived or deleted."""
        shards = self._spool.shards

        def exists(key: str) -> bool:  # Only their owner knows the sessions of a shard.
            is_known = shards is None or shards.serves(parse_key(key)[0])
            return not is_known or self._sessions.find(key) is not None

        if operations := self._grants.remove_sessions(exists):
            await self._spool.commit(*operations)

    async def _attempt(self, job: str, work: Callable[[], Awaitable[object]]) -> None:
        """Do one job. If the system does not let it, such as for lack of descriptors, the next round tries again."""
        try:
            await work()
        except (SpoolUnavailable, HeldElsewhere):  # Another node of the cluster does the latter.
            return
        except (OSError, ImportError) as error:  # An import fails in its own way without descriptors.
            if job not in self._failing:  # Logged once, not in each round.
                log.warning("housekeeping_failed", job=job, reason=str(error))
            self._failing.add(job)
            return
        if job in self._failing:
            self._failing.discard(job)
            log.info("housekeeping_recovered", job=job)


def tune_garbage_collector() -> None:
    """Exclude everything that is loaded by now, and collect less often. Call this again when more was loaded."""
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD)
    gc.enable()


def return_free_memory() -> None:
    """Return the free memory of the C library to the system: a tenth of all memory under load. Takes milliseconds."""
    import ctypes  # noqa: PLC0415 - an idle daemon never needs it

    with suppress(OSError, AttributeError):  # C libraries other than GNU's have no malloc_trim.
        ctypes.CDLL("libc.so.6").malloc_trim(0)
