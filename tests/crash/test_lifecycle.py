"""Daemons that are started, stopped and killed at random times during work."""

import asyncio
import os
import random
import signal
from pathlib import Path
from time import monotonic

import pytest

from tests.crash.engines import DATABASES, ENGINES, NewStorage
from tests.crash.fake_platform import Event
from tests.crash.harness import open_harness
from tests.crash.scale import SCALE
from tests.crash.scenarios import messages
from tests.crash.stored import inbox, outbox
from tests.polling import until

EXIT_CONFIG = 78
CHATS = 12


def load(count: int) -> tuple[Event, ...]:
    """Return messages of many chats. Every third calls a tool."""
    return messages(*(f"chat{number % CHATS}:{'tool' if number % 3 == 0 else ''}" for number in range(count)))


@pytest.mark.parametrize(
    ("engine", "seed"),
    [
        *(("files", seed) for seed in range(3 * SCALE)),
        *((engine, seed) for engine in DATABASES for seed in range(SCALE)),
    ],
)
async def test_kills_under_load_lose_no_message(tmp_path: Path, storages: NewStorage, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - not for secrets
    with storages(tmp_path) as storage:
        await kill_under_load(tmp_path, storage, rng)


async def kill_under_load(home: Path, storage: str, rng: random.Random) -> None:
    async with open_harness(home, storage=storage) as harness:
        harness.platform.write(*load(60))
        for _ in range(rng.randrange(1, 4)):
            pid = await harness.start()
            await harness.acknowledged(min(60, len(harness.platform.acknowledged) + rng.randrange(1, 30)))
            await harness.kill(pid)
        await harness.finish()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("shutdown_timeout", [10.0, 0.0])
async def test_sigterm_under_load_exits_cleanly_and_loses_no_message(
    tmp_path: Path, storages: NewStorage, shutdown_timeout: float
) -> None:
    """With a timeout, accepted messages are answered before the exit. Without, the next daemon answers them."""
    with storages(tmp_path) as storage:
        await stop_under_load(tmp_path, storage, shutdown_timeout)


async def stop_under_load(home: Path, storage: str, shutdown_timeout: float) -> None:
    async with open_harness(home, storage=storage) as harness:
        harness.platform.write(*load(200))
        for wanted in (20, 60, 120):
            pid = await harness.start(shutdown_timeout=shutdown_timeout)
            await harness.acknowledged(wanted)
            await harness.stop(pid)
        await harness.finish()


async def test_a_second_sigterm_exits_at_once_and_loses_no_message(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        harness.platform.write(*messages("ada:hang", "bob:"))
        pid = await harness.start(shutdown_timeout=3600.0)
        await harness.platform.until(lambda: len(harness.platform.shown) == 1)
        began = monotonic()
        os.kill(pid, signal.SIGTERM)
        # Two signals at the same time would count as one.
        await until(lambda: "shutdown_started" in harness.spec.log.read_text())
        await harness.stop(pid)
        assert monotonic() - began < 10
        states = [(message.event, message.state, message.attempts) for message in inbox(harness.spec)]
    assert states == [("m1", "running", 0), ("m2", "answered", 1)]


async def test_sigterm_while_idle_exits_at_once(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        pid = await harness.start()
        began = monotonic()
        await harness.stop(pid)
        assert monotonic() - began < 5


async def test_a_second_daemon_refuses_to_start_and_the_first_continues(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        pid = await harness.start()
        second = await harness.daemons.start(harness.spec)
        async with asyncio.timeout(60):
            assert await harness.daemons.ended(second) == EXIT_CONFIG
        assert f"in use by process {pid}" in harness.spec.log.read_text()
        harness.platform.write(*messages("ada:"))
        await harness.platform.until_settled()
        await harness.kill(pid)
        await harness.finish()


@pytest.mark.parametrize("flavour", ["plain", "editing"])
async def test_events_delivered_a_hundred_times_are_answered_once(tmp_path: Path, flavour: str) -> None:
    async with open_harness(tmp_path, flavour=flavour) as harness:
        harness.platform.times = 100
        harness.platform.write(*messages("ada:", "ada:/new", "ada:tool", "ada:/clear"))
        pid = await harness.start()
        await harness.platform.until_settled()
        await harness.kill(pid)
        await harness.finish()
        assert len({shown.reply_to for shown in harness.platform.shown}) == len(harness.platform.events)


async def test_a_blocked_chat_delays_no_other_chat(tmp_path: Path) -> None:
    """Its messages survive a restart, and are delivered once the chat accepts messages again."""
    async with open_harness(tmp_path) as harness:
        harness.platform.stuck.add("eve")
        harness.platform.troubles["eve"].append("slow")
        harness.platform.write(*messages(*(f"{chat}:" for _ in range(10) for chat in ("eve", "ada", "bob"))))
        for _ in range(2):
            pid = await harness.start()
            await harness.platform.until_settled()
            await harness.stop(pid)
        harness.check(undelivered=frozenset({"eve"}))
        harness.platform.stuck.clear()
        harness.platform.troubles.clear()
        await harness.finish()


async def test_sends_to_a_deleted_chat_are_not_retried(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        harness.platform.stuck.add("eve")
        harness.platform.troubles["eve"].append("gone")
        harness.platform.write(*messages("eve:", "ada:", "eve:", "ada:"))
        for _ in range(2):
            pid = await harness.start()
            await harness.platform.until_settled()
            await harness.stop(pid)
        harness.check(undelivered=frozenset({"eve"}))
        assert harness.platform.refused == 2
        assert [reply.state for reply in outbox(harness.spec)].count("dead") == 2


HOUR, DAY = 3600.0, 86_400.0


@pytest.mark.parametrize("jumps", [(-3650 * DAY, -3649 * DAY), (23 * HOUR, -HOUR), (HOUR, -3650 * DAY), (DAY, -DAY)])
async def test_clock_jumps_change_no_order_and_lose_no_message(tmp_path: Path, jumps: tuple[float, float]) -> None:
    """The clock jumps while messages are being answered, and again while no daemon runs."""
    async with open_harness(tmp_path) as harness:
        harness.platform.write(*load(90))
        pid = await harness.start()
        await harness.acknowledged(30)
        harness.set_clock(jumps[0])
        await harness.acknowledged(60)
        await harness.kill(pid)
        harness.set_clock(jumps[1])
        await harness.finish()


async def test_one_user_with_very_many_messages_gets_every_answer(tmp_path: Path) -> None:
    """The first message of another user does not wait for them."""
    count = 1_000 if SCALE == 1 else 10_000
    async with open_harness(tmp_path) as harness:
        harness.platform.write(*messages(*["ada:"] * count))
        pid = await harness.start()
        await harness.acknowledged(count // 2)
        await harness.kill(pid)
        harness.platform.events.insert(
            len(harness.platform.acknowledged) + 1, Event(id="other", chat="bob", text="other")
        )
        await harness.finish(within=300)
        answered = [shown.reply_to for shown in harness.platform.shown]
        assert answered.index("other") < count - 10
