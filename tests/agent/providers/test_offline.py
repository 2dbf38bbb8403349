import asyncio
from contextlib import aclosing

from gateway.agent.loop import run_agent
from gateway.agent.protocol import Done, Event, Prompt, TextDelta, ToolFinished
from gateway.agent.providers.offline import OfflineProvider
from gateway.agent.toolbox import BUILT_IN
from gateway.agent.tools import Toolbox, ToolContext
from gateway.conversation import ToolCall, UserMessage

TOOLBOX = Toolbox(BUILT_IN)


def prompt(text: str) -> Prompt:
    return Prompt(system="", messages=(UserMessage(text=text),), tools=TOOLBOX.specs())


async def turn(text: str, context: ToolContext) -> list[Event]:
    provider = OfflineProvider(word_delay=0)
    async with aclosing(
        run_agent(prompt(text), provider=provider, toolbox=TOOLBOX, context=context, max_iterations=5)
    ) as events:
        return [event async for event in events]


async def test_answers_are_streamed_word_by_word(context: ToolContext) -> None:
    events = await turn("Tell me of Rome", context)
    deltas = [event.text for event in events if isinstance(event, TextDelta)]
    assert len(deltas) > 20
    assert all(len(delta.split()) == 1 for delta in deltas)
    assert events[-1] == Done(text="".join(deltas), steps=1)


async def test_the_answer_contains_the_tools_result(context: ToolContext) -> None:
    (context.workspace / "notes.txt").write_text("buy  milk\n\n  twice")
    events = await turn("read notes.txt", context)
    assert events[-1] == Done(text="Here it is:\n\n```\nbuy  milk\n\n  twice\n```", steps=2)


async def test_a_note_is_remembered_and_recalled(context: ToolContext) -> None:
    await turn("remember that the key is under the mat", context)
    events = await turn("what do you remember about the key", context)
    done = events[-1]
    assert isinstance(done, Done)
    assert 'note 1 (noted 2026-03-01): "the key is under the mat"' in done.text


async def test_a_path_outside_the_workspace_is_refused(context: ToolContext) -> None:
    events = await turn("read ../secret", context)
    finished = [event for event in events if isinstance(event, ToolFinished)]
    assert finished[0].outcome.is_error
    assert isinstance(events[-1], Done)
    assert "That didn't work" in events[-1].text


async def test_a_long_answer_comes_in_few_deltas(context: ToolContext) -> None:
    (context.workspace / "long.txt").write_text("word " * 8_000)
    events = await turn("read long.txt", context)
    deltas = [event for event in events if isinstance(event, TextDelta)]
    assert len(deltas) <= 250
    assert "".join(delta.text for delta in deltas).count("word") == 8_000


async def test_every_tool_call_has_a_unique_id() -> None:
    ids = set()
    for _ in range(3):
        async with aclosing(OfflineProvider().stream(prompt("what time is it"))) as chunks:
            async for chunk in chunks:
                assert isinstance(chunk, ToolCall)
                ids.add(chunk.id)
    assert len(ids) == 3
    assert all(call_id.startswith("call_") for call_id in ids)


async def test_the_first_word_is_not_delayed() -> None:
    async with aclosing(OfflineProvider(word_delay=3_600).stream(prompt("hi"))) as chunks, asyncio.timeout(60):
        assert await anext(chunks) == TextDelta(text="Hello! ")
