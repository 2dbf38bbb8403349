"""Starting, stopping and killing in the middle of work, at times that nobody has chosen."""

import asyncio
import os
import random
import signal
from pathlib import Path
from time import monotonic

import pytest

from tests.crash.checks import rows
from tests.crash.far_side import Event
from tests.crash.scale import SCALE
from tests.crash.scenarios import said
from tests.crash.stage import staged
from tests.polling import until

EXIT_CONFIG = 78
CHATS = 12


def load(count: int) -> tuple[Event, ...]:
    """Return messages of many chats, every third with a tool."""
    return said(*(f"chat{number % CHATS}:{'tool' if number % 3 == 0 else ''}" for number in range(count)))


@pytest.mark.parametrize("seed", range(3 * SCALE))
async def test_kills_at_any_time_under_load_lose_nothing(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)  # noqa: S311 - not for secrets
    async with staged(tmp_path) as stage:
        stage.far.write(*load(60))
        for _ in range(dice.randrange(1, 4)):
            pid = await stage.start()
            await stage.acknowledged(min(60, len(stage.far.acknowledged) + dice.randrange(1, 30)))
            await stage.kill(pid)
        await stage.finish()


@pytest.mark.parametrize("patience", [10.0, 0.0])
async def test_sigterm_under_load_ends_well_and_loses_nothing(tmp_path: Path, patience: float) -> None:
    """With patience, what was accepted is answered before the end; without, after the next start."""
    async with staged(tmp_path) as stage:
        stage.far.write(*load(200))
        for wanted in (20, 60, 120):
            pid = await stage.start(shutdown_timeout=patience)
            await stage.acknowledged(wanted)
            await stage.stop(pid)
        await stage.finish()


async def test_a_second_sigterm_does_not_wait_and_loses_nothing(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.far.write(*said("ada:hang", "bob:"))
        pid = await stage.start(shutdown_timeout=3600.0)
        await stage.far.until(lambda: len(stage.far.shown) == 1)
        began = monotonic()
        os.kill(pid, signal.SIGTERM)
        # Two signals at once would count as one.
        await until(lambda: "shutdown_started" in stage.order.log.read_text())
        await stage.stop(pid)
        assert monotonic() - began < 10
        states = rows(stage.order.data_dir, "SELECT inbound ->> 'event_id', state, attempts FROM inbox ORDER BY id")
    assert states == [("m1", "running", 0), ("m2", "answered", 1)]


async def test_sigterm_while_idle_ends_at_once(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        pid = await stage.start()
        began = monotonic()
        await stage.stop(pid)
        assert monotonic() - began < 5


async def test_a_second_daemon_is_turned_away_and_the_first_goes_on(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        pid = await stage.start()
        second = await stage.daemons.start(stage.order)
        async with asyncio.timeout(60):
            assert await stage.daemons.ended(second) == EXIT_CONFIG
        assert f"in use by process {pid}" in stage.order.log.read_text()
        stage.far.write(*said("ada:"))
        await stage.far.until_settled()
        await stage.kill(pid)
        await stage.finish()


@pytest.mark.parametrize("flavour", ["plain", "editing"])
async def test_events_that_come_a_hundred_times_are_answered_once(tmp_path: Path, flavour: str) -> None:
    async with staged(tmp_path, flavour=flavour) as stage:
        stage.far.times = 100
        stage.far.write(*said("ada:", "ada:/new", "ada:tool", "ada:/clear"))
        pid = await stage.start()
        await stage.far.until_settled()
        await stage.kill(pid)
        await stage.finish()
        assert len({shown.reply_to for shown in stage.far.shown}) == len(stage.far.events)


async def test_a_chat_that_takes_nothing_holds_up_no_other(tmp_path: Path) -> None:
    """What it has not taken is kept over a restart, and delivered once when it takes again."""
    async with staged(tmp_path) as stage:
        stage.far.stuck.add("eve")
        stage.far.troubles["eve"].append("slow")
        stage.far.write(*said(*(f"{chat}:" for _ in range(10) for chat in ("eve", "ada", "bob"))))
        for _ in range(2):
            pid = await stage.start()
            await stage.far.until_settled()
            await stage.stop(pid)
        stage.check(undelivered=frozenset({"eve"}))
        stage.far.stuck.clear()
        stage.far.troubles.clear()
        await stage.finish()


async def test_a_chat_that_is_gone_is_not_tried_again(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.far.stuck.add("eve")
        stage.far.troubles["eve"].append("gone")
        stage.far.write(*said("eve:", "ada:", "eve:", "ada:"))
        for _ in range(2):
            pid = await stage.start()
            await stage.far.until_settled()
            await stage.stop(pid)
        stage.check(undelivered=frozenset({"eve"}))
        assert stage.far.refused == 2
        assert [state for (state,) in rows(stage.order.data_dir, "SELECT state FROM outbox")].count("dead") == 2


HOUR, DAY = 3600.0, 86_400.0


@pytest.mark.parametrize("jumps", [(-3650 * DAY, -3649 * DAY), (23 * HOUR, -HOUR), (HOUR, -3650 * DAY), (DAY, -DAY)])
async def test_a_clock_that_jumps_changes_no_order_and_loses_nothing(
    tmp_path: Path, jumps: tuple[float, float]
) -> None:
    """It jumps while messages are being answered, and again while the daemon is down."""
    async with staged(tmp_path) as stage:
        stage.far.write(*load(90))
        pid = await stage.start()
        await stage.acknowledged(30)
        stage.set_clock(jumps[0])
        await stage.acknowledged(60)
        await stage.kill(pid)
        stage.set_clock(jumps[1])
        await stage.finish()


async def test_one_user_with_very_many_messages_gets_every_answer(tmp_path: Path) -> None:
    """And the first message of another does not wait for them."""
    count = 1_000 if SCALE == 1 else 10_000
    async with staged(tmp_path) as stage:
        stage.far.write(*said(*["ada:"] * count))
        pid = await stage.start()
        await stage.acknowledged(count // 2)
        await stage.kill(pid)
        stage.far.events.insert(len(stage.far.acknowledged) + 1, Event(id="other", chat="bob", text="other"))
        await stage.finish(patience=300)
        answered = [shown.reply_to for shown in stage.far.shown]
        assert answered.index("other") < count - 10
