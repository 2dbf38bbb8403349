"""Housekeeping: what is done now and then beside the conversations, so that they last and the disk has room."""

import asyncio
import gc
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import Protocol

from gateway.access.live import Live
from gateway.files.uploads import FileRoutes
from gateway.job import Job
from gateway.sessions import SessionManager
from gateway.spool import Spool, SpoolFull


class Flushable(Protocol):
    """What is flushed: the sessions. A failure raises nothing, and is told by `trouble`."""

    @property
    def trouble(self) -> str | None: ...

    async def flush(self) -> None: ...


class Flushes:
    """`note` hears how many seconds each flush took."""

    def __init__(
        self, sessions: Flushable, note: Callable[[float], None], clock: Callable[[], float] = monotonic
    ) -> None:
        self._sessions = sessions
        self._note = note
        self._clock = clock
        self._since: float | None = None
        self._worked_at = clock()
        self.took: float | None = None
        """Seconds that the last one took; None before the first."""
        self.failures = 0

    async def flush(self) -> None:
        started = self._since = self._clock()
        try:
            await self._sessions.flush()
        finally:
            self._since = None
        self.took = self._clock() - started
        self._note(self.took)
        if self._sessions.trouble is None:
            self._worked_at = self._clock()
        else:
            self.failures += 1

    def age(self) -> float:
        """Return the seconds since a flush has worked, or since the start, after which all was durable."""
        return self._clock() - self._worked_at

    def busy_for(self) -> float:
        """Return for how many seconds the flush at hand has been at it: a stuck disk shows here."""
        return 0.0 if self._since is None else self._clock() - self._since


class Steadiness:
    """The wall clock is steady once it has gone along with the monotonic one for `needed` seconds."""

    def __init__(self, *, needed: float = 3600.0, tolerance: float = 60.0) -> None:
        self._needed = needed
        self._tolerance = tolerance
        self._last: tuple[datetime, float] | None = None
        self._since = 0.0

    def look(self, wall: datetime, monotonic: float) -> bool:
        """Compare the clocks, some time after the last look; tell whether the wall clock is steady by now."""
        if self._last is None or self._drift(wall, monotonic) > self._tolerance:
            self._since = monotonic
        self._last = wall, monotonic
        return monotonic - self._since >= self._needed

    def _drift(self, wall: datetime, monotonic: float) -> float:
        assert self._last is not None, "there is no drift before the second look"  # noqa: S101 - for mypy and the reader
        was, then = self._last
        return abs((wall - was).total_seconds() - (monotonic - then))


class FreeSpace:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.free: int | None = None
        """Bytes; None before the first look."""
        self.size: int | None = None

    async def look(self) -> None:
        try:
            found = await asyncio.to_thread(shutil.disk_usage, self._directory)
        except OSError:
            return  # Whoever writes there says what is wrong, better than we could.
        self.free, self.size = found.free, found.total


_NEW_OBJECTS = 10_000
"""More new objects than old ones have gone, before it looks: a tenth of a message's time would else be spent on it."""


def settle() -> None:
    """Leave out what was loaded until now, and look less often: what a message leaves goes by itself."""
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS)


def give_back() -> None:
    """Have the C library return what it holds and nobody uses: a tenth of all, after a rush. Takes milliseconds."""
    import ctypes  # noqa: PLC0415 - an idle daemon never needs it

    with suppress(OSError, AttributeError):  # Other C libraries than GNU's do so by themselves, or never.
        ctypes.CDLL("libc.so.6").malloc_trim(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    job: Job
    seconds: float


class AtWork:
    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._jobs: dict[str, tuple[Job, float]] = {}

    @contextmanager
    def on(self, job: Job) -> Iterator[None]:
        """While inside, `job` is being worked on."""
        self._jobs[job.turn] = (job, self._clock())
        try:
            yield
        finally:
            self._jobs.pop(job.turn, None)

    def running(self) -> list[Running]:
        """Return the jobs at hand, the longest first."""
        now = self._clock()
        return [Running(job=job, seconds=now - since) for job, since in self._jobs.values()]


_WORTH_IT = 100
"""Transactions of the spool after which there may be memory to be given back."""


class Housekeeping:
    def __init__(
        self,
        *,
        live: Live,
        flushes: Flushes,
        space: FreeSpace,
        sessions: SessionManager,
        spool: Spool,
        uploads: FileRoutes,
        now: Callable[[], datetime],
    ) -> None:
        self._live = live
        self._flushes = flushes
        self._space = space
        self._sessions = sessions
        self._spool = spool
        self._uploads = uploads
        self._now = now
        self._steadiness = Steadiness()
        self._given_back_at = 0
        """How much had been stored by then."""

    async def run(self) -> None:
        """Go round until cancelled: sooner than usual while flushes fail."""
        while True:
            await self._space.look()
            await asyncio.sleep(self._sessions.next_flush(self._live.settings.gateway.flush_interval))
            await self._flushes.flush()
            with suppress(SpoolFull):  # There is more room some other time.
                await self._tidy_up()
            await self._uploads.tidy()
            await self._give_back()

    async def _give_back(self) -> None:
        """Give memory back after some work; without any there is none."""
        stored = self._spool.transactions
        if stored - self._given_back_at >= _WORTH_IT:
            self._given_back_at = stored
            await asyncio.to_thread(give_back)

    async def _tidy_up(self) -> None:
        is_steady = self._steadiness.look(self._now(), asyncio.get_running_loop().time())
        await self._sessions.sweep(expires=is_steady)
        await self._spool.tidy(self._now())
