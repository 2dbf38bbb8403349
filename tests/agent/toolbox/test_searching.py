import os
from pathlib import Path

import pytest

from gateway.agent.toolbox import search_files
from gateway.agent.tools import ToolContext, ToolFailed


@pytest.fixture
def tree(context: ToolContext) -> Path:
    for name, content in {
        "README.md": "Welcome\nHELLO world\n",
        "src/main.py": "print('hello')\n",
        "src/deep/other.py": "nothing",
        ".git/config": "hello",
        "src/binary": "hello\0",
    }.items():
        file = context.workspace / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return context.workspace


@pytest.mark.usefixtures("tree")
async def test_a_search_ignores_case(context: ToolContext) -> None:
    found = await search_files.run(context, {"text": "Hello"})
    assert found.splitlines() == ["README.md:2: HELLO world", "src/main.py:1: print('hello')"]


@pytest.mark.usefixtures("tree")
async def test_files_are_found_by_name_below_a_folder(context: ToolContext) -> None:
    assert await search_files.run(context, {"name": "*.py"}) == "src/deep/other.py\nsrc/main.py"
    assert await search_files.run(context, {"name": "*.py", "path": "src/deep"}) == "src/deep/other.py"
    assert await search_files.run(context, {"name": "*.py", "text": "nowhere"}) == "Nothing was found."


async def test_links_are_not_followed(context: ToolContext, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hidden treasure")
    (tree / "link").symlink_to(tmp_path / "secret")
    (tree / "folder").symlink_to(tmp_path)
    assert await search_files.run(context, {"text": "treasure"}) == "Nothing was found."
    with pytest.raises(ToolFailed, match="outside the workspace"):
        await search_files.run(context, {"text": "treasure", "path": "folder"})


async def test_a_search_stops_at_its_limits_and_says_so(context: ToolContext) -> None:
    (context.workspace / "many").write_text("same\n" * 1_000)
    lines = (await search_files.run(context, {"text": "same"})).splitlines()
    assert len(lines) == 201
    assert lines[-1].startswith("[Not everything was searched.")


async def test_pipes_deep_folders_and_huge_files_are_skipped(context: ToolContext) -> None:
    os.mkfifo(context.workspace / "pipe")
    with (context.workspace / "huge").open("wb") as file:
        file.truncate(10**12)
    deep = context.workspace
    for _ in range(60):
        deep /= "d"
    deep.mkdir(parents=True)
    (deep / "lost").write_text("lost")
    assert await search_files.run(context, {"text": "lost"}) == "Nothing was found."


async def test_a_text_with_line_breaks_is_refused(context: ToolContext) -> None:
    with pytest.raises(ToolFailed, match="one line"):
        await search_files.run(context, {"text": "a\nb"})
