"""What a model is told of the notes in a scope."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.agent.toolbox.notes import remember
from gateway.agent.tools import ToolContext
from gateway.turns.context import NotesCache


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    return ToolContext(workspace=tmp_path, notes=tmp_path / "memory" / "notes", now=lambda: datetime.now(UTC))


async def test_a_new_note_is_read_after_forget(context: ToolContext) -> None:
    cache = NotesCache(context.notes.parent)
    assert await cache.text(context.notes) == ""
    await remember.run(context, {"text": "likes tea"})
    cache.forget(context.notes)
    assert '- "likes tea"' in await cache.text(context.notes)


async def test_cached_notes_are_returned_without_reading_the_file(context: ToolContext) -> None:
    cache = NotesCache(context.notes.parent)
    await remember.run(context, {"text": "likes tea"})
    text = await cache.text(context.notes)
    context.notes.unlink()
    assert await cache.text(context.notes) == text


async def test_notes_of_other_scopes_are_read_after_one_without_notes(context: ToolContext) -> None:
    cache = NotesCache(context.notes.parent)
    await remember.run(context, {"text": "likes tea"})
    assert await cache.text(context.notes.with_name("other")) == ""
    assert '- "likes tea"' in await cache.text(context.notes)


async def test_a_first_note_is_read_after_forget_although_the_folder_was_listed_before(context: ToolContext) -> None:
    cache = NotesCache(context.notes.parent)
    other = context.notes.with_name("other")
    await remember.run(context, {"text": "likes tea"})
    assert await cache.text(other) == ""
    await remember.run(replace(context, notes=other), {"text": "likes coffee"})
    cache.forget(other)
    assert '- "likes coffee"' in await cache.text(other)


async def test_notes_are_read_from_a_folder_that_cannot_be_listed(context: ToolContext, tmp_path: Path) -> None:
    await remember.run(context, {"text": "likes tea"})
    not_a_folder = tmp_path / "file"
    not_a_folder.write_text("")
    assert '- "likes tea"' in await NotesCache(not_a_folder).text(context.notes)
