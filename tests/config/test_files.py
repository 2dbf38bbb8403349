"""Private files and atomic writes."""

import os
import stat
from pathlib import Path

import pytest

from config.files import make_private_directory, write_atomically


def test_write_atomically_replaces_the_file_and_makes_it_private(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old and longer")
    path.chmod(0o644)
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_atomically(tmp_path / "folder", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_missing_folders_are_created_private_and_existing_ones_keep_their_mode(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir(mode=0o755)
    (tmp_path / "there").chmod(0o755)
    before = os.umask(0)
    try:
        make_private_directory(tmp_path / "there" / "a" / "b")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == {"there": 0o755, "a": 0o700, "b": 0o700}
