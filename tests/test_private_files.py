"""Files of the data directory are opened only if they are files."""

import os
import socket
from pathlib import Path

import pytest

from gateway.private_files import APPEND, NotAFile, delete_tree, open_private, read_private, rename_aside


def test_only_regular_files_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # The path of a socket must be short.
    os.mkfifo("pipe")
    Path("folder").mkdir()
    Path("loop").symlink_to("loop")
    Path("dangling").symlink_to("nothing")
    Path("file").write_text("content")
    Path("link").symlink_to("file")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
    kinds = {"pipe": "named pipe", "folder": "folder", "socket": "socket"}
    for name, kind in {**kinds, **dict.fromkeys(("loop", "dangling", "link"), "symbolic link")}.items():
        for flags in (os.O_RDONLY, os.O_WRONLY, APPEND, APPEND | os.O_CREAT):
            with pytest.raises(NotAFile, match=f"It is a {kind}, not a file"):
                open_private(tmp_path / name, flags)
    assert read_private(tmp_path / "file") == b"content"
    assert not Path("nothing").exists()


def test_a_path_that_the_operator_chose_may_be_a_link_but_never_waits(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    descriptor = open_private(tmp_path / "link", os.O_WRONLY | os.O_CREAT, follow_links=True)
    os.close(descriptor)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="No such device"):
        open_private(tmp_path / "pipe", os.O_WRONLY, follow_links=True)


def test_files_that_are_set_aside_never_replace_each_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for expected in ("file.corrupted", "file.corrupted-2", "file.corrupted-3"):
        path.symlink_to("nothing")
        assert rename_aside(path).name == expected


def test_a_tree_is_deleted_however_deep_it_is_and_links_are_not_followed(tmp_path: Path) -> None:
    """An agent can make thousands of folders inside each other. A path to the last one would be too long."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "link").symlink_to(outside)
    (tree / "dangling").symlink_to("nothing")
    os.mkfifo(tree / "pipe")
    (tree / "locked").mkdir(mode=0o500)
    folder = os.open(tree, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("folder", dir_fd=folder)
        above, folder = folder, os.open("folder", os.O_RDONLY, dir_fd=folder)
        os.close(above)
    os.close(folder)
    delete_tree(tree)
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]
    assert (outside / "kept").exists()


@pytest.mark.parametrize("kind", ["nothing", "file", "link"])
def test_what_is_in_the_place_of_a_tree_is_deleted(tmp_path: Path, kind: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("folder")
    delete_tree(tmp_path / kind)
    assert not os.path.lexists(tmp_path / kind)
    assert (tmp_path / "folder").exists()
