"""Entries as messages: which of them a reader gets, and in which state."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

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


async def test_a_tool_call_says_how_long_it_took_and_a_message_who_wrote_it() -> None:
    async def timed() -> AsyncIterator[Entry]:
        ada = entries.User(content="go", sender="loopback:ada", sender_name="Ada")
        plan = entries.User(content="go", sender="loopback:ada", schedule="news")
        use = entries.ToolUse(tool_use_id="c", name="launch", input={})
        result = entries.ToolResult(tool_use_id="c", output="launched")
        for seq, entry in enumerate((ada, plan, use, result), start=1):
            yield replace(entry, seq=seq, ts=NOW + timedelta(seconds=1.5 * seq), turn="t")

    found = [message async for message in all_messages("s", timed())]
    assert [(each.sender, each.schedule) for each in found] == [("Ada", ""), ("loopback:ada", "news"), ("", "")]
    assert isinstance(found[2].content, ToolContent)
    assert found[2].content.seconds == 1.5


async def test_the_cost_of_a_step_is_on_its_first_message() -> None:
    usage = entries.Usage(input_tokens=10, output_tokens=2, cost_micros=5)
    transcript = source(
        entries.User(content="go"),
        entries.Assistant(content="", model="m", usage=usage),
        entries.ToolUse(tool_use_id="c", name="launch", input={}),
        entries.ToolUse(tool_use_id="d", name="launch", input={}),
        entries.ToolResult(tool_use_id="c", output="launched"),
        entries.Assistant(content="Done.", model="n", usage=replace(usage, output_tokens=7)),
        entries.TurnEnd(outcome=TurnOutcome.ANSWERED),
    )
    found = [message async for message in all_messages("s", transcript)]
    assert [(each.model, each.usage and each.usage.output_tokens) for each in found] == [
        ("", None),
        ("m", 2),
        ("", None),
        ("n", 7),
    ]
