"""The log file: private and rotated by size. Its errors disturb nothing else."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.observability.log_file import LogFile


@contextmanager
def opened(path: Path, max_bytes: int = 100, keep: int = 2) -> Iterator[LogFile]:
    file = LogFile(path, max_bytes=max_bytes, keep=keep)
    file.open()
    yield file
    file.close()


def test_lines_keep_their_order_across_rotations_and_the_oldest_are_deleted(tmp_path: Path) -> None:
    path = tmp_path / "logs/gatehouse.log"
    before = os.umask(0)
    try:
        with opened(path) as file:
            for number in range(40):
                file.write(f"line {number:04}")
    finally:
        os.umask(before)
    files = [path.with_name("gatehouse.log.2"), path.with_name("gatehouse.log.1"), path]
    assert sorted(path.parent.iterdir()) == sorted(files)
    found = [int(line.split()[1]) for each in files for line in each.read_text().splitlines()]
    assert found == list(range(found[0], 40))
    assert len(found) > 20
    assert all(each.stat().st_size <= 100 and each.stat().st_mode & 0o777 == 0o600 for each in files)
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_new_start_appends_to_the_old_lines(tmp_path: Path) -> None:
    for word in ("one", "two"):
        with opened(tmp_path / "log") as file:
            file.write(word)
    assert (tmp_path / "log").read_text() == "one\ntwo\n"


def test_a_line_larger_than_the_size_limit_is_still_written(tmp_path: Path) -> None:
    with opened(tmp_path / "log") as file:
        file.write("x" * 500)
        file.write("next")
    assert (tmp_path / "log.1").read_text() == "x" * 500 + "\n"
    assert (tmp_path / "log").read_text() == "next\n"


def test_opening_a_folder_raises_at_once(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        LogFile(tmp_path, max_bytes=100, keep=1).open()


def test_a_failed_rotation_loses_lines_but_raises_no_error(tmp_path: Path) -> None:
    """A folder that is not empty has the name of the rotated file."""
    (tmp_path / "log.1/inside").mkdir(parents=True)
    file = LogFile(tmp_path / "log", max_bytes=100, keep=1)
    file.open()
    file.write("x" * 90)
    file.write("y" * 90)
    file.close()
    assert (tmp_path / "log").read_text() == "x" * 90 + "\n"
