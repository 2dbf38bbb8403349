"""What a model is told of the notes in a scope."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.agent.toolbox.notes import remember
from gateway.agent.tools import ToolContext
from gateway.turns.context import NotesCache


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    return ToolContext(workspace=tmp_path, notes=tmp_path / "memory" / "notes", now=lambda: datetime.now(UTC))


async def test_a_new_note_is_read_after_forget(context: ToolContext) -> None:
    cache = NotesCache()
    assert await cache.text(context.notes) == ""
    await remember.run(context, {"text": "likes tea"})
    cache.forget(context.notes)
    assert '- "likes tea"' in await cache.text(context.notes)


async def test_cached_notes_are_returned_without_reading_the_file(context: ToolContext) -> None:
    cache = NotesCache()
    await remember.run(context, {"text": "likes tea"})
    text = await cache.text(context.notes)
    context.notes.unlink()
    assert await cache.text(context.notes) == text
