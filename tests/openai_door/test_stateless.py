"""Stateless requests: the agent's tools, the share of slots, and what they cost."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from gateway.conversation import ToolCall
from gateway.memory import MemoryStore, memory_folder
from gateway.routing import program_scope
from tests.daemon.tools import Rocket, launch
from tests.openai_door.harness import Echo, door
from tests.polling import until


async def test_the_agent_uses_its_own_tools(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        test.model.calls = [[ToolCall(id="1", name="current_time", input={})]]
        assert await test.ask("What time is it?") == "You said: What time is it?\n\nYou said: What time is it?"
        results = test.model.prompts[1].messages[-1]
        assert not results.outcomes[0].is_error  # type: ignore[union-attr]  # Or it fails.


async def test_a_tool_that_needs_approval_is_not_run(tmp_path: Path) -> None:
    rocket = Rocket()
    async with door(tmp_path) as test:
        toolbox = rocket.toolbox()
        test.daemon.agents.replace("main", lambda main: replace(main, toolbox=toolbox))
        test.model.calls = [[launch("moon")]]
        await test.ask("Go!")
        (outcome,) = test.model.prompts[1].messages[-1].outcomes  # type: ignore[union-attr]  # Or it fails.
        assert (outcome.is_error, "needs a person's approval" in outcome.output) == (True, True)
        assert rocket.launched == []


async def test_reminders_and_files_cannot_be_sent(tmp_path: Path) -> None:
    async with door(tmp_path) as test:
        test.model.calls = [[ToolCall(id="1", name="remind", input={"text": "x", "when": "in 5 minutes"})]]
        await test.ask("Remind me.")
        (outcome,) = test.model.prompts[1].messages[-1].outcomes  # type: ignore[union-attr]  # Or it fails.
        assert outcome.is_error


async def test_notes_belong_to_the_token(tmp_path: Path) -> None:
    async with door(tmp_path) as owner, owner.client() as test:
        owner.model.calls = [[ToolCall(id="1", name="remember", input={"text": "Likes tea."})]]
        await test.ask("I like tea.")
        await test.ask("What do I like?")
        assert "Likes tea." in owner.model.prompts[-1].system
        await owner.ask("And I?")
        assert "Likes tea." not in owner.model.prompts[-1].system
        (token,) = owner.daemon.tokens.book.tokens
        scope = program_scope("main", "openai", token).scope
        memory = MemoryStore(memory_folder(owner.daemon.live.settings.gateway.data_dir, scope)).read()
        assert [each.text for each in memory.statements] == ["Likes tea."]


async def test_programs_leave_slots_for_people(tmp_path: Path) -> None:
    async with door(tmp_path, gateway={"data_dir": tmp_path / "data", "max_parallel_turns": 2}) as test:
        test.model.may_answer.clear()
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(test.ask(str(number)), name=str(number)) for number in range(8)]
            await test.model.is_asked.wait()
            people = Echo()
            people.install(test.daemon)
            chat = test.daemon.channels.by_identity["loopback", "default"]
            await chat.say("hello")  # type: ignore[attr-defined]  # It is the loopback channel.
            assert (await chat.hear_message()).text == "You said: hello"  # type: ignore[attr-defined]  # As above.
            assert len(test.model.prompts) == 1, "one slot is for programs"
            test.model.may_answer.set()
        assert [task.result() for task in asked] == [f"You said: {number}" for number in range(8)]


async def test_the_line_of_requests_has_a_limit(tmp_path: Path) -> None:
    gateway = {"data_dir": tmp_path / "data", "max_parallel_turns": 1, "max_queued": 2}
    async with door(tmp_path, gateway=gateway) as test:
        test.model.may_answer.clear()
        async with asyncio.TaskGroup() as tasks:
            for number in range(2):
                tasks.create_task(test.ask(str(number)), name=str(number))
            await until(lambda: len(test.daemon.stateless._running) == 2)  # noqa: SLF001 - nothing else shows them.
            with pytest.raises(openai.RateLimitError, match="waiting"):
                await test.ask("one too many")
            test.model.may_answer.set()


async def test_usage_is_charged_to_the_token(tmp_path: Path) -> None:
    async with door(tmp_path) as owner, owner.client() as test:
        await test.ask("hello")
        _, usage = await test.program.call("GET", "/api/usage")
        assert (usage["total"]["inputTokens"], usage["total"]["outputTokens"]) == (11, 7)


async def test_a_long_conversation_is_shortened_only_on_request(tmp_path: Path) -> None:
    numbers = [(number, role) for number in range(8) for role in ("user", "assistant")]
    history: Any = [{"role": role, "content": f"{number} " + "word " * 8_000} for number, role in numbers]
    async with door(tmp_path, http={"port": 0, "max_body_bytes": 4_000_000}) as test:
        create = test.openai.responses.create
        messages = [*history, {"role": "user", "content": "short"}]
        await create(model="main", input=messages, store=False)
        assert len(test.model.prompts[0].messages) == 17
        await create(model="main", input=messages, store=False, truncation="auto")
        assert 1 < len(test.model.prompts[1].messages) < 17
