"""A fake platform and a fork server, for tests that start, stop and kill each daemon themselves."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.crash.checks import Allowed, check
from tests.crash.daemon_spec import DaemonSpec
from tests.crash.daemons import Daemons, daemons
from tests.crash.fake_platform import SETTLE_TIMEOUT, FakePlatform


@dataclass(slots=True, kw_only=True)
class CrashHarness:
    spec: DaemonSpec
    platform: FakePlatform
    daemons: Daemons
    deaths: int = 0

    async def start(self, *, shutdown_timeout: float | None = None) -> int:
        """Start a daemon, and wait until it fetches events."""
        arrival = self.platform.arrivals + 1
        spec = self.spec if shutdown_timeout is None else replace(self.spec, shutdown_timeout=shutdown_timeout)
        pid = await self.daemons.start(spec)
        await self.platform.until_arrival(arrival)
        return pid

    async def kill(self, pid: int) -> None:
        assert await self.daemons.stop(pid, signal.SIGKILL) == -signal.SIGKILL
        self.deaths += 1

    async def stop(self, pid: int) -> None:
        """Stop a daemon with SIGTERM."""
        assert await self.daemons.stop(pid) == 0

    async def finish(self, within: float = SETTLE_TIMEOUT) -> None:
        """Let one more daemon answer everything, stop it, and run all checks."""
        pid = await self.start()
        await self.platform.until_settled(within)
        await self.stop(pid)
        self.check()

    def check(self, undelivered: frozenset[str] = frozenset()) -> None:
        check(
            self.spec,
            self.platform,
            Allowed(deaths=self.deaths, lost_answers=self.platform.lost, undelivered=undelivered),
        )

    def set_clock(self, seconds: float) -> None:
        """Set the daemons' clock wrong by so many seconds."""
        new = self.spec.clock.with_suffix(".new")
        new.write_text(str(seconds))
        new.replace(self.spec.clock)

    async def acknowledged(self, count: int) -> None:
        """Wait until the gateway has acknowledged `count` events."""
        async with asyncio.timeout(60):
            await self.platform.until(lambda: len(self.platform.acknowledged) >= count)


@asynccontextmanager
async def open_harness(home: Path, *before: str, **options: object) -> AsyncIterator[CrashHarness]:
    """Open a harness. The command `before`, if given, runs the daemons. `options` are fields of `DaemonSpec`."""
    spec = replace(DaemonSpec(home=home), **options)  # type: ignore[arg-type] # `object`: the fields have different types.
    platform = FakePlatform(
        drops_repeats=spec.flavour == "dropping", answers_together=spec.busy in {"collect", "steer"}
    )
    async with daemons(*before) as forked, platform.serving(spec.socket):
        try:
            yield CrashHarness(spec=spec, platform=platform, daemons=forked)
        except BaseException as failure:
            failure.add_note(f"log: {spec.log}\nunsettled: {platform.unsettled()}")
            raise
