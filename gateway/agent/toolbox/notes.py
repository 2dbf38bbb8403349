"""The tool `remember`: adds statements to the memory of a scope."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from gateway.agent.tools import ToolContext, ToolFailed, tool
from gateway.errors import Refused
from gateway.memory.statement import Statement, clean
from gateway.memory.store import MAX_STATEMENTS, MAX_TEXT, MemoryStore

log = structlog.get_logger()


@tool
async def remember(context: ToolContext, text: str) -> str:
    """Save a note for later conversations here."""
    text = clean(text)
    if not text:
        raise ToolFailed("There is nothing to remember: the text is empty.")
    if len(text) > MAX_TEXT:
        raise ToolFailed(f"A note can have at most {MAX_TEXT} characters. Remember a shorter version.")
    day = f"{context.now():%Y-%m-%d}"
    note = Statement(text=text, noted=day)
    with explain_os_errors("The note could not be saved"):
        added = await asyncio.to_thread(MemoryStore(context.memory).add, [note], day=day)
    if not added.new:
        return "That is noted already."
    if added.dropped:
        return f"Noted. The oldest note was dropped, because {MAX_STATEMENTS} notes are kept."
    return "Noted."


@contextmanager
def explain_os_errors(failure: str) -> Iterator[None]:
    """Turn an error of the disk into `ToolFailed`, and log it: only the operator can fix it."""
    try:
        yield
    except Refused as refusal:
        raise ToolFailed(str(refusal)) from refusal
    except OSError as error:
        log.warning("memory_unusable", file=error.filename, reason=error.strerror)
        reason = error.strerror or "the disk refused"
        raise ToolFailed(f"{failure}: {reason}. The operator can fix that.") from error
