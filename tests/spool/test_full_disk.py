"""A disk of a few megabytes that is filled up and emptied again."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.spool import AppendEntries, InboxState, SetFact, SetInboxState, Spool, SpoolUnavailable, StartTurn
from tests.disks import small_disk
from tests.spool.samples import accept, send, take

SIZE = 6 * 1024 * 1024


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", SIZE) as place:
        yield place


def fill(disk: Path) -> Path:
    """Take all the room there is."""
    ballast = disk / "ballast"
    free = os.statvfs(disk)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize)
    return ballast


async def accepted_until_full(spool: Spool) -> int:
    for number in range(10_000):
        try:
            await spool.commit(take(f"e{number}"), accept(f"t{number}", text="x" * 1_000))
        except SpoolUnavailable:
            return number
    raise AssertionError("the disk did not get full")


async def test_a_full_disk_refuses_intake_and_lets_accepted_work_finish(disk: Path) -> None:
    with capture_logs() as logs:
        async with await Spool.open(disk) as spool:
            await spool.commit(take("first"), accept("first"))
            ballast = fill(disk)
            stored = await accepted_until_full(spool)
            assert spool.trouble is not None
            await spool.commit(StartTurn(turn="first"), AppendEntries(session="s", first_seq=1, lines=(b"said\n",)))
            await spool.commit(send("answer"), SetInboxState(turn="first", state=InboxState.ANSWERED))
            with pytest.raises(SpoolUnavailable):
                await spool.commit(take("late"), accept("late"))
            ballast.unlink()
            await spool.commit(take("late"), accept("late"))
            assert spool.trouble is None
        async with await Spool.open(disk) as again:
            turns = [row.turn for row in (await again.recover()).inbox]
            assert turns == [*(f"t{number}" for number in range(stored)), "late"]
            assert (await again.stats()).seen == stored + 2, "what was refused can be taken again"
    assert [line["event"] for line in logs] == ["spool_write_failed", "spool_writable_again"]


async def test_everything_waits_when_the_reserve_is_used_up(disk: Path) -> None:
    async with await Spool.open(disk) as spool:
        await spool.commit(take("first"), accept("first"))
        fill(disk)
        await accepted_until_full(spool)
        again = fill_rest(disk)
        stored = await noted_until_full(spool)
        with pytest.raises(SpoolUnavailable):
            await spool.commit(SetFact(name="big", value="x" * 100_000))
        again.unlink()
        await spool.commit(SetFact(name="big", value="x" * 100_000))
        assert sum([len(entries) async for _, entries in spool.unflushed_entries()]) == stored
        assert not spool.broken.is_set()


def fill_rest(disk: Path) -> Path:
    rest = disk / "rest"
    free = os.statvfs(disk)
    with rest.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(free.f_bavail * free.f_frsize, 1))
    return rest


async def noted_until_full(spool: Spool) -> int:
    for seq in range(10_000):
        try:
            await spool.commit(AppendEntries(session="s", first_seq=seq, lines=(b"x" * 10_000,)))
        except SpoolUnavailable:
            return seq
    raise AssertionError("the disk did not get full")


async def test_a_disk_full_at_the_start_refuses_intake_until_there_is_room(disk: Path) -> None:
    async with await Spool.open(disk) as spool:
        await spool.commit(take("first"), accept("first"))
    (disk / "spool.reserve").unlink()
    ballast = fill(disk)
    with capture_logs():
        async with await Spool.open(disk) as spool:
            assert [row.turn for row in (await spool.recover()).inbox] == ["first"]
            with pytest.raises(SpoolUnavailable):
                await spool.commit(take("late"), accept("late"))
            ballast.unlink()
            await spool.commit(take("late"), accept("late"))
