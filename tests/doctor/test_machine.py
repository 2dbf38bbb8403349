import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.doctor.finding import Level
from gateway.doctor.machine import clock, disk, file_system, fsync_speed
from tests.disks import fill, small_disk

MIB = 1024 * 1024


def usage(free: int, files: int = 10**6) -> os.statvfs_result:
    return os.statvfs_result((4096, MIB, 10**6, free, free, 10**7, files, files, 0, 255))


@pytest.mark.parametrize(
    ("free", "files", "level"),
    [(5000, 10**6, Level.FINE), (500, 10**6, Level.ODD), (10, 10**6, Level.WRONG), (5000, 5, Level.WRONG)],
)
def test_room_is_judged(free: int, files: int, level: Level, tmp_path: Path) -> None:
    assert disk(tmp_path, lambda _: usage(free, files)).level is level


def test_a_slow_disk_is_told(tmp_path: Path) -> None:
    ticks = iter(range(1000))
    assert fsync_speed(tmp_path, clock=lambda: float(next(ticks))).level is Level.ODD
    assert fsync_speed(tmp_path / "gone").level is Level.WRONG
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_not_taken_for_a_foreign_one(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64 * 1024) as place:
        fill(place / "ballast")
        found = fsync_speed(place)
    assert (found.level, found.fix) == (Level.WRONG, "Make room.")


@pytest.mark.parametrize(("kind", "said"), [("nfs4", "locks"), ("tmpfs", "outlive"), ("ext4", "")])
def test_a_file_system_that_forgets_is_told(kind: str, said: str, tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/a / xfs rw 0 0\nb {tmp_path} {kind} rw 0 0\nc {tmp_path}/other btrfs rw 0 0\n")
    found = [finding.message for finding in file_system(tmp_path, mounts)]
    assert len(found) == bool(said)
    assert all(said in message for message in found)


def test_a_clock_that_was_never_set_is_told(tmp_path: Path) -> None:
    assert clock(tmp_path, lambda: datetime(1970, 1, 2, tzinfo=UTC)).level is Level.WRONG
