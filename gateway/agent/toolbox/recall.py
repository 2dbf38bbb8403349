"""The tool `recall`: looks up the memory and earlier conversations of a scope."""

import asyncio
import json

from gateway.agent.toolbox.notes import explain_os_errors
from gateway.agent.tools import FoundMessage, FoundStatement, Recalled, ToolContext, tool
from gateway.memory.search import search_statements
from gateway.memory.store import MemoryStore

_MAX_NOTES = 50
"""Without a query."""
_MAX_FOUND_NOTES = 10
_HINT = "(/session resume <number> opens a session, /session restore <number> an archived one.)"


@tool(concurrent=True)
async def recall(context: ToolContext, query: str = "") -> str:
    """Search notes and earlier conversations; without a query, list the notes."""
    query = query.strip()
    found = await _from_memory(context, query) if context.recall is None else await context.recall(query)
    limit = _MAX_FOUND_NOTES if query else _MAX_NOTES
    lines = [_note(each) for each in found.statements[:limit]]
    if len(found.statements) > limit:
        lines.append(f"... and {len(found.statements) - limit} {'more' if query else 'older ones'}")
    lines += map(_message, found.messages)
    if any(not message.channel for message in found.messages):
        lines.append(_HINT)
    if lines:
        return "\n".join(lines)
    return f"Nothing was found for {query!r}. Try fewer or other words." if query else "There are no notes yet."


async def _from_memory(context: ToolContext, query: str) -> Recalled:
    with explain_os_errors("The notes cannot be read"):
        known = (await asyncio.to_thread(MemoryStore(context.memory).read)).statements
    return Recalled(statements=tuple(FoundStatement(statement=each) for each in search_statements(known, query)))


def _note(found: FoundStatement) -> str:
    statement = found.statement
    number = f" {statement.number}" if statement.number and not found.channel else ""
    # The sessions of another chat have numbers of their own.
    facts = (found.channel, statement.day) if found.channel else (statement.origin or statement.day,)
    origin = f" ({', '.join(filter(None, facts))})" if any(facts) else ""
    return f"- note{number}{origin}: {_quoted(statement.text)}"


def _message(found: FoundMessage) -> str:
    where = found.channel or f"session {found.session}{', archived' if found.is_archived else ''}"
    return f"- {where}, {found.at:%Y-%m-%d}, {found.role}: {_quoted(found.text)}"


def _quoted(text: str) -> str:
    """Quote a text, so that nothing in it looks like a part of the result."""
    return json.dumps(text, ensure_ascii=False)
