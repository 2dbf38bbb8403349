import os
from pathlib import Path

import pytest

from gateway.files.to_text import save


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(b"content")
    return path


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "workspace"
    path.mkdir()
    return path


def test_a_file_is_copied_into_the_workspace(workspace: Path, source: Path) -> None:
    assert save(workspace, "a.bin", source, 100) == "attachments/a.bin"
    copy = workspace / "attachments" / "a.bin"
    assert copy.read_bytes() == b"content"
    assert copy.stat().st_mode & 0o777 == 0o600


def test_a_repeated_copy_replaces_the_file(workspace: Path, source: Path) -> None:
    save(workspace, "a.bin", source, 100)
    save(workspace, "a.bin", source, 100)
    assert [each.name for each in (workspace / "attachments").iterdir()] == ["a.bin"]


def test_the_oldest_files_are_evicted(workspace: Path, source: Path) -> None:
    names = [f"{number:08x}-1-a.bin" for number in range(4)]
    for age, name in enumerate(names):
        save(workspace, name, source, 15)
        os.utime(workspace / "attachments" / name, (age, age))
    assert sorted(each.name for each in (workspace / "attachments").iterdir()) == names[2:]


def test_files_of_other_origin_are_kept(workspace: Path, source: Path) -> None:
    """The owner may have chosen a folder of their own as the workspace."""
    (workspace / "attachments").mkdir()
    (workspace / "attachments" / "thesis.pdf").write_bytes(bytes(1_000))
    for number in range(4):
        save(workspace, f"{number:08x}-1-a.bin", source, 15)
    assert (workspace / "attachments" / "thesis.pdf").stat().st_size == 1_000


def test_links_in_the_workspace_are_not_followed(tmp_path: Path, workspace: Path, source: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.bin").write_bytes(b"precious")
    (workspace / "attachments").symlink_to(outside)
    with pytest.raises(OSError, match="directory"):
        save(workspace, "a.bin", source, 100)
    (workspace / "attachments").unlink()
    (workspace / "attachments").mkdir()
    (workspace / "attachments" / "a.bin").symlink_to(outside / "a.bin")
    save(workspace, "a.bin", source, 100)
    assert (outside / "a.bin").read_bytes() == b"precious"
