"""A reminder that is due, and a daemon that dies at every point on the way to it."""

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
from tests.crash.checks import rows
from tests.crash.daemons import Daemons, daemons
from tests.crash.far_side import FarSide
from tests.crash.order import CHANNEL, Order
from tests.crash.scale import SCALE
from tests.crash.stage import Stage

STRIDE = max(1, 10 // SCALE)
"""Of how many points one is tried."""

ADA = Address(channel=CHANNEL, kind=PeerKind.DIRECT, peer="ada")


async def leave_due(data_dir: Path) -> None:
    """Leave a spool with a reminder that is due every year, and was missed."""
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


async def dies(stage: Stage, at: int) -> bool:
    """Let a daemon die at that point; False when it has rung, and was stopped, before it came so far."""
    pid = await stage.daemons.start(replace(stage.order, die_at=at))
    rung = asyncio.create_task(stage.far.until(lambda: bool(stage.far.shown)), name="rung")
    ended = asyncio.create_task(stage.daemons.ended(pid), name="ended")
    await asyncio.wait({rung, ended}, return_when=asyncio.FIRST_COMPLETED)
    for task in (rung, ended):
        task.cancel()
    await asyncio.wait({rung, ended})
    return await stage.daemons.stop(pid) == -signal.SIGKILL


@asynccontextmanager
async def new_stage(home: Path, forked: Daemons) -> AsyncIterator[Stage]:
    home.mkdir()  # noqa: ASYNC240 - nothing else runs meanwhile
    order, far = Order(home=home), FarSide()
    await leave_due(order.data_dir)
    async with asyncio.timeout(60), far.serving(order.socket):
        yield Stage(order=order, far=far, daemons=forked)


async def test_a_reminder_is_sent_once_wherever_the_daemon_is_killed(tmp_path: Path) -> None:
    at, deaths, has_died = 1, 0, True
    async with daemons() as forked:
        while has_died:
            async with new_stage(tmp_path / str(at), forked) as stage:
                has_died = await dies(stage, at)
                pid = await stage.start()
                await stage.far.until(lambda far=stage.far: bool(far.shown))  # type: ignore[misc]  # mypy knows no default here.
                await stage.stop(pid)
                check(stage, has_died=has_died)
            at, deaths = at + STRIDE, deaths + has_died
    assert deaths > 2, "there are points"


def check(stage: Stage, *, has_died: bool) -> None:
    """See that it was shown once; and once more, marked, only where nobody could know of the first time."""
    shown = [each.text for each in stage.far.shown]
    assert len([text for text in shown if not text.startswith(POSSIBLY_REPEATED)]) <= 1
    assert 1 <= len(shown) <= 1 + has_died
    assert rows(stage.order.data_dir, "SELECT key, state FROM outbox") == [("remind-r-1", "delivered")]
    assert rows(stage.order.data_dir, "SELECT rings FROM reminders") == [(1,)]
