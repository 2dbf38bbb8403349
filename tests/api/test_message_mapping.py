"""Entries as messages: which of them a reader gets, and in which state."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime

from msgspec.structs import replace

from gateway.api.message_mapping import all_messages
from gateway.api.types import ToolContent
from gateway.sessions import Entry, TurnOutcome, entries

NOW = datetime(2026, 11, 18, tzinfo=UTC)


async def source(*given: Entry) -> AsyncIterator[Entry]:
    for seq, entry in enumerate(given, start=1):
        yield replace(entry, seq=seq, ts=NOW, turn="t")


async def test_a_message_that_comes_into_a_running_turn_does_not_double_its_tool_calls() -> None:
    """In the mode `steer`, the agent reads it between two steps, while a tool call has no result yet."""
    transcript = source(
        entries.User(content="go"),
        entries.ToolUse(tool_use_id="c", name="launch", input={}),
        entries.User(content="faster"),
        entries.ToolResult(tool_use_id="c", output="launched"),
        entries.TurnEnd(outcome=TurnOutcome.ANSWERED),
    )
    found = [message async for message in all_messages("s", transcript)]
    assert [message.role for message in found] == ["user", "system", "user"]
    assert isinstance(found[1].content, ToolContent)
    assert found[1].content.result == "launched"
