"""`/v1/responses` with OpenAI's own client."""

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.responses import Response

from gateway.contract import TokenScope
from gateway.conversation import ToolCall
from gateway.errors import ProviderBusy
from tests.openai_door.harness import DoorTest, door
from tests.polling import until

WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "Say how the weather is.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}
CALL = ToolCall(id="call_1", name="weather", input={"city": "Lisbon"})


async def raw(test: DoorTest, body: dict[str, Any]) -> tuple[int, Any]:
    response = await test.program.request("POST", "/v1/responses", {"model": "main", "input": "hello", **body})
    return response.status, await response.json()


async def test_a_response_has_the_shape_of_openai(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        response = await test.openai.responses.create(
            model="main", input="hello", instructions="Be brief.", metadata={"a": "b"}, temperature=0.5
        )
        Response.model_validate(response.model_dump(), strict=True)
        assert (response.object, response.status, response.model) == ("response", "completed", "main")
        assert response.id.startswith("resp_")
        assert response.output_text == "You said: hello"
        item: Any = response.output[0]
        assert len(response.output) == 1
        assert (item.type, item.status) == ("message", "completed")
        assert response.usage is not None
        assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens) == (11, 7, 18)
        assert response.usage.input_tokens_details.cached_tokens == 3
        assert (response.instructions, response.metadata) == ("Be brief.", {"a": "b"})
        assert test.model.prompts[0].system.endswith("Be brief.")


EVENTS = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


@pytest.mark.parametrize("fields", [{"store": False}, {}, {"conversation": "trip"}])
async def test_a_stream_has_the_events_of_openai_in_order(tmp_path: Path, fields: dict[str, Any]) -> None:
    async with door(tmp_path) as test:
        test.model.may_answer.clear()
        stream = await test.openai.responses.create(model="main", input="hello", stream=True, **fields)
        events: list[Any] = []
        async for event in stream:
            events.append(event)
            if event.type == "response.output_text.delta":
                test.model.may_answer.set()  # The first piece has arrived before there is a second.
        assert [event.type for event in events] == EVENTS
        assert [event.sequence_number for event in events] == list(range(len(events)))
        of_item = [event for event in events if hasattr(event, "item_id")]
        assert len({(event.item_id, event.output_index, event.content_index) for event in of_item}) == 1
        assert events[2].item.id == of_item[0].item_id == events[-1].response.output[0].id
        assert [event.response.status for event in (events[0], events[-1])] == ["in_progress", "completed"]
        assert events[0].response.id == events[-1].response.id
        assert events[6].text == events[-1].response.output_text == "You said: hello"
        assert events[-1].response.usage.total_tokens == 18


async def test_the_stream_helper_of_the_sdk_works(tmp_path: Path) -> None:
    """It raises IndexError unless the content part is added before the first delta."""
    async with (
        door(tmp_path) as test,
        test.openai.responses.stream(model="main", input="hello") as stream,
    ):
        final = await stream.get_final_response()
        assert final.output_text == "You said: hello"


async def test_events_are_named_and_end_without_a_mark(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        body = {"model": "main", "input": "hello", "stream": True}
        response = await test.program.request("POST", "/v1/responses", body)
        assert response.headers["Content-Type"].startswith("text/event-stream")
        blocks = (await response.text()).split("\n\n")[:-1]
        for block in blocks:
            name, data = block.split("\n")
            assert json.loads(data.removeprefix("data: "))["type"] == name.removeprefix("event: ")


async def test_the_next_response_continues_the_one_before(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        first = await test.openai.responses.create(model="main", input="one")
        second = await test.openai.responses.create(model="main", input="two", previous_response_id=first.id)
        assert second.previous_response_id == first.id
        assert test.model.said() == ["one", "You said: one", "two"]
        third = await test.openai.responses.create(
            model="main", input=[{"role": "user", "content": "three"}], previous_response_id=second.id
        )
        assert await test.texts() == ["one", "You said: one", "two", "You said: two", "three", "You said: three"]

        again = await test.openai.responses.create(model="main", input="two", previous_response_id=first.id)
        assert (again.id, again.output_text) == (second.id, "You said: two"), "a repetition is not run again"
        with pytest.raises(openai.BadRequestError, match="not the newest") as caught:
            await test.openai.responses.create(model="main", input="four", previous_response_id=first.id)
        assert caught.value.param == "previous_response_id"
        history: Any = [{"role": "assistant", "content": "x"}, {"role": "user", "content": "y"}]
        with pytest.raises(openai.BadRequestError):
            await test.openai.responses.create(model="main", input=history, previous_response_id=third.id)


async def test_a_response_that_does_not_exist_cannot_be_continued(tmp_path: Path) -> None:
    async with door(tmp_path) as owner, owner.client() as other:
        stored = await owner.openai.responses.create(model="main", input="one")
        unstored = await owner.openai.responses.create(model="main", input="one", store=False)
        for test, name in (
            (owner, unstored.id),
            (owner, "resp_x"),
            (owner, f"resp_{'0' * 64}"),
            (owner, f"{stored.id[:-1]}{'0' if stored.id[-1] != '0' else '1'}"),
            (other, stored.id),
        ):
            with pytest.raises(openai.BadRequestError) as caught:
                await test.openai.responses.create(model="main", input="two", previous_response_id=name)
            assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")
        with pytest.raises(openai.BadRequestError, match="not both"):
            await owner.openai.responses.create(
                model="main", input="two", previous_response_id=stored.id, conversation="trip"
            )


async def test_a_stored_response_can_be_read_and_deleted(tmp_path: Path) -> None:
    async with door(tmp_path) as owner, owner.client() as other, owner.client(TokenScope.ADMIN) as admin:
        created = await owner.openai.responses.create(model="main", input="one", instructions="Be brief.")
        for test in (owner, admin):
            found = await test.openai.responses.retrieve(created.id)
            Response.model_validate(found.model_dump(), strict=True)
            assert (found.id, found.status, found.output_text) == (created.id, "completed", created.output_text)
            assert found.output[0].id == created.output[0].id
            assert found.usage == created.usage
        items = await owner.openai.responses.input_items.list(created.id)
        assert [item.content[0].text async for item in items] == ["one"]  # type: ignore[union-attr,index]  # Or it fails.
        for call in (other.openai.responses.retrieve, other.openai.responses.delete):
            with pytest.raises(openai.NotFoundError):
                await call(created.id)
        await owner.openai.responses.delete(created.id)
        for call in (owner.openai.responses.retrieve, owner.openai.responses.delete):
            with pytest.raises(openai.NotFoundError):
                await call(created.id)
        assert await owner.texts() == ["one", "You said: one"], "the transcript keeps it"
        for name in ("x", "resp_", f"resp_{'0' * 64}", f"{created.id}0"):
            with pytest.raises(openai.NotFoundError):
                await owner.openai.responses.retrieve(name)
        with pytest.raises(openai.BadRequestError):
            await owner.openai.responses.retrieve(created.id, stream=True)


async def test_a_deleted_response_is_forgotten_by_the_agent(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        first = await test.openai.responses.create(model="main@trip", input="one")
        second = await test.openai.responses.create(model="main@trip", input="two")
        await test.openai.responses.delete(second.id)
        await test.openai.responses.create(model="main@trip", input="three", previous_response_id=first.id)
        assert test.model.said() == ["one", "You said: one", "three"]


async def test_a_response_is_readable_while_it_is_written(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        test.model.may_answer.clear()
        stream = await test.openai.responses.create(model="main", input="one", stream=True)
        first: Any = await anext(aiter(stream))
        name = first.response.id
        found = await test.openai.responses.retrieve(name)
        assert (found.status, found.usage) == ("in_progress", None)
        with pytest.raises(openai.ConflictError):
            await test.openai.responses.delete(name)
        test.model.may_answer.set()
        assert [event async for event in stream][-1].type == "response.completed"
        await stream.close()
        assert (await test.openai.responses.retrieve(name)).status == "completed"


async def test_a_failed_response_says_so(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        test.model.failures = [ProviderBusy("Busy.")]
        with pytest.raises(openai.InternalServerError, match="Busy"):
            await test.openai.responses.create(model="main@trip", input="one", stream=True)
        (session,) = test.sessions()
        loaded = await test.daemon.sessions.load(session.key)
        (turn,) = {entry.turn for entry in loaded.entries if entry.turn is not None}
        found = await test.openai.responses.retrieve(f"resp_{session.id.replace('-', '')}{turn}")
        assert found.status == "failed"
        assert found.error is not None
        assert (found.error.message, found.output) == ("Busy.", [])


async def test_a_stopped_stream_fails(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        test.model.may_answer.clear()
        stream = await test.openai.responses.create(model="main@trip", input="one", stream=True)
        iterator = aiter(stream)
        await anext(iterator)
        (session,) = test.sessions()
        test.daemon.lanes.stop(session.key, "Stopped by a test.")
        events = [event async for event in iterator]
        last: Any = events[-1]
        assert (last.type, last.response.status) == ("response.failed", "failed")
        assert last.response.error.message == "Stopped by a test."
        found = await test.openai.responses.retrieve(last.response.id)
        assert (found.status, found.output_text) == ("cancelled", "You said: ")


UNSUPPORTED: list[tuple[str, dict[str, Any]]] = [
    ("background", {"background": True}),
    ("prompt", {"prompt": {"id": "x"}}),
    ("top_logprobs", {"top_logprobs": 2}),
    ("text.format", {"text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}}),
    ("truncation", {"truncation": "some"}),
    ("tool_choice", {"tools": [WEATHER], "tool_choice": "required"}),
    ("tools[0]", {"tools": [{"type": "web_search"}]}),
    ("tools", {"tools": [WEATHER], "conversation": "trip"}),
    ("store", {"tools": [WEATHER], "store": True}),
    ("input", {"input": []}),
    ("input[0].content", {"input": ""}),
    ("input[0].role", {"input": [{"content": "x"}]}),
    ("input[0].type", {"input": [{"type": "item_reference", "id": "x"}]}),
    ("input[0].type", {"input": [{"type": "reasoning", "summary": []}]}),
    ("input[0].content[0].type", {"input": [{"role": "user", "content": [{"type": "input_file"}]}]}),
    (
        "input[0].content[0].image_url",
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://a/b.png"}]}]},
    ),
    ("input[0]", {"input": [{"type": "function_call_output", "call_id": "x", "output": "y"}]}),
    ("input", {"input": 7}),
    ("conversation", {"conversation": 7}),
]


@pytest.mark.parametrize(("param", "change"), UNSUPPORTED)
async def test_what_is_not_supported_is_refused_with_a_sentence(
    tmp_path: Path, param: str, change: dict[str, Any]
) -> None:
    async with door(tmp_path) as test:
        status, found = await raw(test, change)
        error = found["error"]
        assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param), error
        assert error["message"].endswith(".")
        assert test.model.prompts == []
        assert test.sessions() == []


async def test_options_that_mean_nothing_here_are_accepted(tmp_path: Path) -> None:
    options = {
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "max_output_tokens": 10,
        "parallel_tool_calls": False,
        "service_tier": "auto",
        "truncation": "auto",
        "stream_options": {"include_obfuscation": False},
    }
    async with door(tmp_path) as test:
        status, found = await raw(test, options)
        assert (status, found["status"], found["truncation"]) == (200, "completed", "auto")


@pytest.mark.parametrize("is_stream", [False, True])
async def test_tools_of_the_client_are_passed_through(tmp_path: Path, *, is_stream: bool) -> None:
    async with door(tmp_path) as test:
        test.model.calls = [[CALL, ToolCall(id="call_2", name="weather", input={})]]
        items: list[Any] = [{"role": "user", "content": "How is it in Lisbon?"}]
        if is_stream:
            async with test.openai.responses.stream(model="main", input=items, tools=[WEATHER]) as stream:
                kinds = [event.type async for event in stream]
                response: Any = await stream.get_final_response()
            assert kinds.count("response.function_call_arguments.delta") == 2
            assert kinds.count("response.output_item.done") == 3
        else:
            response = await test.openai.responses.create(model="main", input=items, tools=[WEATHER])
        message, *calls = response.output
        assert message.content[0].text == "You said: How is it in Lisbon?"
        assert [(call.type, call.call_id, call.name) for call in calls] == [
            ("function_call", "call_1", "weather"),
            ("function_call", "call_2", "weather"),
        ]
        assert json.loads(calls[0].arguments) == {"city": "Lisbon"}
        assert len({item.id for item in response.output}) == 3
        assert test.sessions() == [], "a response with tools of the client is not stored"
        with pytest.raises(openai.NotFoundError):
            await test.openai.responses.retrieve(response.id)

        items += [item.to_dict() for item in response.output]
        items += [
            {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
            {"type": "function_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "?"}]},
        ]
        final = await test.openai.responses.create(model="main", input=items, tools=[WEATHER])
        assert final.output_text == "You said: How is it in Lisbon?"
        _, step, results = test.model.prompts[-1].messages
        assert [call.id for call in step.tool_calls] == ["call_1", "call_2"]  # type: ignore[union-attr]  # Or it fails.
        assert [each.output for each in results.outcomes] == ["sunny", "?"]  # type: ignore[union-attr]  # As above.


async def test_an_idempotency_key_works_without_a_session_too(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        create = test.openai.responses.create
        first = await create(model="main", input="one", extra_headers={"Idempotency-Key": "k"})
        second = await create(model="main", input="one", extra_headers={"Idempotency-Key": "k"})
        assert first.id == second.id
        assert len(test.model.prompts) == 1


async def test_a_waiting_response_has_its_id_before_its_turn_begins(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        test.model.may_answer.clear()
        async with asyncio.TaskGroup() as tasks:
            create = test.openai.responses.create
            first = tasks.create_task(create(model="main@trip", input="one"), name="first")
            await test.model.is_asked.wait()
            second = tasks.create_task(create(model="main@trip", input="two"), name="second")
            await until(lambda: test.daemon.lanes.waiting)
            test.model.may_answer.set()
        assert first.result().id != second.result().id
        for created in (first.result(), second.result()):
            assert (await test.openai.responses.retrieve(created.id)).output_text == created.output_text
