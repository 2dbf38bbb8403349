import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.doctor.finding import Level
from gateway.doctor.machine import check_clock, check_disk, check_file_system, check_fsync
from tests.disks import fill, small_disk

MIB = 1024 * 1024


def usage(free: int, files: int = 10**6) -> os.statvfs_result:
    return os.statvfs_result((4096, MIB, 10**6, free, free, 10**7, files, files, 0, 255))


@pytest.mark.parametrize(
    ("free", "files", "level"),
    [(5000, 10**6, Level.OK), (500, 10**6, Level.WARNING), (10, 10**6, Level.ERROR), (5000, 5, Level.ERROR)],
)
def test_free_space_and_inodes_are_checked(free: int, files: int, level: Level, tmp_path: Path) -> None:
    assert check_disk(tmp_path, lambda _: usage(free, files)).level is level


def test_slow_and_missing_disks_are_reported(tmp_path: Path) -> None:
    ticks = iter(range(1000))
    assert check_fsync(tmp_path, clock=lambda: float(next(ticks))).level is Level.WARNING
    assert check_fsync(tmp_path / "gone").level is Level.ERROR
    assert list(tmp_path.iterdir()) == []


def test_full_disk_is_not_mistaken_for_missing_permissions(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64 * 1024) as place:
        fill(place / "ballast")
        found = check_fsync(place)
    assert (found.level, found.fix) == (Level.ERROR, "Free some space.")


@pytest.mark.parametrize(("kind", "said"), [("nfs4", "locks"), ("tmpfs", "lost"), ("ext4", "")])
def test_unsafe_and_temporary_file_systems_are_reported(kind: str, said: str, tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/a / xfs rw 0 0\nb {tmp_path} {kind} rw 0 0\nc {tmp_path}/other btrfs rw 0 0\n")
    found = [finding.message for finding in check_file_system(tmp_path, mounts)]
    assert len(found) == bool(said)
    assert all(said in message for message in found)


def test_clock_in_the_past_is_reported(tmp_path: Path) -> None:
    assert check_clock(tmp_path, lambda: datetime(1970, 1, 2, tzinfo=UTC)).level is Level.ERROR
