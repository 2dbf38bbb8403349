"""Compares our requests, and what we read from responses, with those of the official SDKs."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from gateway.agent.protocol import TokenUsage
from gateway.agent.providers.errors import classify_fault, read_fault
from gateway.conversation import AssistantMessage, ToolCall, ToolMessage, ToolOutcome
from gateway.errors import ProviderFailed
from tests.agent.sdk_headers import compared
from tests.agent.streaming import HELLO, Said, model, step
from tests.agent.wire import ANTHROPIC, OPENAI, Call, Dialect, Reply, WireServer
from tests.agent.wire.server import KEY

both = pytest.mark.parametrize("api", [OPENAI, ANTHROPIC], ids=lambda api: api.kind)

CALL = ToolCall(id="call_0123456789abcdef", name="look", input={"at": "the sky"})
HISTORY = (
    *HELLO,
    AssistantMessage(text="Let me see.", tool_calls=(CALL,)),
    ToolMessage(outcomes=(ToolOutcome(id=CALL.id, output="grüß dich 😀"),)),
)


@asynccontextmanager
async def sdk_stream(server: WireServer, body: dict[str, Any]) -> AsyncIterator[AsyncIterator[Any]]:
    """Send `body` with the SDK for the API of `server`, and yield the events of the response."""
    # The SDKs take more than a second and 67 MB, which only the process that runs these tests should spend.
    import anthropic  # noqa: PLC0415 - see above
    import openai  # noqa: PLC0415 - see above

    options: dict[str, Any] = {"api_key": KEY, "base_url": server.table()["base_url"], "max_retries": 0}
    async with httpx2.AsyncClient(trust_env=False) as http:
        if server.dialect is OPENAI:
            sent: Any = openai.AsyncOpenAI(**options, http_client=http).chat.completions.create(**body)
        else:
            sent = anthropic.AsyncAnthropic(**options, http_client=http).messages.create(**body)
        async with await sent as events:
            yield events


@both
async def test_our_requests_equal_those_of_the_sdk(api: Dialect) -> None:
    async with model(api, api.answer("Hi.")) as (provider, server):
        await step(provider, HISTORY)
        async with sdk_stream(server, server.requests[0].body) as events:
            assert [event async for event in events]
        ours, theirs = server.requests
    assert ours.body == theirs.body
    assert compared(ours.headers) == compared(theirs.headers)


@both
@pytest.mark.parametrize(
    ("texts", "calls"),
    [
        (["Hel", "lo, ", "wörld 😀"], []),
        ([], [Call("look", ['{"at"', ': "x"}'])]),
        (["Let me ", "see."], [Call("look", ["{}"]), Call("look", ['{"at": 1}'], id="call_bbbbbbbbbbbbbbbb")]),
    ],
)
async def test_we_read_from_a_stream_what_the_sdk_reads(api: Dialect, texts: list[str], calls: list[Call]) -> None:
    stream = b"".join(api.answer(*texts, calls=calls, tokens=(17, 5)))
    replies: list[Reply] = [[stream.replace(b"\n", newline)] for newline in (b"\n", b"\r\n")]
    for reply in replies:
        async with model(api, reply) as (provider, server):
            ours = await step(provider)
            async with sdk_stream(server, server.requests[0].body) as events:
                theirs = [event async for event in events]
        assert ours.text == "".join(texts)
        assert facts_of(ours) == (openai_facts if api is OPENAI else anthropic_facts)(theirs)


Facts = tuple[str, list[tuple[str, str, Any]], int, int]
"""The text, the calls with their arguments, and the tokens of input and output."""


def facts_of(said: Said) -> Facts:
    usage = said.chunks[-1]
    assert isinstance(usage, TokenUsage)
    calls = [(call.id, call.name, call.input) for call in said.calls]
    return said.text, calls, usage.input_tokens, usage.output_tokens


def openai_facts(chunks: list[Any]) -> Facts:
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    calls: dict[int, list[str]] = {}
    for piece in (piece for delta in deltas for piece in delta.tool_calls or ()):
        call = calls.setdefault(piece.index, [piece.id, piece.function.name, ""])
        call[2] += piece.function.arguments or ""
    usage = chunks[-1].usage
    text = "".join(delta.content or "" for delta in deltas)
    read = [(call_id, name, json.loads(arguments)) for call_id, name, arguments in calls.values()]
    return text, read, usage.prompt_tokens, usage.completion_tokens


def anthropic_facts(events: list[Any]) -> Facts:
    text, input_tokens, output_tokens, calls = "", 0, 0, dict[int, list[str]]()
    for event in events:
        if event.type == "message_start":
            input_tokens = event.message.usage.input_tokens
        elif event.type == "message_delta":
            output_tokens = event.usage.output_tokens
        elif event.type == "content_block_start" and event.content_block.type == "tool_use":
            calls[event.index] = [event.content_block.id, event.content_block.name, ""]
        elif event.type == "content_block_delta" and event.delta.type == "text_delta":
            text += event.delta.text
        elif event.type == "content_block_delta":
            calls[event.index][2] += event.delta.partial_json
    read = [(call_id, name, json.loads(arguments)) for call_id, name, arguments in calls.values()]
    return text, read, input_tokens, output_tokens


@both
@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 408, 409, 413, 422, 429, 500, 503, 529])
async def test_we_read_from_an_error_what_the_sdk_reads(api: Dialect, status: int) -> None:
    import anthropic  # noqa: PLC0415 - as in `sdk_stream`
    import openai  # noqa: PLC0415 - as in `sdk_stream`

    refusal = api.refusal(status, "some_code", "It did not work.", retry_after="7")
    async with model(api, refusal) as (provider, server):
        with pytest.raises(ProviderFailed) as ours:
            await step(provider)
        with pytest.raises((openai.APIStatusError, anthropic.APIStatusError)) as theirs:
            async with sdk_stream(server, server.requests[0].body):
                pass
    error: Any = theirs.value  # Any: the SDKs have no common class for it.
    expected = classify_fault(read_fault(error.body, error.status_code, error.response.headers), "m")
    assert type(ours.value) is type(expected)
    assert str(ours.value) == str(expected)
