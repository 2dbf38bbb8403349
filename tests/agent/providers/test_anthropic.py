"""What is special about Messages: the cache, and thinking."""

import pytest

from gateway.agent.protocol import Provider
from gateway.conversation import AssistantMessage, Message, ToolCall, ToolMessage, ToolOutcome
from gateway.errors import ProviderBusy, ProviderFailed
from tests.agent.streaming import HELLO, Said, model, step
from tests.agent.wire import ANTHROPIC, CUT, Chunk, Reply
from tests.agent.wire.anthropic import block, event, finish, start

USE = {"type": "tool_use", "id": "toolu_0123456789abcdef", "name": "look", "input": {}}
THINKING = {"type": "thinking", "thinking": "", "signature": ""}
THOUGHTFUL: list[Chunk] = [
    start(),
    *block(
        0,
        THINKING,
        {"type": "thinking_delta", "thinking": "Let me "},
        {"type": "thinking_delta", "thinking": "see."},
        {"type": "signature_delta", "signature": "c2ln"},
    ),
    *block(1, {"type": "redacted_thinking", "data": "aGlkZGVu"}),
    *block(2, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Looking."}),
    *block(3, USE, {"type": "input_json_delta", "partial_json": '{"at": "x"}'}),
    *finish("tool_use"),
]


def after(said: Said) -> list[Message]:
    """Return the conversation as it goes on within the turn."""
    (call,) = said.calls
    outcome = ToolOutcome(id=call.id, output="blue")
    done = AssistantMessage(text=said.text, tool_calls=(call,), thoughts=said.thoughts)
    return [*HELLO, done, ToolMessage(outcomes=(outcome,))]


async def looked(provider: Provider) -> Said:
    said = await step(provider)
    await step(provider, after(said))
    return said


async def test_thoughts_are_hidden_and_sent_back_unchanged_within_the_turn() -> None:
    script: list[Reply] = [THOUGHTFUL, ANTHROPIC.answer("Blue.")]
    async with model(ANTHROPIC, *script, models={"m": {"thinking": True}}) as (provider, server):
        said = await looked(provider)
    assert said.text == "Looking."
    assert server.requests[1].body["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "Let me see.", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "aGlkZGVu"},
        {"type": "text", "text": "Looking."},
        {"type": "tool_use", "id": USE["id"], "name": "look", "input": {"at": "x"}},
    ]
    assert [request.body["thinking"] for request in server.requests] == [{"type": "adaptive"}] * 2


async def test_thinking_is_off_in_a_turn_whose_thoughts_are_lost() -> None:
    """As after a restart, or when another model began it; the API would refuse the request otherwise."""
    call = ToolCall(id="toolu_0123456789abcdef", name="look", input={})
    done = AssistantMessage(text="", tool_calls=(call,))
    history = [*HELLO, done, ToolMessage(outcomes=(ToolOutcome(id=call.id, output="blue"),))]
    async with model(ANTHROPIC, ANTHROPIC.answer("Blue."), models={"m": {"thinking": True}}) as (provider, server):
        await step(provider, history)
        await step(provider, [*history, AssistantMessage(text="Blue."), *HELLO])
    assert ["thinking" in request.body for request in server.requests] == [False, True]


async def test_a_thinking_budget_leaves_room_for_the_answer() -> None:
    told = {"m": {"thinking_tokens": 20_000}}
    async with model(ANTHROPIC, ANTHROPIC.answer("Hm."), models=told) as (provider, server):
        await step(provider)
    body = server.requests[0].body
    assert body["thinking"] == {"type": "enabled", "budget_tokens": 20_000}
    assert body["max_tokens"] > 20_000


async def test_a_cut_while_thinking_repeats_the_request() -> None:
    async with model(ANTHROPIC, [*THOUGHTFUL[:3], CUT], THOUGHTFUL, patience=20.0) as (provider, server):
        said = await step(provider)
    assert len(said.calls) == len(said.thoughts) == 1
    assert server.requests[0].body == server.requests[1].body


async def test_cache_breakpoints_follow_the_tools_the_system_prompt_and_the_last_two_messages() -> None:
    script: list[Reply] = [THOUGHTFUL, ANTHROPIC.answer("Blue.")]
    async with model(ANTHROPIC, *script) as (provider, server):
        await looked(provider)
    body = server.requests[1].body
    mark = {"type": "ephemeral"}
    assert body["tools"][-1]["cache_control"] == mark
    assert body["system"][-1]["cache_control"] == mark
    assert [message["content"][-1].get("cache_control") for message in body["messages"]] == [mark, None, mark]


async def test_cached_tokens_count_as_input() -> None:
    begun = start(10, cache_read_input_tokens=200, cache_creation_input_tokens=30)
    async with model(ANTHROPIC, [begun, *ANTHROPIC.answer("Hm.", tokens=(10, 4))[1:]]) as (provider, _):
        told = (await step(provider)).usage
    assert told
    assert (told.input_tokens, told.cache_read_tokens, told.cache_write_tokens) == (240, 200, 30)
    assert told.output_tokens == 4


async def test_a_stream_cut_by_an_overload_is_resumed() -> None:
    error = {"type": "overloaded_error", "message": "Overloaded"}
    broken = [*ANTHROPIC.answer("The sky")[:-3], event("error", error=error)]
    async with model(ANTHROPIC, broken, ANTHROPIC.answer(" is blue."), patience=20.0) as (provider, _):
        assert (await step(provider)).text == "The sky is blue."
    async with model(ANTHROPIC, broken) as (provider, _):
        with pytest.raises(ProviderBusy, match="overloaded"):
            await step(provider)


async def test_a_refusal_is_reported() -> None:
    async with model(ANTHROPIC, [start(), *finish("refusal")]) as (provider, _):
        with pytest.raises(ProviderFailed, match="declined"):
            await step(provider)


async def test_arguments_may_come_with_the_start_of_a_block() -> None:
    use = {**USE, "input": {"at": "x"}}
    async with model(ANTHROPIC, [start(), *block(0, use), *finish("tool_use")]) as (provider, _):
        assert (await step(provider)).calls[0].input == {"at": "x"}


async def test_two_text_blocks_are_two_paragraphs() -> None:
    texts = [piece for index in (0, 1) for piece in block(index, {"type": "text", "text": f"Text {index}."})]
    async with model(ANTHROPIC, [start(), *texts, *finish("end_turn")]) as (provider, _):
        assert (await step(provider)).text == "Text 0.\n\nText 1."
