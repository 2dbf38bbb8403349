"""The note tools: statements that an agent adds to the memory of its scope, and looks up there."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import structlog
from msgspec import Meta

from gateway.agent.tools import ToolContext, ToolFailed, tool
from gateway.errors import Refused
from gateway.memory.statement import Statement, clean
from gateway.memory.store import MAX_STATEMENTS, MAX_TEXT, MemoryStore

log = structlog.get_logger()

_MAX_RECALLED = 50


@tool
async def remember(context: ToolContext, text: str) -> str:
    """Save a note for this and later conversations with the same people."""
    text = clean(text)
    if not text:
        raise ToolFailed("There is nothing to remember: the text is empty.")
    if len(text) > MAX_TEXT:
        raise ToolFailed(f"A note can have at most {MAX_TEXT} characters. Remember a shorter version.")
    day = f"{context.now():%Y-%m-%d}"
    note = Statement(text=text, noted=day)
    with _explain_os_errors("The note could not be saved"):
        added = await asyncio.to_thread(MemoryStore(context.memory).add, [note], day=day)
    if not added.new:
        return "That is noted already."
    if added.dropped:
        return f"Noted. The oldest note was dropped, because {MAX_STATEMENTS} notes are kept."
    return "Noted."


@tool(concurrent=True)
async def recall(
    context: ToolContext,
    query: Annotated[str, Meta(description="Words that are in the note; all notes without it.")] = "",
) -> str:
    """Look up saved notes, newest first."""
    with _explain_os_errors("The notes cannot be read"):
        statements = (await asyncio.to_thread(MemoryStore(context.memory).read)).statements
    words = query.casefold().split()
    found = [each for each in reversed(statements) if all(word in each.text.casefold() for word in words)]
    if not found:
        return f"No note contains {query!r}." if statements and words else "There are no notes yet."
    lines = [f"- {each.text}" + (f" ({each.day})" if each.day else "") for each in found[:_MAX_RECALLED]]
    if len(found) > _MAX_RECALLED:
        lines.append(f"... and {len(found) - _MAX_RECALLED} older ones")
    return "\n".join(lines)


@contextmanager
def _explain_os_errors(failure: str) -> Iterator[None]:
    """Turn an error of the disk into `ToolFailed`, and log it: only the operator can fix it."""
    try:
        yield
    except Refused as refusal:
        raise ToolFailed(str(refusal)) from refusal
    except OSError as error:
        log.warning("memory_unusable", file=error.filename, reason=error.strerror)
        reason = error.strerror or "the disk refused"
        raise ToolFailed(f"{failure}: {reason}. The operator can fix that.") from error
