"""A disk that gets full while messages come in: nothing is acknowledged that is not kept, and it goes on by itself."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.crash.far_side import Event
from tests.crash.scenarios import said
from tests.crash.stage import Stage, staged
from tests.disks import fill, small_disk

SIZE = 8 * 1024 * 1024
COUNT = 150
BEFORE = 50
"""Messages that come while there is room."""
BATCH = 20
CALM = 10
ROOM_TO_LOOK = 256 * 1024
"""A spool can only be read where there is room for SQLite's own file beside it."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", SIZE) as place:
        yield place


async def stay_full(ballast: Path, stage: Stage) -> int:
    """Keep the disk full until no more is taken in for a while; return how much was."""
    calm, known = 0, -1
    while calm < CALM:
        await asyncio.to_thread(fill, ballast)
        await asyncio.sleep(0.1)  # Nothing tells that something does not happen.
        calm = calm + 1 if known == len(stage.far.acknowledged) else 0
        known = len(stage.far.acknowledged)
    return known


async def write_until_refused(ballast: Path, stage: Stage, events: Sequence[Event]) -> None:
    """Keep the disk full and write, until something is not taken in; files that have room in them take a while."""
    await asyncio.to_thread(fill, ballast)
    for written in range(0, len(events), BATCH):
        stage.far.write(*events[written : written + BATCH])
        if await stay_full(ballast, stage) < BEFORE + written + BATCH:
            return
    raise AssertionError("the disk did not get full")


async def at_work_or_ended(stage: Stage) -> int:
    """Start a daemon with the disk as it is, with which it may go on or refuse to start."""
    arrival = stage.far.arrivals + 1
    pid = await stage.daemons.start(stage.order)
    outcomes = {
        asyncio.create_task(stage.far.until_arrival(arrival), name="at work"),
        asyncio.create_task(stage.daemons.ended(pid), name="ended"),
    }
    await asyncio.wait(outcomes, return_when=asyncio.FIRST_COMPLETED)
    for outcome in outcomes:
        outcome.cancel()
    await asyncio.wait(outcomes)
    return pid


def load(count: int) -> list[str]:
    return [f"chat{number % 5}:{'tool' if number % 3 == 0 else ''} {'x' * 2_000}" for number in range(count)]


@pytest.mark.parametrize("is_killed", [False, True])
async def test_what_comes_while_the_disk_is_full_waits_at_the_platform(
    tmp_path: Path, disk: Path, *, is_killed: bool
) -> None:
    async with staged(tmp_path, data=disk / "data") as stage:
        events = said(*load(BEFORE + 50 * BATCH))
        stage.far.write(*events[:BEFORE])
        pid = await stage.start()
        await stage.acknowledged(BEFORE)
        ballast = disk / "ballast"
        await write_until_refused(ballast, stage, events[BEFORE:])
        if is_killed:
            await stage.kill(pid)
            pid = await at_work_or_ended(stage)
        ballast.unlink()
        if stage.daemons.has_ended(pid):
            await stage.finish()
            return
        await stage.far.until_settled()
        await stage.stop(pid)
        stage.check()


async def test_a_spool_that_fills_the_disk_by_itself_goes_on(tmp_path: Path, disk: Path) -> None:
    """What takes the room is its log, which needs much less once it is in the file."""
    room = disk / "room"
    room.write_bytes(bytes(ROOM_TO_LOOK))
    async with staged(tmp_path, data=disk / "data") as stage:
        stage.far.write(*said(*load(2 * COUNT)))
        pid = await stage.start()
        await stage.far.until_settled()
        await stage.stop(pid)
        room.unlink()
        stage.check()
