"""Conversations through the whole gateway, with models behind real wire formats."""

import asyncio
import io
import logging
from pathlib import Path

import pytest

from config import LogFormat, LogLevel
from gateway.observability.logging import configure, secrets_in
from tests.agent.wire import ANTHROPIC, CUT, OPENAI, Call, Dialect, Reply, serving
from tests.agent.wire.server import KEY
from tests.daemon.harness import gateway, hear_draft, say_and_hear, settings, transcript_text
from tests.daemon.models import configured
from tests.observability.scrape import scrape

both = pytest.mark.parametrize("api", [OPENAI, ANTHROPIC], ids=lambda api: api.kind)


@both
async def test_a_question_is_answered_with_the_help_of_a_tool(tmp_path: Path, api: Dialect) -> None:
    script: list[Reply] = [
        api.answer("Let me see.", calls=[Call("list_files", ["{", "}"])]),
        api.answer("It is ", "empty."),
    ]
    async with serving(api, *script) as server, gateway(configured(tmp_path, server)) as (_, chat):
        reply = await say_and_hear(chat, "what is in the workspace?")
        again = await say_and_hear(chat, "really?")
    assert reply.text == "Let me see.\n\nIt is empty."
    assert again.text == "It is empty."
    assert not reply.is_failure
    first, second, third = (request.body["messages"] for request in server.requests)
    assert len(first) < len(second) < len(third)
    assert '"cached_tokens"' not in transcript_text(tmp_path)
    assert '"input_tokens":11' in transcript_text(tmp_path)


@both
async def test_tool_arguments_that_stay_invalid_end_in_a_visible_reason(tmp_path: Path, api: Dialect) -> None:
    broken = api.answer(calls=[Call("read_file", ['{"path": "no'], id="0")])
    async with serving(api, broken) as server, gateway(configured(tmp_path, server)) as (_, chat):
        reply = await say_and_hear(chat, "read it")
    assert "going in circles" in reply.text
    assert len(server.requests) == 3
    assert "JSON" in str(server.requests[1].body["messages"][-1])


@both
async def test_a_stream_cut_off_inside_a_tool_call_runs_nothing_and_is_answered(tmp_path: Path, api: Dialect) -> None:
    call = Call("remember", ['{"text"', ': "x"}'])
    *begun, _, _, _ = api.answer("Noting. ", calls=[call])
    script: list[Reply] = [[*begun[:-1], CUT], api.answer("There was nothing to note.")]
    async with serving(api, *script) as server, gateway(configured(tmp_path, server, patience=20.0)) as (_, chat):
        reply = await say_and_hear(chat, "note it")
    assert reply.text == "Noting. There was nothing to note."
    assert "tool_use" not in transcript_text(tmp_path)


@both
async def test_a_model_that_is_down_is_reported_once_and_the_chat_continues(tmp_path: Path, api: Dialect) -> None:
    script: list[Reply] = [api.refusal(529, "overloaded_error"), api.answer("Back again.")]
    async with serving(api, *script) as server, gateway(configured(tmp_path, server)) as (_, chat):
        failed = await say_and_hear(chat, "hello")
        reply = await say_and_hear(chat, "hello again")
    assert failed.is_failure
    assert "overloaded" in failed.text
    assert reply.text == "Back again."


async def test_the_transcript_and_the_metrics_name_the_model_that_answered(tmp_path: Path) -> None:
    async with (
        serving(OPENAI, OPENAI.refusal(404, "model_not_found")) as gone,
        serving(ANTHROPIC, ANTHROPIC.answer("Here I am.")) as there,
    ):
        agents = {"main": {"provider": "first", "model": "m", "fallbacks": ["second/claude"]}}
        providers = {"first": gone.table(), "second": there.table()}
        async with gateway(settings(tmp_path, providers=providers, agents=agents)) as (daemon, chat):
            assert (await say_and_hear(chat, "hello")).text == "Here I am."
            seen = await scrape(tmp_path / "data")
            health = daemon.status.health()
    assert '"second/claude"' in transcript_text(tmp_path)
    assert seen.value("gatehouse_model_requests_total", model="second/claude", outcome="answered") == 1
    assert (seen.value("gatehouse_ready"), seen.value("gatehouse_degraded")) == (1, 1)
    assert health.warnings == ("The model first/m failed recently, so its fallback is used.",)


async def test_a_stop_in_the_middle_of_a_stream_closes_it(tmp_path: Path) -> None:
    never = asyncio.Event()
    script: list[Reply] = [[*OPENAI.answer("Once upon")[:2], never], OPENAI.answer("Yes?")]
    async with serving(OPENAI, *script) as server, gateway(configured(tmp_path, server)) as (_, chat):
        await chat.say("tell me a story")
        await hear_draft(chat)
        await chat.say("/stop")
        assert {(await chat.hear_message()).text.split()[0] for _ in range(2)} >= {"Once"}
        await server.idle.wait()
        assert (await say_and_hear(chat, "hello")).text == "Yes?"
        never.set()


async def test_a_reload_replaces_a_model_while_it_answers(tmp_path: Path) -> None:
    gate = asyncio.Event()
    begun = OPENAI.answer("The old ", "model.")
    async with (
        serving(OPENAI, [*begun[:2], gate, *begun[2:]]) as old,
        serving(ANTHROPIC, ANTHROPIC.answer("The new model.")) as new,
        gateway(configured(tmp_path, old)) as (daemon, chat),
    ):
        await chat.say("who are you?")
        await hear_draft(chat)
        await daemon.reload(configured(tmp_path, new))
        gate.set()
        assert (await chat.hear_message()).text == "The old model."
        assert (await say_and_hear(chat, "and now?")).text == "The new model."


@both
async def test_the_key_reaches_neither_log_nor_chat_nor_files(tmp_path: Path, api: Dialect) -> None:
    everything_logged = io.StringIO()
    script: list[Reply] = [
        api.refusal(401, "invalid_api_key", f"Incorrect API key provided: {KEY}"),
        api.refusal(400, "x", f"What is {KEY}?"),
        api.refusal(429, "rate_limit", retry_after="86400"),
        [CUT],
        [b"data: {garbage\n\n"],
        api.answer("At last."),
    ]
    async with serving(api, *script) as server:
        told = configured(tmp_path, server)
        configure(LogLevel.DEBUG, LogFormat.JSON, secrets_in(told), everything_logged)
        logging.getLogger().setLevel(logging.DEBUG)  # More than the daemon would let libraries say.
        async with gateway(told) as (_, chat):
            heard = [(await say_and_hear(chat, "hello")).text for _ in script]
    assert KEY in str(server.requests[0].headers)
    assert heard[-1] == "At last."
    assert "invalid_api_key" in everything_logged.getvalue()
    assert KEY not in everything_logged.getvalue() + "".join(heard) + transcript_text(tmp_path)
    assert "Traceback" not in "".join(heard)
