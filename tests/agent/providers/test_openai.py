"""What is special about Chat Completions and the endpoints that speak it in their own ways."""

import pytest

from gateway.conversation import AssistantMessage, ToolMessage, ToolOutcome
from gateway.errors import ContextTooLong, ModelUnavailable, ProviderBusy, ProviderFailed
from tests.agent.streaming import HELLO, model, step
from tests.agent.wire import OPENAI, Call, Refusal
from tests.agent.wire.openai import chunk, sse

END = [chunk({}, reason="stop"), b"data: [DONE]\n\n"]
CALLED = [chunk({}, reason="tool_calls"), b"data: [DONE]\n\n"]


@pytest.mark.parametrize(
    "unknown",
    [
        OPENAI.refusal(400, "invalid", "Unrecognized request argument: stream_options"),
        Refusal(400, {"error": {"code": "unknown_parameter", "message": "Unknown.", "param": "stream_options"}}),
        Refusal(422, {"detail": [{"type": "extra_forbidden", "loc": ["body", "stream_options"], "msg": "Extra."}]}),
    ],
)
async def test_an_endpoint_that_rejects_stream_options_is_asked_without_them(unknown: Refusal) -> None:
    async with model(OPENAI, unknown, [chunk({"content": "Hi."}), *END]) as (provider, server):
        said = await step(provider)
        await step(provider)
    assert said.text == "Hi."
    assert said.usage
    assert (said.usage.input_tokens, said.usage.model) == (0, "fake/m")
    assert ["stream_options" in request.body for request in server.requests] == [True, False, False]


async def test_tokens_from_the_cache_are_counted() -> None:
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 5,
        "total_tokens": 105,
        "prompt_tokens_details": {"cached_tokens": 64},
    }
    async with model(OPENAI, [chunk({"content": "Hi."}), *END[:1], chunk(usage=usage)]) as (provider, _):
        told = (await step(provider)).usage
    assert told
    assert (told.input_tokens, told.output_tokens, told.cache_read_tokens) == (100, 5, 64)


async def test_calls_without_a_unique_index_are_told_apart_by_id() -> None:
    def piece(call_id: str, **index: int) -> bytes:
        function = {"name": "look", "arguments": f'{{"at": "{call_id[-1]}"}}'}
        return chunk({"tool_calls": [{**index, "id": call_id, "type": "function", "function": function}]})

    for index in ({}, {"index": 0}):
        reply = [piece("call_aaaaaaaaaaaaaaa1", **index), piece("call_aaaaaaaaaaaaaaa2", **index), *CALLED]
        async with model(OPENAI, reply) as (provider, _):
            assert [call.input for call in (await step(provider)).calls] == [{"at": "1"}, {"at": "2"}]


async def test_thoughts_are_hidden_and_sent_back_within_the_turn() -> None:
    (start, arguments) = OPENAI.answer(calls=[Call("look", ["{}"])])[1:3]
    thinking = [chunk({"reasoning_content": "Let me "}), chunk({"reasoning_content": "see."}), start, arguments]
    async with model(OPENAI, [*thinking, *CALLED], OPENAI.answer("Blue.")) as (provider, server):
        said = await step(provider)
        assert said.text == ""
        call = said.calls[0]
        result = ToolMessage(outcomes=(ToolOutcome(id=call.id, output="blue"),))
        await step(provider, [*HELLO, AssistantMessage(text="", tool_calls=(call,), thoughts=said.thoughts), result])
    assert server.requests[1].body["messages"][-2]["reasoning_content"] == "Let me see."


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "Provider returned error", "code": 502}, ProviderBusy),
        ({"message": "Rate limit", "type": "rate_limit_exceeded"}, ProviderBusy),
        ({"message": "This endpoint's maximum context length is 9 tokens", "code": 400}, ContextTooLong),
        ({"message": "Insufficient credits", "code": 402}, ModelUnavailable),
        ("out of memory", ProviderBusy),
    ],
)
async def test_an_error_within_the_stream_is_classified(error: object, kind: type[ProviderFailed]) -> None:
    async with model(OPENAI, [chunk({"content": ""}), sse({"error": error})]) as (provider, _):
        with pytest.raises(ProviderFailed) as caught:
            await step(provider)
    assert type(caught.value) is kind


async def test_a_refusal_is_the_answer() -> None:
    async with model(OPENAI, [chunk({"refusal": "I will not."}), *END]) as (provider, _):
        assert (await step(provider)).text == "I will not."


async def test_a_filtered_answer_is_reported() -> None:
    async with model(OPENAI, [chunk({}, reason="content_filter")]) as (provider, _):
        with pytest.raises(ProviderFailed, match="declined"):
            await step(provider)


async def test_the_output_limit_is_sent_only_if_it_is_set() -> None:
    async with model(OPENAI, OPENAI.answer("Hi.")) as (provider, server):
        await step(provider)
    assert not {"max_tokens", "max_completion_tokens"} & set(server.requests[0].body)
    async with model(OPENAI, OPENAI.answer("Hi."), models={"m": {"max_output_tokens": 99}}) as (provider, server):
        await step(provider)
    assert server.requests[0].body["max_tokens"] == 99
