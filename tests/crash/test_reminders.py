"""Kills daemons at every kill point while they send a due reminder."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from gateway.contract import Address, PeerKind, Sender
from gateway.data_dir import prepare_data_dir
from gateway.outbound.delivery import POSSIBLY_REPEATED
from gateway.spool import AddReminder, ReminderContent, Spool
from tests.crash.daemon_spec import CHANNEL, DaemonSpec
from tests.crash.daemons import Daemons, daemons
from tests.crash.fake_platform import FakePlatform
from tests.crash.harness import CrashHarness
from tests.crash.scale import SCALE
from tests.crash.stored import rows

STRIDE = max(1, 10 // SCALE)
"""The distance between tried kill points."""

ADA = Address(channel=CHANNEL, kind=PeerKind.DIRECT, peer="ada")


async def store_due_reminder(data_dir: Path) -> None:
    """Create a spool with a yearly reminder that is overdue."""
    prepare_data_dir(data_dir)
    async with await Spool.open(data_dir) as spool:
        await spool.commit(
            AddReminder(
                id="r",
                scope="s",
                due_at=datetime(2020, 1, 1, tzinfo=UTC),
                cron="0 0 1 1 *",
                about=ReminderContent(address=ADA, maker=Sender(id="ada"), text="call mum"),
                max_per_scope=1,
                max_total=1,
            )
        )


async def kill_at(harness: CrashHarness, at: int) -> bool:
    """Run a daemon that dies at that point. Returns False if it sent the reminder, and was stopped, before it."""
    pid = await harness.daemons.start(replace(harness.spec, die_at=at))
    sent = asyncio.create_task(harness.platform.until(lambda: bool(harness.platform.shown)), name="sent")
    ended = asyncio.create_task(harness.daemons.ended(pid), name="ended")
    await asyncio.wait({sent, ended}, return_when=asyncio.FIRST_COMPLETED)
    for task in (sent, ended):
        task.cancel()
    await asyncio.wait({sent, ended})
    return await harness.daemons.stop(pid) == -signal.SIGKILL


@asynccontextmanager
async def harness_with_due_reminder(home: Path, forked: Daemons) -> AsyncIterator[CrashHarness]:
    home.mkdir()  # noqa: ASYNC240 - no other task runs
    spec, platform = DaemonSpec(home=home), FakePlatform()
    await store_due_reminder(spec.data_dir)
    async with asyncio.timeout(60), platform.serving(spec.socket):
        yield CrashHarness(spec=spec, platform=platform, daemons=forked)


async def test_a_reminder_is_sent_once_wherever_the_daemon_is_killed(tmp_path: Path) -> None:
    at, deaths, has_died = 1, 0, True
    async with daemons() as forked:
        while has_died:
            async with harness_with_due_reminder(tmp_path / str(at), forked) as harness:
                has_died = await kill_at(harness, at)
                pid = await harness.start()
                await harness.platform.until(lambda platform=harness.platform: bool(platform.shown))  # type: ignore[misc]  # mypy knows no default here.
                await harness.stop(pid)
                check(harness, has_died=has_died)
            at, deaths = at + STRIDE, deaths + has_died
    assert deaths > 2, "the daemon reached no kill points"


def check(harness: CrashHarness, *, has_died: bool) -> None:
    """Assert one unmarked reminder at most, and a marked one only after a death."""
    shown = [each.text for each in harness.platform.shown]
    assert len([text for text in shown if not text.startswith(POSSIBLY_REPEATED)]) <= 1
    assert 1 <= len(shown) <= 1 + has_died
    assert rows(harness.spec, "SELECT key, state FROM outbox") == [("remind-r-1", "delivered")]
    assert rows(harness.spec, "SELECT rings FROM reminders") == [(1,)]
