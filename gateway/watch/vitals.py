"""The vital signs: everything about the running gateway that is measured by looking, taken at one moment."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from time import monotonic

from gateway.http.routes import Health
from gateway.job import Job
from gateway.lanes import Lanes
from gateway.spool import SpoolBroken, SpoolFull, Stats
from gateway.watch.at_work import Running
from gateway.watch.condition import Condition
from gateway.watch.organs import Organs

__all__ = ["Reading", "Vitals"]

_SPOOL_DEADLINE = 2.0
"""Seconds; a spool that is stuck must not keep anybody from learning that it is."""
_PROCESS = Path("/proc/self")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    taken_at: datetime
    started_at: datetime
    uptime: float
    health: Health
    running: tuple[Running, ...]
    """The jobs at hand, the longest first, with those that wait for an approval."""
    turns_running: int
    turns_resting: int
    messages_waiting: int
    max_waiting: int | None
    replies_waiting: int
    """Parts that are on their way to a chat, or stand behind one that is."""
    sessions: int
    scopes: int
    spool: Stats | None
    """None when the spool did not answer."""
    spool_busy_for: float
    spool_transactions: int
    flush_took: float | None
    flush_age: float
    flush_failures: int
    memory_bytes: int
    open_files: int
    cpu_seconds: float
    disk_free_bytes: int | None
    disk_size_bytes: int | None


class Vitals:
    def __init__(self, organs: Organs, condition: Condition, *, now: Callable[[], datetime]) -> None:
        self._organs = organs
        self._condition = condition
        self.now = now
        self.started = now()
        self._started_at = monotonic()

    @property
    def lanes(self) -> Lanes[Job]:
        return self._organs.lanes

    def health(self) -> Health:
        return self._condition.health()

    async def take(self) -> Reading:
        spool = await self._ask_spool()
        organs, times = self._organs, os.times()
        lanes = organs.lanes
        return Reading(
            taken_at=self.now(),
            started_at=self.started,
            uptime=monotonic() - self._started_at,
            health=self.health(),
            running=tuple(organs.at_work.running()),
            turns_running=lanes.running,
            turns_resting=lanes.resting,
            messages_waiting=lanes.waiting,
            max_waiting=lanes.max_in_all,
            replies_waiting=organs.replies.waiting + organs.replies.running,
            sessions=organs.sessions.session_count,
            scopes=organs.sessions.scope_count,
            spool=spool,
            spool_busy_for=organs.spool.busy_for(),
            spool_transactions=organs.spool.transactions,
            flush_took=organs.flushes.took,
            flush_age=organs.flushes.age(),
            flush_failures=organs.flushes.failures,
            memory_bytes=resident_bytes(),
            open_files=open_files(),
            cpu_seconds=times.user + times.system,
            disk_free_bytes=organs.space.free,
            disk_size_bytes=organs.space.size,
        )

    async def _ask_spool(self) -> Stats | None:
        try:
            async with asyncio.timeout(_SPOOL_DEADLINE):
                return await self._organs.spool.stats()
        except (TimeoutError, SpoolFull, SpoolBroken):
            return None


def resident_bytes() -> int:
    """Return what the process has in memory; /proc is no disk, so it may be read on the event loop. 0: cannot tell."""
    try:
        return int((_PROCESS / "statm").read_text(encoding="ascii").split()[1]) * _PAGE
    except OSError:
        return 0


def open_files() -> int:
    try:
        return sum(1 for _ in (_PROCESS / "fd").iterdir())
    except OSError:
        return 0
