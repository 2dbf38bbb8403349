import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.agent.toolbox import recall, remember
from gateway.agent.tools import ToolContext, ToolFailed


async def test_a_note_is_kept_and_recalled(context: ToolContext) -> None:
    assert await remember.run(context, {"text": " The key is\nunder the mat. "}) == "Noted."
    assert await remember.run(context, {"text": "Ada likes tea"}) == "Noted."
    assert await recall.run(context, {}) == "- Ada likes tea (2026-03-01)\n- The key is\nunder the mat. (2026-03-01)"
    assert await recall.run(context, {"query": "MAT key"}) == "- The key is\nunder the mat. (2026-03-01)"
    assert await recall.run(context, {"query": "coffee"}) == "No note contains 'coffee'."


async def test_recalling_without_notes_says_so(context: ToolContext) -> None:
    assert await recall.run(context, {}) == "There are no notes yet."
    assert await recall.run(context, {"query": "key"}) == "There are no notes yet."


async def test_the_file_has_one_json_object_a_line(context: ToolContext) -> None:
    await remember.run(context, {"text": "a\nb\u2028c"})
    await remember.run(context, {"text": "second"})
    lines = context.notes.read_text().split("\n")
    assert [json.loads(line) for line in lines[:-1]] == [
        {"ts": "2026-03-01T11:00:05Z", "text": "a\nb\u2028c"},
        {"ts": "2026-03-01T11:00:05Z", "text": "second"},
    ]
    assert lines[-1] == ""


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
async def test_the_notes_file_is_created_private(context: ToolContext) -> None:
    await remember.run(context, {"text": "secret"})
    assert context.notes.stat().st_mode & 0o777 == 0o600
    assert context.notes.parent.stat().st_mode & 0o777 == 0o700


async def test_one_scope_cannot_recall_the_notes_of_another(context: ToolContext, tmp_path: Path) -> None:
    await remember.run(context, {"text": "mine"})
    other = replace(context, notes=tmp_path / "notes" / "other.jsonl")
    assert await recall.run(other, {}) == "There are no notes yet."


@pytest.mark.parametrize("text", ["", " \n ", "x" * 2_001])
async def test_a_note_that_is_empty_or_too_long_is_refused(text: str, context: ToolContext) -> None:
    with pytest.raises(ToolFailed):
        await remember.run(context, {"text": text})
    assert not context.notes.exists()


async def test_only_damaged_lines_are_lost(context: ToolContext) -> None:
    await remember.run(context, {"text": "first"})
    with context.notes.open("ab") as file:
        file.write(b'\xff\xfe\n{"ts": 1}\n[]\n{"ts": "2026-03-01T11:0')
    await remember.run(context, {"text": "after"})
    assert await recall.run(context, {}) == "- after (2026-03-01)\n- first (2026-03-01)"


async def test_the_oldest_note_is_dropped_at_the_limit(context: ToolContext) -> None:
    context.notes.parent.mkdir()
    lines = [json.dumps({"ts": "2026-01-01T00:00:00Z", "text": f"note {number}"}) for number in range(500)]
    context.notes.write_text("\n".join(lines) + "\n")
    assert "oldest" in await remember.run(context, {"text": "newest"})
    kept = [json.loads(line)["text"] for line in context.notes.read_text().splitlines()]
    assert (len(kept), kept[0], kept[-1]) == (500, "note 1", "newest")
    assert context.notes.stat().st_mode & 0o777 == 0o600


async def test_notes_added_at_the_same_time_are_all_kept(context: ToolContext) -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(remember.run(context, {"text": f"note {number}"}), name=f"note:{number}")
    assert len((await recall.run(context, {})).splitlines()) == 20


async def test_recalling_many_says_how_many_are_left_out(context: ToolContext) -> None:
    context.notes.parent.mkdir()
    line = json.dumps({"ts": "2026-01-01T00:00:00Z", "text": "again"}) + "\n"
    context.notes.write_text(line * 60)
    assert (await recall.run(context, {})).endswith("... and 10 older ones")


async def test_a_file_in_place_of_the_folder_is_reported(context: ToolContext) -> None:
    context.notes.parent.write_text("in the way")
    with pytest.raises(ToolFailed, match="could not be saved: Not a directory"):
        await remember.run(context, {"text": "tea"})
    with pytest.raises(ToolFailed, match="cannot be read: Not a directory"):
        await recall.run(context, {})


async def test_a_disk_error_is_reported(context: ToolContext) -> None:
    context.notes.mkdir(parents=True)
    with pytest.raises(ToolFailed, match="could not be saved: It is a folder"):
        await remember.run(context, {"text": "tea"})


async def test_a_pipe_in_the_place_of_the_notes_does_not_block(context: ToolContext) -> None:
    context.notes.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(context.notes)
    with pytest.raises(ToolFailed, match="It is a named pipe"):
        await remember.run(context, {"text": "tea"})
    with pytest.raises(ToolFailed, match="It is a named pipe"):
        await recall.run(context, {})
