"""Usage and cost of models: recorded with each turn, shown to people, and limited."""

import asyncio
from pathlib import Path

from msgspec.structs import replace

from gateway.contract import Sender
from tests.agent.wire.dialect import Call
from tests.agent.wire.openai import OPENAI
from tests.agent.wire.server import Reply, serving
from tests.daemon.harness import ask, gateway, hear_draft, transcript_json
from tests.daemon.models import ADA, modelled, talking

ANSWER = OPENAI.answer("Hello.", tokens=(1_000, 200))
BOB = Sender(id="bob", name="Bob")


async def test_usage_and_cost_are_in_the_transcript_and_shown(tmp_path: Path) -> None:
    async with talking(tmp_path, ANSWER) as (_, chat, _daemon):
        await ask(chat, "hello")
        await ask(chat, "hello again")
        status = await ask(chat, "/status")
        usage = await ask(chat, "/usage")
    (first, _second) = [entry["usage"] for entry in transcript_json(tmp_path) if entry["type"] == "assistant"]
    assert first == {"input_tokens": 1_000, "output_tokens": 200, "cost_micros": 3_000}
    assert "Agent: main. Model: house/small." in status
    assert "of 5,700 tokens" in status
    assert "This session: 2,000 tokens read, 400 written, cost 0.0060." in status
    assert usage.startswith("You, today (UTC): 2,000 tokens read, 400 written, cost 0.0060; 9,997,600 of 10,000,000")
    assert "This session: 2,000 tokens read" in usage


async def test_an_owner_sees_the_highest_usage_and_a_user_only_their_own(tmp_path: Path) -> None:
    async with talking(tmp_path, ANSWER) as (_, chat, _daemon):
        await ask(chat, "hello", sender=ADA)
        await ask(chat, "hello", sender=BOB)
        await ask(chat, "hello", sender=BOB)
        mine = await ask(chat, "/usage", sender=ADA)
        all_of_it = await ask(chat, "/usage")
    assert "You, today (UTC): 1,000 tokens read" in mine
    assert "bob" not in mine
    assert "Everyone, today: 3,000 tokens read, 600 written" in all_of_it
    assert all_of_it.index("loopback:bob: 2,000") < all_of_it.index("loopback:ada: 1,000")


async def test_a_person_who_reached_the_daily_limit_is_told_also_after_a_restart(tmp_path: Path) -> None:
    limits = {"tokens_per_user_per_day": 2_000}
    async with serving(OPENAI, ANSWER) as server:
        configured = modelled(tmp_path, server, limits=limits)
        async with gateway(configured) as (_, chat):
            assert await ask(chat, "one", sender=ADA) == "Hello."
            assert await ask(chat, "two", sender=ADA) == "Hello."
        async with gateway(configured) as (_, chat):
            refusal = await ask(chat, "three", sender=ADA)
            assert await ask(chat, "one", sender=BOB) == "Hello."
        assert len(server.requests) == 3
    assert "reached today's limit (2,400 of 2,000 tokens)" in refusal
    assert "limits.tokens_per_user_per_day" in refusal


async def test_linked_ids_share_one_daily_limit(tmp_path: Path) -> None:
    links = {"identity_links": {"ada": ["loopback:ada", "loopback:lovelace"]}}
    async with talking(tmp_path, ANSWER, session=links, limits={"tokens_per_user_per_day": 100}) as (_, chat, _daemon):
        assert await ask(chat, "hello", sender=ADA) == "Hello."
        assert "reached today's limit (1,200 of" in await ask(chat, "hello", sender=replace(ADA, id="lovelace"))


async def test_an_answer_above_the_limit_is_ended_with_a_sentence(tmp_path: Path) -> None:
    step = OPENAI.answer(calls=[Call("current_time", ["{}"])], tokens=(1_000, 10))
    tables = {"agents": {"main": {"provider": "house", "model": "small", "tools": ["current_time"]}}}
    async with talking(tmp_path, step, limits={"tokens_per_turn": 1_500}, **tables) as (server, chat, _daemon):
        assert "this answer has used 2,020 of 1,500 tokens" in await ask(chat, "hello")
        assert len(server.requests) == 2


async def test_a_stopped_answer_still_counts_as_usage(tmp_path: Path) -> None:
    gate = asyncio.Event()
    half: Reply = [*OPENAI.answer("Once upon a time")[:2], gate]
    async with talking(tmp_path, half) as (_, chat, _daemon):
        await chat.say("tell me a story")
        await hear_draft(chat)
        await chat.say("/stop")
        heard = [(await chat.hear_message()).text for _ in range(2)]
        assert any("Stopped" in text for text in heard)
        usage = await ask(chat, "/usage")
        gate.set()
    assert " 0 tokens read" not in usage
    assert "tokens read" in usage
