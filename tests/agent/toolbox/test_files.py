import os
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from gateway.agent.toolbox import list_files, read_file
from gateway.agent.toolbox.workspace import command_folder
from gateway.agent.tools import ToolContext, ToolFailed


async def test_a_file_is_read(context: ToolContext) -> None:
    (context.workspace / "a").mkdir()
    (context.workspace / "a" / "notes.txt").write_text("Olá\r\n", newline="")
    assert await read_file.run(context, {"path": "a/notes.txt"}) == "Olá\r\n"
    assert await read_file.run(context, {"path": "./a/../a/notes.txt"}) == "Olá\r\n"
    assert await read_file.run(context, {"path": str(context.workspace / "a/notes.txt")}) == "Olá\r\n"


async def test_a_folder_is_listed_in_order(context: ToolContext) -> None:
    (context.workspace / "b.txt").write_text("12345")
    (context.workspace / "a").mkdir()
    (context.workspace / "link").symlink_to("/etc/passwd")
    assert await list_files.run(context, {}) == "a/\nb.txt (5 bytes)\nlink"
    assert await list_files.run(context, {"path": "a"}) == "The folder is empty."


async def test_a_long_listing_says_how_much_is_left_out(context: ToolContext) -> None:
    for number in range(503):
        (context.workspace / f"{number:03}").touch()
    lines = (await list_files.run(context, {})).splitlines()
    assert (len(lines), lines[-1]) == (501, "... and 3 more. Use search_files to find one by its name.")


@pytest.fixture
def outside(context: ToolContext) -> Path:
    """Lay traps in the workspace that lead to a secret beside it."""
    secret = context.workspace.parent / "secret"
    secret.mkdir()
    (secret / "key").write_text("hunter2")
    (context.workspace / "file-link").symlink_to(secret / "key")
    (context.workspace / "folder-link").symlink_to("../secret")
    (context.workspace / "chain").symlink_to("folder-link")
    (context.workspace.parent / "workspace-2").mkdir()
    return secret


@pytest.mark.parametrize(
    "path",
    [
        "..",
        "../secret/key",
        "../workspace-2",
        "a/../../secret/key",
        "/etc/passwd",
        "file-link",
        "folder-link/key",
        "chain/key",
        "chain",
        "~/../../secret/../../../etc/passwd",
    ],
)
@pytest.mark.usefixtures("outside")
async def test_no_path_leads_out_of_the_workspace(path: str, context: ToolContext) -> None:
    for tool in (read_file, list_files):
        with capture_logs() as logs, pytest.raises(ToolFailed, match="outside the workspace"):
            await tool.run(context, {"path": path})
        assert [(entry["event"], entry["path"], entry["security"]) for entry in logs] == [
            ("workspace_escape_refused", path, True)
        ]


async def test_a_link_inside_the_workspace_is_followed(context: ToolContext) -> None:
    (context.workspace / "real.txt").write_text("here")
    (context.workspace / "link").symlink_to("real.txt")
    assert await read_file.run(context, {"path": "link"}) == "here"


@pytest.mark.parametrize("part", ["outer", "outer/inner"])
async def test_a_workspace_of_which_a_part_has_become_a_link_is_refused(
    context: ToolContext, tmp_path: Path, part: str
) -> None:
    """An agent can do that whose own workspace contains this one."""
    inside = replace(context, workspace=tmp_path / "outer" / "inner")
    (tmp_path / "outer" / "inner").mkdir(parents=True)
    (tmp_path / "outer" / "inner" / "file").write_text("here")
    assert await read_file.run(inside, {"path": "file"}) == "here"
    (tmp_path / part).rename(tmp_path / "moved")
    (tmp_path / part).symlink_to(tmp_path / "moved")
    with pytest.raises(ToolFailed, match="outside the workspace"):
        await read_file.run(inside, {"path": "file"})
    with pytest.raises(ToolFailed, match="outside the workspace"):
        command_folder(inside)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("missing.txt", "There is no 'missing.txt'"),
        ("file/below", "cannot be opened: Not a directory"),
        ("folder", "is not a file"),
        ("", "is not a file"),
        ("pipe", "is not a file"),
        ("binary", "binary file of 4 bytes"),
        ("nul\0name", "not usable"),
        ("loop", "cannot be opened: Too many levels of symbolic links"),
        ("loop/below", "cannot be opened: Not a directory"),
        ("x" * 10_000, "File name too long"),
    ],
)
async def test_an_unreadable_path_is_explained(path: str, reason: str, context: ToolContext) -> None:
    (context.workspace / "file").touch()
    (context.workspace / "folder").mkdir()
    os.mkfifo(context.workspace / "pipe")
    (context.workspace / "binary").write_bytes(b"\x7fE\0F")
    (context.workspace / "loop").symlink_to("loop")
    with pytest.raises(ToolFailed, match=reason) as failure:
        await read_file.run(context, {"path": path})
    assert str(context.workspace) not in str(failure.value)


async def test_a_missing_workspace_is_reported(context: ToolContext) -> None:
    shutil.rmtree(context.workspace)
    with pytest.raises(ToolFailed, match="There is no"):
        await list_files.run(context, {})


async def test_a_big_file_is_read_piece_by_piece(context: ToolContext) -> None:
    lines = [f"line {number}" for number in range(1, 9_001)]
    (context.workspace / "big").write_text("\n".join(lines))
    read: list[str] = []
    while True:
        text = await read_file.run(context, {"path": "big", "first_line": len(read) + 1})
        assert len(text) < 50_000
        *shown, last = text.split("\n")
        read += shown
        if not last.startswith("[Cut"):
            break
        assert last == f"[Cut: there is more. Go on with first_line={len(read) + 1}.]"
    assert [*read, last] == lines


async def test_an_overlong_line_is_cut(context: ToolContext) -> None:
    (context.workspace / "big").write_bytes(b"x" * 300_000 + b"\nnext")
    assert (await read_file.run(context, {"path": "big"})).endswith("[Cut: line 1 is longer than can be shown.]")
    assert await read_file.run(context, {"path": "big", "first_line": 2}) == "next"
    assert (await read_file.run(context, {"path": "big", "first_line": 0})).startswith("x")
    with pytest.raises(ToolFailed, match="has only 1 lines"):
        await read_file.run(context, {"path": "big", "first_line": 9})


async def test_a_line_too_far_down_is_reported(context: ToolContext) -> None:
    with (context.workspace / "huge").open("wb") as file:
        file.truncate(10**12)
    with pytest.raises(ToolFailed, match="too far down"):
        await read_file.run(context, {"path": "huge", "first_line": 2})


async def test_invalid_utf8_is_replaced(context: ToolContext) -> None:
    (context.workspace / "latin1").write_bytes("caf\xe9".encode("latin-1"))
    assert await read_file.run(context, {"path": "latin1"}) == "caf\ufffd"


def _open_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def test_no_descriptor_is_left_open(context: ToolContext) -> None:
    (context.workspace / "a" / "b").mkdir(parents=True)
    (context.workspace / "a" / "b" / "file").write_text("x")
    (context.workspace / "a" / "b" / "binary").write_bytes(b"\0")
    await read_file.run(context, {"path": "a/b/file"})
    before = _open_descriptors()
    for path in ("a/b/file", "a/b/none", "a/none/file", "a/b", "a/b/binary"):
        try:
            await read_file.run(context, {"path": path})
        except ToolFailed:
            continue
    assert _open_descriptors() == before
