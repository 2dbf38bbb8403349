"""Long conversations through the whole gateway: summed up beside the conversation, and nothing is lost by it."""

import asyncio
import json
from pathlib import Path

from channels.loopback import LoopbackChannel
from tests.agent.wire.dialect import Call
from tests.agent.wire.openai import OPENAI
from tests.agent.wire.server import Reply, serving
from tests.daemon.harness import ask, gateway, transcript_json, transcript_text, workspace
from tests.daemon.models import modelled, said, talking
from tests.polling import until

HELLO = OPENAI.answer("Hello.", tokens=(100, 10))
FULL = OPENAI.answer("Hello.", tokens=(5_000, 10))
SUMMARY = OPENAI.answer("Ada likes tea.", tokens=(300, 20))
TOO_LONG = OPENAI.refusal(400, "context_length_exceeded", "This model's maximum context length is 8000 tokens.")
BROKEN = OPENAI.refusal(400, "bad_request")
MUCH = " and much to say" * 100
TOLD = "[Summary of the earlier conversation]\n\nAda likes tea."


async def chatted(chat: LoopbackChannel, turns: int, more: str = "") -> None:
    for number in range(turns):
        await ask(chat, f"message {number}{more}")


async def test_compact_summarises_the_older_part_and_says_so(tmp_path: Path) -> None:
    async with talking(tmp_path, *[HELLO] * 5, SUMMARY, HELLO) as (server, chat, _):
        await chatted(chat, 5)
        answer = await ask(chat, "/compact")
        await ask(chat, "and now?")
        usage = await ask(chat, "/usage")
        given = json.loads(said(server, 5)[1])
        seen = said(server)
    assert answer == ("Summarised 6 messages; the last 4 stay as they are. The transcript keeps everything.")
    assert [each["text"] for each in given["messages"]] == [
        text for number in range(3) for text in (f"message {number}", "Hello.")
    ]
    assert seen[1:] == [TOLD, "message 3", "Hello.", "message 4", "Hello.", "and now?"]
    entries = transcript_json(tmp_path)
    (summary,) = [entry for entry in entries if entry["type"] == "summary"]
    last = next(entry for entry in entries if entry["seq"] == summary["covers"])
    assert last["type"] == "turn_end"
    assert summary["usage"]["input_tokens"] == 300
    assert next(entry["content"] for entry in entries if entry["type"] == "user") == "message 0"
    assert "You, today (UTC): 900 tokens read, 80 written" in usage


async def test_a_second_summary_includes_the_first(tmp_path: Path) -> None:
    again = OPENAI.answer("Ada likes tea and cake.", tokens=(300, 20))
    async with talking(tmp_path, *[HELLO] * 4, SUMMARY, *[HELLO] * 3, again, HELLO) as (server, chat, _):
        await chatted(chat, 4)
        await ask(chat, "/compact")
        await chatted(chat, 3)
        await ask(chat, "/compact")
        await ask(chat, "and now?")
        assert json.loads(said(server, 8)[1])["earlier_summary"] == "Ada likes tea."
        assert said(server)[1].endswith("Ada likes tea and cake.")


async def test_with_nothing_to_summarise_the_model_is_not_called(tmp_path: Path) -> None:
    async with talking(tmp_path, HELLO) as (server, chat, _):
        await ask(chat, "hello")
        assert await ask(chat, "/compact") == "There is nothing to summarise yet."
        assert len(server.requests) == 1


async def test_a_summary_that_fails_changes_nothing(tmp_path: Path) -> None:
    async with talking(tmp_path, *[HELLO] * 4, BROKEN, HELLO) as (server, chat, _):
        await chatted(chat, 4)
        assert "couldn't summarise this session, and nothing has changed" in await ask(chat, "/compact")
        await ask(chat, "and now?")
        assert len(said(server)) == 1 + 8 + 1
    assert not [entry for entry in transcript_json(tmp_path) if entry["type"] == "summary"]


async def test_a_long_conversation_is_summarised_in_the_background(tmp_path: Path) -> None:
    gate = asyncio.Event()
    script: list[Reply] = [*[HELLO] * 9, FULL, [gate, *SUMMARY], HELLO]
    async with talking(tmp_path, *script) as (server, chat, _):
        await chatted(chat, 10)
        await server.asked(11)
        assert await ask(chat, "meanwhile") == "Hello."
        assert "message 0" in said(server)
        gate.set()
        await written(tmp_path, "summary")
        await ask(chat, "afterwards")
        seen = said(server)
    assert seen[1] == TOLD
    assert "message 0" not in seen
    assert seen[-3:] == ["meanwhile", "Hello.", "afterwards"]


async def test_a_full_message_window_is_summarised_before_messages_leave_it(tmp_path: Path) -> None:
    script = [*[HELLO] * 10, SUMMARY, HELLO]
    async with talking(tmp_path, *script, session={"max_messages": 20}) as (server, chat, _):
        await chatted(chat, 10)
        await written(tmp_path, "summary")
        await ask(chat, "and now?")
        assert said(server)[1] == TOLD


async def test_after_an_overflow_the_session_is_summarised_and_the_request_repeated(tmp_path: Path) -> None:
    async with talking(tmp_path, *[HELLO] * 6, TOO_LONG, SUMMARY, HELLO) as (server, chat, _):
        await chatted(chat, 6, MUCH)
        assert await ask(chat, "too much") == "Hello."
        assert said(server)[1] == TOLD
        assert said(server)[-1] == "too much"
        assert len(server.requests) == 9


async def test_if_the_summary_fails_after_an_overflow_the_oldest_messages_are_left_out(tmp_path: Path) -> None:
    async with talking(tmp_path, *[HELLO] * 4, TOO_LONG, BROKEN, HELLO) as (server, chat, _):
        await chatted(chat, 4, MUCH)
        assert await ask(chat, "too much") == "Hello."
        seen = said(server)
    assert seen[-1] == "too much"
    assert 1 < len(seen) < 1 + 8 + 1
    assert not seen[1].startswith("message 0")
    assert not [entry for entry in transcript_json(tmp_path) if entry["type"] == "summary"]


async def test_a_message_that_never_fits_ends_in_a_readable_error(tmp_path: Path) -> None:
    async with talking(tmp_path, TOO_LONG) as (server, chat, _):
        answer = await ask(chat, "too much")
        assert len(server.requests) == 2
    assert "too long" in answer.lower()
    assert "Traceback" not in answer


async def test_old_tool_results_are_shortened_before_the_request_gets_too_long(tmp_path: Path) -> None:
    for number in range(3):
        (workspace(tmp_path) / f"{number}.txt").write_text("so many words " * 700)
    look = [Call("read_file", [f'{{"path": "{number}.txt"}}'], id=f"call_{number}") for number in range(3)]
    agents = {"main": {"provider": "house", "model": "small", "tools": ["read_file"]}}
    script = [OPENAI.answer(calls=[each], tokens=(300 + 2_400 * at, 5)) for at, each in enumerate(look)]
    async with talking(tmp_path, *script, HELLO, agents=agents) as (server, chat, _):
        assert await ask(chat, "read it") == "Hello."
        results = [each for each in server.requests[-1].body["messages"] if each["role"] == "tool"]
    assert "left out to save room" in results[0]["content"]
    assert "left out to save room" not in results[-1]["content"]
    full = [entry for entry in transcript_json(tmp_path) if entry["type"] == "tool_result"]
    assert all("left out to save room" not in entry["output"] for entry in full)


async def test_stop_cancels_a_compaction_and_shutdown_does_not_wait_for_it(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with serving(OPENAI, *[HELLO] * 10, [gate, *SUMMARY]) as server:
        configured = modelled(tmp_path, server)
        async with gateway(configured) as (_, chat):
            await chatted(chat, 10)
            await chat.say("/compact")
            await server.asked(11)
            await chat.say("/stop")
            heard = {(await chat.hear_message()).text for _ in range(2)}
            assert heard == {"Stopped.", "Stopped. Nothing has changed."}
            server.script = [FULL, [gate, *SUMMARY]]
            await ask(chat, "more")
            await server.asked(13)
        gate.set()
    assert not [entry for entry in transcript_json(tmp_path) if entry["type"] == "summary"]


async def test_a_failed_compaction_is_not_retried_with_every_turn(tmp_path: Path) -> None:
    async with talking(tmp_path, *[HELLO] * 9, FULL, BROKEN, FULL) as (server, chat, _):
        await chatted(chat, 10)
        await server.asked(11)
        await server.idle.wait()
        await ask(chat, "one more")
        await ask(chat, "and another")
        assert len(server.requests) == 13


async def written(folder: Path, kind: str) -> None:
    """Wait until the transcript has an entry of this kind."""
    await until(lambda: f'"type":"{kind}"' in transcript_text(folder))
