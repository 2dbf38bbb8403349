"""Tests for both APIs, with a local server that speaks the API."""

import asyncio

import pytest

from config import ProviderSettings
from gateway.agent.protocol import Prompt, TokenUsage
from gateway.agent.providers.registry import ProviderRegistry
from gateway.conversation import AssistantMessage, Picture, ToolMessage, ToolOutcome, UserMessage
from gateway.errors import ContextTooLong, ModelUnavailable, ProviderBusy, ProviderFailed
from tests.agent.streaming import HELLO, Said, model, step
from tests.agent.wire import ANTHROPIC, CUT, OPENAI, Call, Dialect, Refusal, Reply

pytestmark = pytest.mark.parametrize("api", [OPENAI, ANTHROPIC], ids=lambda api: api.kind)

TIMEOUT = 90.0


async def test_text_is_streamed_as_it_arrives(api: Dialect) -> None:
    *begun, last, _, _ = answer = api.answer("Hel", "lo")
    gate = asyncio.Event()
    async with model(api, [*begun, gate, last, *answer[-2:]]) as (provider, _), asyncio.timeout(TIMEOUT):
        stream = provider.stream(Prompt(system="", messages=HELLO))
        texts = [getattr(await anext(stream), "text", None) for _ in range(2)]
        gate.set()
        rest = [chunk async for chunk in stream]
    assert texts == ["Hel", "lo"]
    assert rest == [TokenUsage(input_tokens=11, output_tokens=7, model="fake/m")]


async def test_an_emoji_that_is_cut_in_two_does_not_end_the_stream(api: Dialect) -> None:
    """Some endpoints send each half of a surrogate pair in its own event. The agent loop replaces them."""
    async with model(api, api.answer("Hi \ud83d", "\ude00!")) as (provider, _):
        assert (await step(provider)).text == "Hi \ud83d\ude00!"


async def test_a_tool_call_follows_the_text_complete(api: Dialect) -> None:
    call = Call("look", ['{"at"', ': "the ', 'sky"}'])
    async with model(api, api.answer("Let me see.", calls=[call])) as (provider, _):
        said = await step(provider)
    assert said.text == "Let me see."
    assert [(each.name, each.input, each.fault) for each in said.calls] == [("look", {"at": "the sky"}, "")]
    assert isinstance(said.chunks[-1], TokenUsage)


async def test_several_calls_keep_their_order_and_arguments(api: Dialect) -> None:
    calls = [Call("look", ['{"at": "1"}'], id="call_aaaaaaaaaaaaaaaa"), Call("look", [""], id="call_bbbbbbbbbbbbbbbb")]
    async with model(api, api.answer(calls=calls)) as (provider, _):
        said = await step(provider)
    assert [(each.id, each.input) for each in said.calls] == [
        ("call_aaaaaaaaaaaaaaaa", {"at": "1"}),
        ("call_bbbbbbbbbbbbbbbb", {}),
    ]


async def test_ids_that_restart_with_each_step_are_replaced(api: Dialect) -> None:
    async with model(api, api.answer(calls=[Call("look", ["{}"], id="0")])) as (provider, _):
        ids = {(await step(provider)).calls[0].id for _ in range(2)}
    assert len(ids) == 2
    assert all(each.startswith("call_") for each in ids)


@pytest.mark.parametrize("arguments", ['{"at": "th', "[1]", '"word"', '{"at": NaN}', "{" * 100_000, "{}{}"])
async def test_invalid_json_arguments_become_a_fault_that_the_model_reads(api: Dialect, arguments: str) -> None:
    async with model(api, api.answer(calls=[Call("look", [arguments])])) as (provider, _):
        (call,) = (await step(provider)).calls
    assert call.input == {}
    assert "JSON" in call.fault


async def test_oversized_arguments_end_the_step(api: Dialect) -> None:
    pieces = ['{"at": "', *["x" * 65_536] * 80, '"}']
    async with model(api, api.answer(calls=[Call("look", pieces)])) as (provider, server):
        with pytest.raises(ProviderFailed, match="too much data"):
            await step(provider)
    assert len(server.requests) == 1


async def test_the_system_prompt_the_tools_and_the_history_are_sent(api: Dialect) -> None:
    call = Call("look", ['{"at": "x"}'])
    async with model(api, api.answer("Hm.", calls=[call]), api.answer("Blue.")) as (provider, server):
        said = await step(provider)
        (made,) = said.calls
        history = (
            *HELLO,
            AssistantMessage(text=said.text, tool_calls=(made,)),
            ToolMessage(outcomes=(ToolOutcome(id=made.id, output="blue"),)),
        )
        assert (await step(provider, history)).text == "Blue."
    first, second = (request.body for request in server.requests)
    assert "Be brief." in str(first)
    assert "look" in str(first["tools"])
    assert first["model"] == "m"
    assert len(second["messages"]) == len(first["messages"]) + 2
    assert made.id in str(second["messages"][-2])
    assert "blue" in str(second["messages"][-1])
    assert server.requests[0].headers["Content-Type"] == "application/json"


async def test_pictures_reach_only_models_that_see_images(api: Dialect) -> None:
    message = UserMessage(
        text="[cat.png]", pictures=(Picture(file="1", name="cat.png", media_type="image/png", data=b"cat"),)
    )
    for sees in (True, False):
        async with model(api, api.answer("A cat."), models={"m": {"sees_images": sees}}) as (provider, server):
            await step(provider, [message])
        assert ("Y2F0" in str(server.requests[0].body)) is sees


@pytest.mark.parametrize("cut_after", range(9))
async def test_a_stream_cut_anywhere_is_resumed_without_repeating_text(api: Dialect, cut_after: int) -> None:
    call = Call("look", ['{"at"', ': "x"}'])
    whole = api.answer("The sky ", "is blue", calls=[call])
    broken: Reply = [*whole[:cut_after], CUT]
    async with model(api, broken, api.answer(" and wide."), patience=20.0) as (provider, server):
        said = await step(provider)
    begun = "".join(text for text in ("The sky ", "is blue") if text.encode() in b"".join(whole[:cut_after]))
    assert said.text == f"{begun} and wide."
    assert said.calls == []
    assert len(server.requests) == 2
    assert (begun.encode() in str(server.requests[1].body).encode()) or not begun


async def test_a_stream_that_ends_too_early_counts_as_cut(api: Dialect) -> None:
    short = api.answer("The sky is")[:-3]
    async with model(api, short, api.answer(" blue."), patience=20.0) as (provider, server):
        said = await step(provider)
    assert said.text == "The sky is blue."
    assert len(server.requests) == 2


async def test_words_repeated_after_a_cut_are_left_out(api: Dialect) -> None:
    broken: Reply = [*api.answer("The sky is blue")[:-3], CUT]
    async with model(api, broken, api.answer("sky is ", "blue and wide."), patience=20.0) as (provider, _):
        assert (await step(provider)).text == "The sky is blue and wide."


async def test_a_stream_that_keeps_being_cut_is_given_up(api: Dialect) -> None:
    said = Said()
    async with model(api, [*api.answer("so it goes ")[:-3], CUT], patience=60.0) as (provider, server):
        with pytest.raises(ProviderBusy, match="`m`"):
            await step(provider, said=said)
    assert said.text.startswith("so it goes")
    assert len(server.requests) == 4


async def test_a_response_without_headers_times_out(api: Dialect) -> None:
    never = asyncio.Event()
    async with model(api, never, idle_timeout=0.2) as (provider, _), asyncio.timeout(TIMEOUT):
        with pytest.raises(ProviderBusy, match="sent nothing for too long"):
            await step(provider)
        never.set()


async def test_a_response_that_stops_after_the_headers_times_out(api: Dialect) -> None:
    never = asyncio.Event()
    async with model(api, [never], idle_timeout=0.2) as (provider, _), asyncio.timeout(TIMEOUT):
        with pytest.raises(ProviderBusy, match="sent nothing for too long"):
            await step(provider)
        never.set()


async def test_keep_alive_bytes_do_not_prevent_the_timeout(api: Dialect) -> None:
    ticks: list[bytes | asyncio.Event] = [b": still here\n"] * 3
    never = asyncio.Event()
    async with model(api, [*ticks, never], idle_timeout=0.2) as (provider, _), asyncio.timeout(TIMEOUT):
        with pytest.raises(ProviderBusy, match="sent nothing"):
            await step(provider)
        never.set()


async def test_closing_a_step_closes_its_connection(api: Dialect) -> None:
    gate = asyncio.Event()
    async with model(api, [*api.answer("Hel", "lo")[:4], gate]) as (provider, server), asyncio.timeout(TIMEOUT):
        stream = provider.stream(Prompt(system="", messages=HELLO))
        await anext(stream)
        assert not server.idle.is_set()
        await stream.aclose()
        await server.idle.wait()


@pytest.mark.parametrize(
    ("status", "code", "message", "kind", "sentence"),
    [
        (401, "invalid_api_key", "Incorrect API key", ModelUnavailable, "API key for `m` was rejected"),
        (403, "permission_error", "No.", ModelUnavailable, "doesn't give access"),
        (404, "model_not_found", "The model `m` does not exist", ModelUnavailable, "has no model named `m`"),
        (404, "x", "page not found", ModelUnavailable, "base_url"),
        (402, "x", "Pay.", ModelUnavailable, "out of credit or quota"),
        (429, "insufficient_quota", "You exceeded your current quota", ModelUnavailable, "out of credit or quota"),
        (400, "x", "Your credit balance is too low", ModelUnavailable, "out of credit or quota"),
        (400, "context_length_exceeded", "maximum context length is 8192 tokens", ContextTooLong, "too long"),
        (
            400,
            "invalid_request_error",
            "prompt is too long: 210000 tokens > 200000 maximum",
            ContextTooLong,
            "too long",
        ),
        (400, "exceed_context_size_error", "exceeds the available context size", ContextTooLong, "too long"),
        (413, "request_too_large", "Request exceeds the maximum size", ContextTooLong, "too long"),
        (429, "rate_limit_exceeded", "Slow down", ProviderBusy, "overloaded"),
        (500, "api_error", "Internal", ProviderBusy, "overloaded"),
        (503, "x", "Loading model", ProviderBusy, "overloaded"),
        (529, "overloaded_error", "Overloaded", ProviderBusy, "overloaded"),
        (400, "content_policy_violation", "no", ProviderFailed, "declined"),
        (400, "x", "temperature must be 1", ProviderFailed, "rejected this request"),
    ],
)
async def test_an_error_response_becomes_one_sentence_of_the_right_class(
    api: Dialect, status: int, code: str, message: str, kind: type[ProviderFailed], sentence: str
) -> None:
    async with model(api, api.refusal(status, code, message)) as (provider, server):
        with pytest.raises(ProviderFailed, match=sentence) as caught:
            await step(provider)
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)
    assert len(server.requests) == 1


async def test_a_query_of_the_base_url_is_sent_after_the_path(api: Dialect) -> None:
    async with model(api, api.answer("Hi.")) as (_, server):
        address = server.table()["base_url"]
        for given in (f"{address}?api-version=7", f"{address}/?api-version=7#top"):
            settings = ProviderSettings.model_validate(server.table(base_url=given))
            registry = ProviderRegistry({"fake": settings})
            await step(registry.for_agent("fake", "m", ()))
            await registry.aclose()
    assert [request.query for request in server.requests] == ["api-version=7"] * 2


async def test_a_redirect_is_not_followed(api: Dialect) -> None:
    async with model(api, Refusal(307, "", {"Location": "/elsewhere"})) as (provider, server):
        with pytest.raises(ModelUnavailable, match="base_url"):
            await step(provider)
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [429, 500, 502, 529])
async def test_a_busy_model_is_retried(api: Dialect, status: int) -> None:
    script: list[Reply] = [api.refusal(status, "busy"), api.refusal(status, "busy"), api.answer("Now.")]
    async with model(api, *script, patience=30.0) as (provider, server):
        assert (await step(provider)).text == "Now."
    assert len(server.requests) == 3


async def test_a_long_rate_limit_is_reported_without_waiting(api: Dialect) -> None:
    async with model(api, api.refusal(429, "rate_limit", retry_after="86400"), patience=60.0) as (provider, server):
        with pytest.raises(ProviderBusy, match=r"rate-limited\. Try again in 1 day"):
            await step(provider)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "garbage",
    [b"data: {not json\n\n", b"event: x\ndata: 7\n\n", b"data: \xff\xfe\n\n", b"data: []\n\n", b"\0" * 9, b""],
)
async def test_an_invalid_response_is_a_provider_error(api: Dialect, garbage: bytes) -> None:
    async with model(api, [garbage]) as (provider, _):
        with pytest.raises(ProviderFailed):
            await step(provider)


async def test_a_closed_port_is_reported_as_unreachable(api: Dialect) -> None:
    async with model(api, api.answer("x"), base_url="http://127.0.0.1:9/v1") as (provider, _):
        with pytest.raises(ProviderBusy, match="can't be reached"):
            await step(provider)


async def test_an_answer_cut_short_by_the_limit_says_so(api: Dialect) -> None:
    async with model(api, api.answer("Once upon", is_cut_short=True)) as (provider, _):
        assert "limit for one answer" in (await step(provider)).text
    async with model(api, api.answer(is_cut_short=True)) as (provider, _):
        with pytest.raises(ProviderFailed, match="max_output_tokens"):
            await step(provider)


async def test_proxies_of_the_environment_are_not_used(api: Dialect, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with model(api, api.answer("Direct.")) as (provider, _):
        assert (await step(provider)).text == "Direct."
