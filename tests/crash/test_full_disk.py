"""A disk that gets full while messages come in: nothing is acknowledged that is not kept, and it goes on by itself."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.crash.scenarios import said
from tests.crash.stage import Stage, staged

SIZE = 8 * 1024 * 1024
COUNT = 150
CALM = 10


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=700", "tmpfs", str(place)]
    mounted = subprocess.run(command, check=False, capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)  # noqa: S607 - wherever it is installed


def fill(ballast: Path) -> None:
    """Take all the room there is, also what was freed since."""
    with ballast.open("ab", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4_096)):
            pass


async def stay_full(ballast: Path, stage: Stage) -> int:
    """Keep the disk full until no more is taken in for a while; return how much was."""
    calm, known = 0, -1
    while calm < CALM:
        await asyncio.to_thread(fill, ballast)
        await asyncio.sleep(0.1)  # Nothing tells that something does not happen.
        calm = calm + 1 if known == len(stage.far.acknowledged) else 0
        known = len(stage.far.acknowledged)
    return known


def load(count: int) -> list[str]:
    return [f"chat{number % 5}:{'tool' if number % 3 == 0 else ''} {'x' * 2_000}" for number in range(count)]


@pytest.mark.parametrize("is_killed", [False, True])
async def test_what_comes_while_the_disk_is_full_waits_at_the_platform(
    tmp_path: Path, disk: Path, *, is_killed: bool
) -> None:
    async with staged(tmp_path, data=disk / "data") as stage:
        stage.far.write(*said(*load(COUNT)))
        pid = await stage.start()
        await stage.acknowledged(50)
        ballast = disk / "ballast"
        assert await stay_full(ballast, stage) < COUNT
        if is_killed:
            await stage.kill(pid)
            pid = await stage.daemons.start(stage.order)
            await asyncio.sleep(1.0)  # It may go on or refuse to start, with the disk as it is.
        ballast.unlink()
        if stage.daemons.has_ended(pid):
            await stage.finish(patience=120)
            return
        await stage.far.until_settled(120)
        await stage.stop(pid)
        stage.check()


async def test_a_spool_that_fills_the_disk_by_itself_goes_on(tmp_path: Path, disk: Path) -> None:
    """What takes the room is its log, which needs much less once it is in the file."""
    async with staged(tmp_path, data=disk / "data") as stage:
        stage.far.write(*said(*load(2 * COUNT)))
        await stage.finish()
