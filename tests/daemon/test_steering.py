"""Busy mode `steer`: a message during a turn is passed to that turn, between two of its steps."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

from config import DmScope, SessionSettings, Settings
from gateway.agent.protocol import Chunk, Prompt, TextDelta
from gateway.contract import OutboundKind
from gateway.conversation import UserMessage
from gateway.sessions import TurnOutcome
from gateway.sessions.entries import Assistant, Entry, ToolResult, ToolUse, TurnEnd, User
from tests.agent.scripted import ScriptedProvider
from tests.daemon.harness import gateway, settings, transcript_entries
from tests.daemon.tools import Gate, agent, call


def steered(folder: Path, mode: str = "steer") -> Settings:
    channels = {"web": {"enabled": False}, "terminal": {"enabled": False}, "loopback": {"busy": mode}}
    return settings(folder, channels=channels)


def spoken(entries: Sequence[Entry]) -> list[tuple[type[Entry], str]]:
    kinds = (User, Assistant, ToolUse, ToolResult, TurnEnd)
    return [(type(entry), getattr(entry, "content", "")) for entry in entries if isinstance(entry, kinds)]


async def test_a_message_during_a_step_is_passed_to_the_next_step(tmp_path: Path) -> None:
    provider, gate = ScriptedProvider([call(1)], [TextDelta(text="Both.")]), Gate()
    async with gateway(steered(tmp_path), agent(provider, gate)) as (_, chat):
        await chat.say("one", event_id="e1")
        await gate.entered.wait()
        await chat.say("two", event_id="e2")
        await chat.say("/undo")
        await chat.say("three", event_id="e3")
        gate.leave.set()
        assert (await chat.hear_message()).text == "Both."
        assert (await chat.hear_message()).kind is OutboundKind.NOTICE
        assert (await chat.hear_message()).text == "Both."
    heard = [message.text for message in provider.prompts[1].messages if isinstance(message, UserMessage)]
    assert heard == ["one", "two"]
    entries = transcript_entries(tmp_path)
    assert spoken(entries)[:6] == [
        (User, "one"),
        (Assistant, ""),
        (ToolUse, ""),
        (ToolResult, ""),
        (User, "two"),
        (Assistant, "Both."),
    ]
    turns = [entry.turn for entry in entries if isinstance(entry, User)]
    assert turns[0] == turns[1] != turns[2]


async def test_a_message_after_the_start_of_the_last_step_gets_its_own_turn(tmp_path: Path) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    class Slow(ScriptedProvider):
        async def stream(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
            begun.set()
            await go_on.wait()
            async for chunk in super().stream(prompt):
                yield chunk

    provider = Slow([TextDelta(text="First.")], [TextDelta(text="Second.")])
    async with gateway(steered(tmp_path), agent(provider, Gate())) as (_, chat):
        await chat.say("one")
        await begun.wait()
        await chat.say("two")
        go_on.set()
        assert [(await chat.hear_message()).text for _ in range(2)] == ["First.", "Second."]


async def test_a_stop_also_ends_steered_messages(tmp_path: Path) -> None:
    provider, gate = ScriptedProvider([call(1)], [call(2)], [TextDelta(text="Never.")]), Gate()
    async with gateway(steered(tmp_path), agent(provider, gate)) as (_, chat):
        await chat.say("one")
        await gate.entered.wait()
        await chat.say("two")
        gate.entered.clear()
        gate.leave.set()
        gate.leave = asyncio.Event()
        await gate.entered.wait()
        await chat.say("/stop")
        assert (await chat.hear_message()).text == "Stopped."
    ends = [entry for entry in transcript_entries(tmp_path) if isinstance(entry, TurnEnd)]
    assert [end.outcome for end in ends] == [TurnOutcome.STOPPED]


async def test_every_chat_with_a_steered_message_is_answered(tmp_path: Path) -> None:
    """One conversation over several chats: a person who steers it from another chat must get an answer too."""
    provider, gate = ScriptedProvider([call(1)], [TextDelta(text="Both of you are.")]), Gate()
    configured = steered(tmp_path).model_copy(update={"session": SessionSettings(dm_scope=DmScope.MAIN)})
    async with gateway(configured, agent(provider, gate)) as (_, chat):
        await chat.say("who is right?", peer="ada", event_id="1")
        await gate.entered.wait()
        await chat.say("I am", peer="bob", event_id="2")
        gate.leave.set()
        heard = [await chat.hear_message() for _ in range(2)]
    assert {message.address.peer: message.text for message in heard} == dict.fromkeys(
        ("ada", "bob"), "Both of you are."
    )
