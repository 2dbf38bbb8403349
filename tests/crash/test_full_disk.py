"""A disk that gets full while messages arrive. The gateway acknowledges only stored messages, and recovers alone."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.crash.fake_platform import Event
from tests.crash.harness import CrashHarness, open_harness
from tests.crash.scenarios import messages
from tests.disks import fill, small_disk

SIZE = 8 * 1024 * 1024
COUNT = 150
BEFORE = 50
"""Messages that arrive before the disk is full."""
BATCH = 20
IDLE_CHECKS = 10
SPACE_FOR_CHECKS = 256 * 1024
"""SQLite needs space for its shared memory file even to read the spool."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", SIZE) as place:
        yield place


async def keep_full(ballast: Path, harness: CrashHarness) -> int:
    """Keep the disk full until no more events are acknowledged. Returns their number."""
    idle, known = 0, -1
    while idle < IDLE_CHECKS:
        await asyncio.to_thread(fill, ballast)
        await asyncio.sleep(0.1)  # There is no event for the absence of acknowledgements.
        idle = idle + 1 if known == len(harness.platform.acknowledged) else 0
        known = len(harness.platform.acknowledged)
    return known


async def write_until_refused(ballast: Path, harness: CrashHarness, events: Sequence[Event]) -> None:
    """Keep the disk full and send events until one is not acknowledged. Preallocated files take some first."""
    await asyncio.to_thread(fill, ballast)
    for written in range(0, len(events), BATCH):
        harness.platform.write(*events[written : written + BATCH])
        if await keep_full(ballast, harness) < BEFORE + written + BATCH:
            return
    raise AssertionError("the disk did not get full")


async def start_on_full_disk(harness: CrashHarness) -> int:
    """Start a daemon, and wait until it fetches events or refuses to start. Returns its pid."""
    arrival = harness.platform.arrivals + 1
    pid = await harness.daemons.start(harness.spec)
    outcomes = {
        asyncio.create_task(harness.platform.until_arrival(arrival), name="arrival"),
        asyncio.create_task(harness.daemons.ended(pid), name="ended"),
    }
    await asyncio.wait(outcomes, return_when=asyncio.FIRST_COMPLETED)
    for outcome in outcomes:
        outcome.cancel()
    await asyncio.wait(outcomes)
    return pid


def load(count: int) -> list[str]:
    return [f"chat{number % 5}:{'tool' if number % 3 == 0 else ''} {'x' * 2_000}" for number in range(count)]


@pytest.mark.parametrize("is_killed", [False, True])
async def test_messages_wait_at_the_platform_while_the_disk_is_full(
    tmp_path: Path, disk: Path, *, is_killed: bool
) -> None:
    async with open_harness(tmp_path, data=disk / "data") as harness:
        events = messages(*load(BEFORE + 50 * BATCH))
        harness.platform.write(*events[:BEFORE])
        pid = await harness.start()
        await harness.acknowledged(BEFORE)
        ballast = disk / "ballast"
        await write_until_refused(ballast, harness, events[BEFORE:])
        if is_killed:
            await harness.kill(pid)
            pid = await start_on_full_disk(harness)
        ballast.unlink()
        if harness.daemons.has_ended(pid):
            await harness.finish()
            return
        await harness.platform.until_settled()
        await harness.stop(pid)
        harness.check()


async def test_a_spool_that_filled_the_disk_itself_recovers(tmp_path: Path, disk: Path) -> None:
    """The write-ahead log takes the space. It shrinks with a checkpoint."""
    reserve = disk / "reserve"
    reserve.write_bytes(bytes(SPACE_FOR_CHECKS))
    async with open_harness(tmp_path, data=disk / "data") as harness:
        harness.platform.write(*messages(*load(2 * COUNT)))
        pid = await harness.start()
        await harness.platform.until_settled()
        await harness.stop(pid)
        reserve.unlink()
        harness.check()
