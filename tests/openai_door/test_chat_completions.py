"""`/v1/chat/completions` with OpenAI's own client."""

import base64
import json
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.conversation import ToolCall, UserMessage
from gateway.errors import ContextTooLong, ModelUnavailable, ProviderBusy
from tests.files.samples import png
from tests.openai_door.harness import DoorTest, door

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Say how the weather is.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = ToolCall(id="call_1", name="weather", input={"city": "Lisbon"})


async def raw(test: DoorTest, body: dict[str, Any], **headers: str) -> tuple[int, str]:
    """Return the status and the text of a response."""
    response = await test.program.request("POST", "/v1/chat/completions", body, **headers)
    return response.status, await response.text()


async def test_an_answer_has_the_shape_of_a_chat_completion(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        completion = await test.openai.chat.completions.create(
            model="main", messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
        )
        assert completion.object == "chat.completion"
        assert completion.id.startswith("chatcmpl-")
        assert completion.model == "main"
        (choice,) = completion.choices
        assert (choice.index, choice.finish_reason) == (0, "stop")
        assert (choice.message.role, choice.message.content) == ("assistant", "You said: hello")
        assert completion.usage is not None
        assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (11, 7)
        assert completion.usage.total_tokens == 18
        assert completion.usage.prompt_tokens_details is not None
        assert completion.usage.prompt_tokens_details.cached_tokens == 3
        assert test.model.prompts[0].system.endswith("Be brief.")
        assert test.sessions() == [], "nothing is stored"


@pytest.mark.parametrize("model", ["main", "main@trip"])
async def test_a_stream_has_the_framing_of_openai(tmp_path: Path, model: str) -> None:
    async with door(tmp_path) as test:
        body = {"model": model, "stream": True, "messages": [{"role": "user", "content": "hello"}]}
        status, text = await raw(test, body)
        assert status == 200
        *lines, last, nothing = text.split("\n\n")
        assert (last, nothing) == ("data: [DONE]", "")
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
        assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
        assert all("usage" not in chunk for chunk in chunks)
        choices = [chunk["choices"][0] for chunk in chunks]
        assert choices[0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
        assert "".join(choice["delta"]["content"] for choice in choices[1:-1]) == "You said: hello"
        assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
        assert choices[-1]["delta"] == {}


@pytest.mark.parametrize("model", ["main", "main@trip"])
async def test_the_last_chunk_has_the_usage_if_the_client_wants_it(tmp_path: Path, model: str) -> None:
    async with door(tmp_path) as test:
        stream = await test.openai.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "hello"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        *chunks, last = [chunk async for chunk in stream]
        assert all(chunk.usage is None and chunk.choices for chunk in chunks)
        assert last.choices == []
        assert last.usage is not None
        assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens) == (11, 7, 18)


async def test_the_stream_helper_of_the_sdk_works(tmp_path: Path) -> None:
    async with (
        door(tmp_path) as test,
        test.openai.chat.completions.stream(model="main", messages=[{"role": "user", "content": "hello"}]) as stream,
    ):
        final = await stream.get_final_completion()
        assert final.choices[0].message.content == "You said: hello"


@pytest.mark.parametrize("model", ["main", "main@trip"])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_errors_become_the_exceptions_of_the_sdk(tmp_path: Path, model: str, *, is_stream: bool) -> None:
    async with door(tmp_path) as test:

        async def fail(error: Exception) -> openai.APIStatusError:
            test.model.failures = [error]  # type: ignore[list-item]  # All of them are `ProviderFailed`.
            with pytest.raises(openai.APIStatusError) as caught:
                await test.openai.chat.completions.create(
                    model=model,
                    messages=[{"role": "user", "content": str(error)}],
                    stream=is_stream,
                )
            return caught.value

        for error in (ProviderBusy("The model is busy."), ModelUnavailable("The key was rejected.")):
            failed = await fail(error)
            assert isinstance(failed, openai.InternalServerError)
            assert (failed.status_code, failed.code, failed.type) == (502, "model_failed", "server_error")
            assert str(error) in failed.message
            assert failed.response.headers["x-should-retry"] == "false"


async def test_an_error_in_mid_stream_is_an_event(tmp_path: Path) -> None:
    async with door(tmp_path, gateway={"data_dir": tmp_path / "data", "turn_timeout": 1.0}) as test:
        test.model.may_answer.clear()
        for model in ("main", "main@trip"):
            stream = await test.openai.chat.completions.create(
                model=model, messages=[{"role": "user", "content": "hello"}], stream=True
            )
            received: list[Any] = []
            with pytest.raises(openai.APIError, match="longer than 1 seconds") as caught:
                await _receive(stream, received)
            assert "".join(chunk.choices[0].delta.content for chunk in received) == "You said: "
            assert caught.value.code == "timeout"


async def _receive(stream: openai.AsyncStream[Any], received: list[Any]) -> None:
    async for chunk in stream:
        received.append(chunk)  # noqa: PERF401 - an error in mid-stream must not lose them.


async def test_a_conversation_that_is_too_long_is_the_fault_of_the_request(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        test.model.failures = [ContextTooLong("Too long."), ContextTooLong("Too long.")]
        with pytest.raises(openai.BadRequestError) as caught:
            await test.ask("hello")
        assert caught.value.code == "context_length_exceeded"


async def test_the_daily_limit_is_a_quota(tmp_path: Path) -> None:
    async with door(tmp_path, limits={"tokens_per_user_per_day": 20}) as test, test.client() as other:
        assert await test.ask("one") == "You said: one"
        assert await test.ask("two", "main@trip") == "You said: two"
        for model in ("main", "main@trip"):
            with pytest.raises(openai.RateLimitError) as caught:
                await test.ask("three", model)
            assert (caught.value.code, caught.value.type) == ("insufficient_quota", "insufficient_quota")
            assert "limit" in caught.value.message
        assert await other.ask("four") == "You said: four", "each token has its own limit"


async def test_unknown_models_are_not_found(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        for model in ("gpt-4o", "", "main/other", "Main", "x" * 10_000, "\x00"):
            with pytest.raises(openai.NotFoundError) as caught:
                await test.ask("hello", model)
            assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
            assert "main" in caught.value.message


UNSUPPORTED: list[tuple[str, dict[str, Any]]] = [
    ("n", {"n": 2}),
    ("logprobs", {"logprobs": True}),
    ("top_logprobs", {"top_logprobs": 3}),
    ("audio", {"audio": {"voice": "alloy", "format": "wav"}}),
    ("modalities", {"modalities": ["text", "audio"]}),
    ("response_format", {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}),
    ("response_format", {"response_format": {"type": "json_object"}}),
    ("web_search_options", {"web_search_options": {}}),
    ("tool_choice", {"tools": [WEATHER], "tool_choice": "required"}),
    ("tool_choice", {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "weather"}}}),
    ("function_call", {"functions": [WEATHER["function"]], "function_call": {"name": "weather"}}),
    ("tools[0]", {"tools": [{"type": "custom", "custom": {"name": "x"}}]}),
    ("tools", {"tools": [WEATHER, WEATHER]}),
    ("tools", {"tools": [{"type": "function", "function": {"name": "two words"}}]}),
    ("messages", {"messages": []}),
    ("messages[0].role", {"messages": [{"role": "narrator", "content": "x"}]}),
    ("messages[0].content", {"messages": [{"role": "user", "content": "  "}]}),
    ("messages[0].content", {"messages": [{"role": "user", "content": []}]}),
    ("messages[0].content", {"messages": [{"role": "user"}]}),
    ("messages[0].content", {"messages": [{"role": "user", "content": 7}]}),
    ("messages", {"messages": "hello"}),
    ("stream", {"stream": "yes"}),
    ("messages[0].content[0].type", {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}),
    ("messages[0].content[0].type", {"messages": [{"role": "user", "content": [{"type": "file", "file": {}}]}]}),
    (
        "messages[0].content[0].image_url",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://a/b.png"}}]}]},
    ),
    (
        "messages[0].content[0].image_url",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x;base64,@@"}}]}]},
    ),
    (
        "messages[0].content[0].image_url",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:;base64,AAAA"}}]}]},
    ),
    ("messages[0]", {"messages": [{"role": "tool", "tool_call_id": "x", "content": "sunny"}]}),
    (
        "messages",
        {
            "messages": [
                {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]}
            ]
        },
    ),
    (
        "messages[0]",
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "["}}]}]},
    ),
]


@pytest.mark.parametrize(("param", "change"), UNSUPPORTED)
async def test_what_is_not_supported_is_refused_with_a_sentence(
    tmp_path: Path, param: str, change: dict[str, Any]
) -> None:
    async with door(tmp_path) as test:
        body = {"model": "main", "messages": [{"role": "user", "content": "hello"}], **change}
        status, text = await raw(test, body)
        error = json.loads(text)["error"]
        assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param), error
        assert error["message"].endswith(".")
        assert test.model.prompts == []


async def test_parameters_for_sampling_have_no_effect(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        options = {"temperature": 0.1, "top_p": 1, "max_tokens": 5, "stop": ["x"], "seed": 1, "presence_penalty": 1}
        body = {"model": "main", "messages": [{"role": "user", "content": "hello"}], **options, "invented": {"a": 1}}
        status, text = await raw(test, body)
        assert (status, json.loads(text)["choices"][0]["message"]["content"]) == (200, "You said: hello")


@pytest.mark.parametrize("is_stream", [False, True])
async def test_tools_of_the_client_are_passed_through(tmp_path: Path, *, is_stream: bool) -> None:
    async with door(tmp_path) as test:
        test.model.calls = [[CALL, ToolCall(id="call_2", name="weather", input={})]]
        messages: list[Any] = [{"role": "user", "content": "How is it in Lisbon?"}]
        if is_stream:
            async with test.openai.chat.completions.stream(model="main", messages=messages, tools=[WEATHER]) as stream:
                choice: Any = (await stream.get_final_completion()).choices[0]
        else:
            choice = (
                await test.openai.chat.completions.create(model="main", messages=messages, tools=[WEATHER])
            ).choices[0]
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "You said: How is it in Lisbon?"
        found = [
            (call.id, call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls
        ]
        assert found == [("call_1", "weather", {"city": "Lisbon"}), ("call_2", "weather", {})]
        assert [tool.name for tool in test.model.prompts[0].tools] == ["weather"], "the agent's own are not offered"

        messages += [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [call.model_dump() for call in choice.message.tool_calls],
            },
            {"role": "tool", "tool_call_id": "call_2", "content": "unknown"},
            {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "sunny"}]},
        ]
        completion = await test.openai.chat.completions.create(model="main", messages=messages, tools=[WEATHER])
        assert completion.choices[0].finish_reason == "stop"
        question, calls, results = test.model.prompts[1].messages
        assert isinstance(question, UserMessage)
        assert [call.id for call in calls.tool_calls] == ["call_1", "call_2"]  # type: ignore[union-attr]  # Or it fails.
        assert [each.output for each in results.outcomes] == ["sunny", "unknown"]  # type: ignore[union-attr]  # As above.
        assert test.sessions() == []


@pytest.mark.parametrize("is_stream", [False, True])
async def test_functions_of_the_old_kind_are_passed_through(tmp_path: Path, *, is_stream: bool) -> None:
    async with door(tmp_path) as test:
        test.model.calls = [[CALL]]
        body: dict[str, Any] = {
            "model": "main",
            "stream": is_stream,
            "functions": [WEATHER["function"]],
            "messages": [{"role": "user", "content": "How is it?"}],
        }
        _, text = await raw(test, body)
        function = {"name": "weather", "arguments": '{"city":"Lisbon"}'}
        if is_stream:
            chunks = [json.loads(line[6:])["choices"][0] for line in text.split("\n\n")[:-2]]
            assert function in [chunk["delta"].get("function_call") for chunk in chunks]
            assert chunks[-1]["finish_reason"] == "function_call"
        else:
            choice = json.loads(text)["choices"][0]
            assert (choice["finish_reason"], choice["message"]["function_call"]) == ("function_call", function)
        body["messages"] += [
            {"role": "assistant", "content": None, "function_call": function},
            {"role": "function", "name": "weather", "content": "sunny"},
        ]
        status, _ = await raw(test, body)
        assert status == 200
        assert test.model.prompts[1].messages[2].outcomes[0].output == "sunny"  # type: ignore[union-attr]  # Or it fails.


async def test_without_a_choice_of_tools_the_agent_has_its_own(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        assert await test.ask("hello", tools=[WEATHER], tool_choice="none") == "You said: hello"
        assert "weather" not in [tool.name for tool in test.model.prompts[0].tools]
        assert test.model.prompts[0].tools, "the agent has tools"


async def test_a_session_refuses_tools_of_the_client(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        with pytest.raises(openai.BadRequestError) as caught:
            await test.ask("hello", "main@trip", tools=[WEATHER])
        assert caught.value.param == "tools"
        calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
        messages: Any = [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "1", "content": "x"},
        ]
        with pytest.raises(openai.BadRequestError, match="results of tools"):
            await test.openai.chat.completions.create(model="main@trip", messages=messages)
        assert await test.ask("hello", "main@trip", tools=[WEATHER], tool_choice="none") == "You said: hello"
        assert await test.ask("again", "main@trip", tools=[]) == "You said: again"
        assert len(test.sessions()) == 1


@pytest.mark.parametrize("model", ["main", "main@trip"])
async def test_an_image_reaches_the_model(tmp_path: Path, model: str) -> None:
    picture = png(40, 30)
    content: Any = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(picture).decode()}"}},
    ]
    async with door(tmp_path) as test:
        await test.openai.chat.completions.create(model=model, messages=[{"role": "user", "content": content}])
        (message,) = test.model.prompts[0].messages
        assert isinstance(message, UserMessage)
        assert message.text.startswith("What is this?")
        assert [(each.media_type, each.data) for each in message.pictures] == [("image/png", picture)]


async def test_an_image_for_a_model_without_eyes_is_refused(tmp_path: Path) -> None:
    url = f"data:image/png;base64,{base64.b64encode(png(40, 30)).decode()}"
    content: Any = [{"type": "image_url", "image_url": {"url": url}}]
    async with door(tmp_path) as test:
        test.model.install(test.daemon, sees_images=False)
        with pytest.raises(openai.BadRequestError, match="doesn't accept images"):
            await test.openai.chat.completions.create(model="main", messages=[{"role": "user", "content": content}])


async def test_a_greeting_of_the_assistant_reaches_the_model(tmp_path: Path) -> None:
    greeted = [("assistant", "Welcome!"), ("user", "Hi")]
    async with door(tmp_path) as test:
        for model in ("main", "main@trip"):
            await test.chat(greeted, model)
            assert test.model.said() == ["[The assistant has begun this conversation.]", "Welcome!", "Hi"]
