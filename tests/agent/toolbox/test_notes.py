import asyncio
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.agent.toolbox import recall, remember
from gateway.agent.tools import ToolContext, ToolFailed
from gateway.memory.store import MAX_STATEMENTS


async def test_a_note_is_kept_and_recalled(context: ToolContext) -> None:
    assert await remember.run(context, {"text": " The key is\nunder the mat. "}) == "Noted."
    assert await remember.run(context, {"text": "Ada likes tea"}) == "Noted."
    assert await recall.run(context, {}) == (
        '- note 2 (noted 2026-03-01): "Ada likes tea"\n- note 1 (noted 2026-03-01): "The key is\\nunder the mat."'
    )
    assert await recall.run(context, {"query": "MAT key"}) == (
        '- note 1 (noted 2026-03-01): "The key is\\nunder the mat."'
    )
    assert await recall.run(context, {"query": "coffee"}) == (
        "Nothing was found for 'coffee'. Try fewer or other words."
    )


async def test_recalling_without_notes_says_so(context: ToolContext) -> None:
    assert await recall.run(context, {}) == "There are no notes yet."
    assert (await recall.run(context, {"query": "key"})).startswith("Nothing was found")


async def test_a_note_is_a_line_of_a_readable_file(context: ToolContext) -> None:
    await remember.run(context, {"text": "likes tea"})
    assert "- [1] likes tea (noted 2026-03-01)\n" in file(context).read_text()


def file(context: ToolContext) -> Path:
    return context.memory / "2026-03-01.md"


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
async def test_the_notes_file_is_created_private(context: ToolContext) -> None:
    await remember.run(context, {"text": "secret"})
    assert file(context).stat().st_mode & 0o777 == 0o600
    assert context.memory.stat().st_mode & 0o777 == 0o700


async def test_one_scope_cannot_recall_the_notes_of_another(context: ToolContext, tmp_path: Path) -> None:
    await remember.run(context, {"text": "mine"})
    other = replace(context, memory=tmp_path / "memory" / "other")
    assert await recall.run(other, {}) == "There are no notes yet."


@pytest.mark.parametrize("text", ["", " \n ", "x" * 2_001])
async def test_a_note_that_is_empty_or_too_long_is_refused(text: str, context: ToolContext) -> None:
    with pytest.raises(ToolFailed):
        await remember.run(context, {"text": text})
    assert not context.memory.exists()


async def test_a_known_note_is_not_saved_again(context: ToolContext) -> None:
    await remember.run(context, {"text": "Ada likes tea"})
    assert await remember.run(context, {"text": "ada likes tea."}) == "That is noted already."
    assert await recall.run(context, {}) == '- note 1 (noted 2026-03-01): "Ada likes tea"'


async def test_the_oldest_note_is_dropped_at_the_limit(context: ToolContext) -> None:
    context.memory.mkdir(parents=True)
    file(context).write_text("".join(f"- [{number}] note {number}\n" for number in range(1, MAX_STATEMENTS + 1)))
    assert "oldest" in await remember.run(context, {"text": "newest"})
    assert '"note 1"' not in await recall.run(context, {"query": "note 1"})
    assert await recall.run(context, {"query": "newest"}) == f'- note {MAX_STATEMENTS + 1} (noted 2026-03-01): "newest"'


async def test_notes_added_at_the_same_time_are_all_kept(context: ToolContext) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(remember.run(context, {"text": f"note {number}"}), name=f"note:{number}")
    assert len((await recall.run(context, {})).splitlines()) == 20


async def test_recalling_many_says_how_many_are_left_out(context: ToolContext) -> None:
    context.memory.mkdir(parents=True)
    file(context).write_text("- again\n" * 60)
    assert (await recall.run(context, {})).endswith("... and 10 older ones")


async def test_a_file_in_place_of_the_folder_is_reported(context: ToolContext) -> None:
    context.memory.parent.write_text("in the way")
    with pytest.raises(ToolFailed, match="could not be saved: Not a directory"):
        await remember.run(context, {"text": "tea"})
    with pytest.raises(ToolFailed, match="cannot be read: Not a directory"):
        await recall.run(context, {})


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
async def test_something_else_in_the_place_of_the_file_is_reported(
    context: ToolContext, make: Callable[[Path], None]
) -> None:
    context.memory.mkdir(parents=True)
    make(file(context))
    with pytest.raises(ToolFailed, match="could not be saved"):
        await remember.run(context, {"text": "tea"})
    assert await recall.run(context, {}) == "There are no notes yet."
