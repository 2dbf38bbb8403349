"""A far side and a process that forks daemons, for tests that tell each daemon by hand what becomes of it."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.crash.checks import Allowed, check
from tests.crash.daemons import Daemons, daemons
from tests.crash.far_side import PATIENCE, FarSide
from tests.crash.order import Order

__all__ = ["Stage", "staged"]


@dataclass(slots=True, kw_only=True)
class Stage:
    order: Order
    far: FarSide
    daemons: Daemons
    deaths: int = 0

    async def start(self, *, shutdown_timeout: float | None = None) -> int:
        """Start a daemon, and wait until it has come for events."""
        arrival = self.far.arrivals + 1
        order = self.order if shutdown_timeout is None else replace(self.order, shutdown_timeout=shutdown_timeout)
        pid = await self.daemons.start(order)
        await self.far.until_arrival(arrival)
        return pid

    async def kill(self, pid: int) -> None:
        assert await self.daemons.stop(pid, signal.SIGKILL) == -signal.SIGKILL
        self.deaths += 1

    async def stop(self, pid: int) -> None:
        """End a daemon in good order."""
        assert await self.daemons.stop(pid) == 0

    async def finish(self, patience: float = PATIENCE) -> None:
        """Have everything answered by one more daemon, end it, and look whether all is as it must be."""
        pid = await self.start()
        await self.far.until_settled(patience)
        await self.stop(pid)
        self.check()

    def check(self, undelivered: frozenset[str] = frozenset()) -> None:
        check(self.order, self.far, Allowed(deaths=self.deaths, lost_answers=self.far.lost, undelivered=undelivered))

    def set_clock(self, seconds: float) -> None:
        """Have the daemons' clock be off by so much from now on."""
        new = self.order.clock.with_suffix(".new")
        new.write_text(str(seconds))
        new.replace(self.order.clock)

    async def acknowledged(self, count: int) -> None:
        """Wait until so many events were taken."""
        async with asyncio.timeout(60):
            await self.far.until(lambda: len(self.far.acknowledged) >= count)


@asynccontextmanager
async def staged(home: Path, *before: str, **options: object) -> AsyncIterator[Stage]:
    """Set the stage; the daemons on it are run by the command `before`."""
    order = replace(Order(home=home), **options)  # type: ignore[arg-type] # Their types are those of the order's fields.
    far = FarSide(drops_repeats=order.flavour == "dropping", answers_together=order.busy in {"collect", "steer"})
    async with daemons(*before) as forked, far.serving(order.socket):
        try:
            yield Stage(order=order, far=far, daemons=forked)
        except BaseException as failure:
            failure.add_note(f"log: {order.log}\nunsettled: {far.unsettled()}")
            raise
