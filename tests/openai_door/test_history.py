"""What is new in the history that a client sends, in sessions of a running daemon."""

import asyncio
import base64
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.conversation import ToolCall
from gateway.errors import ProviderBusy
from gateway.sessions import TurnOutcome, entries
from tests.daemon.harness import settings
from tests.files.samples import png
from tests.openai_door.harness import DoorTest, door
from tests.polling import until

MODEL = "main@trip"


async def test_the_whole_history_is_not_stored_again(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        history: list[tuple[str, str]] = []
        for text in ("one", "two", "three"):
            history.append(("user", text))
            history.append(("assistant", await test.chat(history, MODEL)))
        expected = [text for _, text in history]
        assert await test.texts() == expected
        assert test.model.said() == expected[:-1]


async def test_only_new_messages_continue_the_session(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        for text in ("one", "two", "two"):
            await test.ask(text, MODEL)
        assert await test.texts() == ["one", "You said: one", "two", "You said: two", "two", "You said: two"]


async def test_several_new_messages_are_one_prompt(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        await test.chat([("user", "one"), ("user", "two")], MODEL)
        assert await test.texts() == ["one\n\ntwo", "You said: one\n\ntwo"]


async def test_spaces_and_line_breaks_do_not_matter(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        answer = await test.ask("one\n\ntwo", MODEL)
        await test.chat(
            [("user", "one two"), ("assistant", f"  {answer.replace(' ', chr(10))} "), ("user", "3")], MODEL
        )
        assert len(await test.texts()) == 4


async def test_a_repeated_message_gets_the_stored_answer(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        history = [("user", "one"), ("assistant", await test.ask("one", MODEL)), ("user", "two")]
        first = await test.chat(history, MODEL)
        assert await test.chat(history, MODEL) == first
        sent: Any = [{"role": role, "content": text} for role, text in history]
        streamed: Any = await test.openai.chat.completions.create(model=MODEL, messages=sent, stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in streamed]) == first
        assert len(test.model.prompts) == 2
        assert len(await test.texts()) == 4


async def test_a_message_that_is_being_answered_is_not_run_again(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        test.model.may_answer.clear()
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(test.ask("one", MODEL), name="first")]
            await test.model.is_asked.wait()
            asked += [tasks.create_task(test.ask("one", MODEL), name=f"again-{number}") for number in range(3)]
            await until(lambda: _followers(test) == 4)
            test.model.may_answer.set()
        assert {task.result() for task in asked} == {"You said: one"}
        assert len(test.model.prompts) == 1


async def test_a_message_that_waits_is_not_accepted_again(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        test.model.may_answer.clear()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(test.ask("one", MODEL), name="first")
            await test.model.is_asked.wait()
            asked = [tasks.create_task(test.ask("two", MODEL), name="second")]
            await until(lambda: test.daemon.lanes.waiting)
            asked.append(tasks.create_task(test.ask("two", MODEL), name="again"))
            await until(lambda: _followers(test) == 3)
            test.model.may_answer.set()
        assert {task.result() for task in asked} == {"You said: two"}
        assert await test.texts() == ["one", "You said: one", "two", "You said: two"]


def _followers(test: DoorTest) -> int:
    return sum(map(len, test.daemon.sessions.feed._followers.values()))  # noqa: SLF001 - nothing else shows them.


async def test_an_automatic_retry_is_recognised(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        await test.ask("one", MODEL)
        assert await test.ask("one", MODEL, extra_headers={"x-stainless-retry-count": "1"}) == "You said: one"
        assert len(test.model.prompts) == 1
        await test.ask("one", MODEL, extra_headers={"x-stainless-retry-count": "0"})
        assert len(test.model.prompts) == 2


async def test_an_empty_session_takes_over_the_history(tmp_path: Path) -> None:
    examples = [("user", "2+2"), ("assistant", "4"), ("user", "3+3"), ("assistant", "6")]
    async with door(tmp_path) as test:
        history = [*examples, ("user", "4+4")]
        answer = await test.chat(history, MODEL)
        assert test.model.said() == ["2+2", "4", "3+3", "6", "4+4"]
        assert await test.texts() == ["2+2", "4", "3+3", "6", "4+4", answer]
        await test.chat([*history, ("assistant", answer), ("user", "5+5")], MODEL)
        assert test.model.said() == ["2+2", "4", "3+3", "6", "4+4", answer, "5+5"]
        ends = [entry async for entry in test.daemon.sessions.entries(test.sessions()[0].key)]
        assert [entry.outcome for entry in ends if isinstance(entry, entries.TurnEnd)] == [TurnOutcome.ANSWERED] * 4


async def test_a_session_that_was_started_empty_takes_over_the_history(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        started = await test.program.start()
        await test.chat([("user", "2+2"), ("assistant", "4"), ("user", "3+3")], f"main@{started['id']}")
        assert test.model.said() == ["2+2", "4", "3+3"]


async def test_a_history_that_does_not_match_is_refused(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        await test.ask("one", MODEL)
        await test.ask("two", MODEL)
        before = await test.texts()
        for history in (
            [("user", "one"), ("assistant", "Something else."), ("user", "three")],
            [("user", "one"), ("assistant", "You said: one"), ("user", "three")],
            [("assistant", ""), ("user", "three")],
        ):
            with pytest.raises(openai.BadRequestError) as caught:
                await test.chat(history, MODEL)
            assert caught.value.code == "history_mismatch"
            assert "Send only the new messages, or use another session name" in caught.value.message
        assert await test.texts() == before
        with pytest.raises(openai.BadRequestError, match="must come from the user"):
            await test.chat([("user", "one"), ("assistant", "You said: one")], MODEL)


async def test_a_client_that_stopped_reading_can_continue(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        await test.ask("one two three four", MODEL)
        history = [("user", "one two three four"), ("assistant", "You said: one two"), ("user", "stop")]
        assert await test.chat(history, MODEL) == "You said: stop"


async def test_a_failed_message_can_be_sent_again(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        answer = await test.ask("one", MODEL)
        history = [("user", "one"), ("assistant", answer), ("user", "two")]
        for messages in (history, [("user", "two")]):
            test.model.failures = [ProviderBusy("Busy.")]
            with pytest.raises(openai.InternalServerError):
                await test.chat(messages, MODEL)
            assert await test.chat(messages, MODEL) == "You said: two"
            assert test.model.said().count("two") == (1 if messages is history else 2), "the failed one is undone"


async def test_a_client_keeps_a_message_that_failed(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        test.model.failures = [ProviderBusy("Busy.")]
        with pytest.raises(openai.InternalServerError):
            await test.ask("one", MODEL)
        await test.chat([("user", "one"), ("user", "two")], MODEL)
        assert test.model.said() == ["one", "two"], "one is there once"
        assert await test.texts() == ["one", "two", "You said: two"]


async def test_the_text_of_all_steps_is_the_answer(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        test.model.calls = [[ToolCall(id="1", name="current_time", input={})]]
        answer = await test.ask("one", MODEL)
        assert answer == "You said: one\n\nYou said: one"
        await test.chat([("user", "one"), ("assistant", answer), ("user", "two")], MODEL)
        assert len(test.sessions()) == 1
        test.model.calls = [[ToolCall(id="1", name="current_time", input={})]]
        assert await test.ask("one") == answer, "as without a session"


async def test_a_cleared_session_does_not_take_the_history_back(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        answer = await test.ask("one", MODEL)
        await test.daemon.sessions.clear(test.sessions()[0].key)
        await test.chat([("user", "one"), ("assistant", answer), ("user", "two")], MODEL)
        assert test.model.said() == ["two"]


async def test_the_client_may_know_more_than_is_in_memory(tmp_path: Path) -> None:
    configured = settings(tmp_path, session={"max_messages": 2})
    history: list[tuple[str, str]] = []
    async with door(tmp_path, configured) as test:
        for text in "abcdef":
            history.append(("user", text))
            history.append(("assistant", await test.chat(history, MODEL)))
    async with door(tmp_path, configured) as test:
        loaded = await test.daemon.sessions.load(test.sessions()[0].key)
        assert "a" not in [entry.content for entry in loaded.entries if isinstance(entry, entries.User)]
        assert await test.chat(history[:3], MODEL) == "You said: b", "a repetition of an old message"
        assert test.model.prompts == []
        with pytest.raises(openai.BadRequestError, match="doesn't match"):
            await test.chat([*history[:2], ("user", "something else")], MODEL)
        await test.chat([*history, ("user", "g")], MODEL)
        await test.daemon.sessions.clear(test.sessions()[0].key)
        history += [("user", "g"), ("assistant", "You said: g")]
    async with door(tmp_path, configured) as test:
        await test.chat([*history, ("user", "h")], MODEL)
        assert test.model.said() == ["h"], "what was cleared is not taken over again"
        assert (await test.texts()).count("a") == 1


async def test_the_same_text_with_another_image_is_another_message(tmp_path: Path) -> None:
    def message(width: int) -> Any:  # noqa: ANN401 - a message as the client takes it.
        url = f"data:image/png;base64,{base64.b64encode(png(width, 10)).decode()}"
        return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}

    async with door(tmp_path) as test:
        create = test.openai.chat.completions.create
        first = (await create(model=MODEL, messages=[message(10)])).choices[0].message.content or ""
        history = [message(10), {"role": "assistant", "content": first}, message(20)]
        await create(model=MODEL, messages=history)
        await create(model=MODEL, messages=history)
        assert len(test.model.prompts) == 2, "the repetition is recognised"
        again = [message(10), {"role": "assistant", "content": first}, message(30)]
        with pytest.raises(openai.BadRequestError, match="doesn't match"):
            await create(model=MODEL, messages=again)


async def test_images_of_earlier_messages_are_not_taken_over(tmp_path: Path) -> None:
    url = f"data:image/png;base64,{base64.b64encode(png(10, 10)).decode()}"
    history: Any = [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]},
        {"role": "assistant", "content": "A picture."},
        {"role": "user", "content": "And?"},
    ]
    async with door(tmp_path) as test:
        with pytest.raises(openai.BadRequestError, match="take over images"):
            await test.openai.chat.completions.create(model=MODEL, messages=history)
        assert test.sessions() == []


async def test_a_message_that_is_too_long_is_refused(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        with pytest.raises(openai.BadRequestError, match="32,000 is the limit") as caught:
            await test.ask("x" * 32_001, MODEL)
        assert caught.value.code == "string_above_max_length"
        assert test.sessions() == []


async def test_an_idempotency_key_is_honoured(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        key = {"Idempotency-Key": "k1"}
        first = await test.ask("one", MODEL, extra_headers=key)
        assert await test.ask("one", MODEL, extra_headers=key) == first
        assert len(test.model.prompts) == 1
        with pytest.raises(openai.ConflictError) as caught:
            await test.ask("two", MODEL, extra_headers=key)
        assert caught.value.code == "idempotency_key_reused"
        await test.ask("one", MODEL, extra_headers={"Idempotency-Key": "k2"})
        assert len(test.model.prompts) == 2
        with pytest.raises(openai.BadRequestError):
            await test.ask("one", MODEL, extra_headers={"Idempotency-Key": "x" * 256})


async def test_a_key_also_repeats_a_failure(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        test.model.failures = [ProviderBusy("Busy.")]
        for _ in range(2):
            with pytest.raises(openai.InternalServerError, match="Busy"):
                await test.ask("one", MODEL, extra_headers={"Idempotency-Key": "k1"})
        assert len(test.model.prompts) == 1


async def test_too_many_waiting_messages_are_refused(tmp_path: Path) -> None:
    gateway = {"data_dir": tmp_path / "data", "max_queued_per_session": 1}
    async with door(tmp_path, gateway=gateway) as test:
        test.model.may_answer.clear()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(test.ask("one", MODEL), name="first")
            await test.model.is_asked.wait()
            tasks.create_task(test.ask("two", MODEL), name="second")
            await until(lambda: test.daemon.lanes.waiting)
            with pytest.raises(openai.RateLimitError, match="already waiting"):
                await test.ask("three", MODEL)
            test.model.may_answer.set()
