import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.agent.toolbox import edit_file, write_file
from gateway.agent.tools import ToolContext, ToolFailed
from gateway.conversation import Json


async def test_a_new_file_and_its_folders_are_private(context: ToolContext) -> None:
    assert await write_file.run(context, {"path": "a/b/c.txt", "content": "é\n"}) == "Written: 3 bytes."
    written = context.workspace / "a" / "b" / "c.txt"
    assert written.read_text() == "é\n"
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    assert stat.S_IMODE(written.parent.stat().st_mode) == 0o700


async def test_a_replaced_file_keeps_its_mode_and_leaves_no_temporary_file(context: ToolContext) -> None:
    script = context.workspace / "run.sh"
    script.write_text("old")
    script.chmod(0o755)
    await write_file.run(context, {"path": "run.sh", "content": "new"})
    assert (script.read_text(), stat.S_IMODE(script.stat().st_mode)) == ("new", 0o755)
    assert os.listdir(context.workspace) == ["run.sh"]  # noqa: PTH208 - the names are the claim.


def _link_to_file(workspace: Path, outside: Path) -> str:
    (workspace / "link").symlink_to(outside / "secret")
    return "link"


def _link_to_folder(workspace: Path, outside: Path) -> str:
    (workspace / "folder").symlink_to(outside)
    return "folder/secret"


def _dangling_link(workspace: Path, outside: Path) -> str:
    (workspace / "dangling").symlink_to(outside / "new")
    return "dangling"


def _upwards(_workspace: Path, _outside: Path) -> str:
    return "../outside/secret"


def _absolute(_workspace: Path, outside: Path) -> str:
    return str(outside / "secret")


@pytest.mark.parametrize("way", [_link_to_file, _link_to_folder, _dangling_link, _upwards, _absolute])
async def test_no_file_outside_the_workspace_is_changed(
    way: Callable[[Path, Path], str], context: ToolContext, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("kept")
    path = way(context.workspace, outside)
    with pytest.raises(ToolFailed, match="outside the workspace"):
        await write_file.run(context, {"path": path, "content": "x"})
    with pytest.raises(ToolFailed, match="outside the workspace"):
        await edit_file.run(context, {"path": path, "old": "kept", "new": "x"})
    assert [(file.name, file.read_text()) for file in outside.iterdir()] == [("secret", "kept")]


async def test_a_hard_link_is_replaced_not_written_through(context: ToolContext, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("kept")
    (context.workspace / "twin").hardlink_to(tmp_path / "secret")
    await edit_file.run(context, {"path": "twin", "old": "kept", "new": "gone"})
    assert (tmp_path / "secret").read_text() == "kept"


@pytest.mark.parametrize(
    ("path", "reason"),
    [(".", "workspace itself"), ("pipe", "not a file"), ("folder", "not a file"), ("file/below", "Not a directory")],
)
async def test_an_unwritable_path_is_explained(path: str, reason: str, context: ToolContext) -> None:
    os.mkfifo(context.workspace / "pipe")
    (context.workspace / "folder").mkdir()
    (context.workspace / "file").touch()
    with pytest.raises(ToolFailed, match=reason):
        await write_file.run(context, {"path": path, "content": "x"})


async def test_a_single_match_is_replaced(context: ToolContext) -> None:
    (context.workspace / "code.py").write_text("a = 1\nb = 1\n")
    assert await edit_file.run(context, {"path": "code.py", "old": "b = 1", "new": "b = 2"}) == "Replaced 1 time."
    assert (context.workspace / "code.py").read_text() == "a = 1\nb = 2\n"


async def test_every_match_is_replaced_on_request(context: ToolContext) -> None:
    (context.workspace / "code.py").write_text("1 1 1")
    edit: dict[str, Json] = {"path": "code.py", "old": "1", "new": "2", "every": True}
    assert await edit_file.run(context, edit) == "Replaced 3 times."
    assert (context.workspace / "code.py").read_text() == "2 2 2"


async def test_the_line_endings_of_the_file_are_kept(context: ToolContext) -> None:
    (context.workspace / "dos.txt").write_bytes(b"one\r\ntwo\r\nthree\r\n")
    await edit_file.run(context, {"path": "dos.txt", "old": "one\ntwo", "new": "1\n2"})
    assert (context.workspace / "dos.txt").read_bytes() == b"1\r\n2\r\nthree\r\n"


@pytest.mark.parametrize(
    ("old", "reason"), [("", "is empty"), ("nowhere", "is not in"), ("a", "2 times"), ("b", "would become too big")]
)
async def test_an_edit_without_a_unique_match_changes_nothing(old: str, reason: str, context: ToolContext) -> None:
    (context.workspace / "file").write_text("a a " + "b" * 100)
    with pytest.raises(ToolFailed, match=reason):
        await edit_file.run(context, {"path": "file", "old": old, "new": "x" * 50_000, "every": old == "b"})
    assert (context.workspace / "file").read_text() == "a a " + "b" * 100


@pytest.mark.parametrize(("content", "reason"), [(b"\xff\xfe", "UTF-8"), (b"x" * 2_000_001, "too big")])
async def test_binary_and_oversized_files_are_not_edited(content: bytes, reason: str, context: ToolContext) -> None:
    (context.workspace / "file").write_bytes(content)
    with pytest.raises(ToolFailed, match=reason):
        await edit_file.run(context, {"path": "file", "old": "x", "new": "y"})
