"""Titles that a model writes after the first answer: charged, bounded, and never in the way of a person."""

import asyncio
from pathlib import Path

import pytest

from gateway.daemon import Daemon
from gateway.turns.titles import MAX_TURNS, clean_title
from tests.agent.wire import OPENAI, Reply
from tests.daemon.harness import SCOPE, ask, transcript_json
from tests.daemon.models import said, talking
from tests.polling import until

HELLO = OPENAI.answer("Hello.", tokens=(100, 10))
TITLE = OPENAI.answer("“Trip to Lisbon.”\nIt is about a trip.", tokens=(40, 5))
BROKEN = OPENAI.refusal(400, "bad_request")
BY_MODEL = {"session": {"title_model": "house/other"}}
SOMEBODY = SCOPE.replace("ada", "somebody")


def titles(daemon: Daemon) -> list[str]:
    return [session.title for session in daemon.sessions.list(SOMEBODY)]


async def no_title_is_written() -> bool:
    return not any(task.get_name().startswith("title:") for task in asyncio.all_tasks())


async def titled(daemon: Daemon, title: str) -> None:
    async def is_titled() -> bool:
        return titles(daemon) == [title]

    await until(is_titled)


async def test_a_model_writes_the_title_after_the_first_answer_and_only_then(tmp_path: Path) -> None:
    async with talking(tmp_path, HELLO, TITLE, HELLO, **BY_MODEL) as (server, chat, daemon):
        await ask(chat, "I want to go to Lisbon")
        await titled(daemon, "Trip to Lisbon")
        assert server.requests[1].body["model"] == "other"
        assert said(server, 1)[1] == "Person: I want to go to Lisbon\n\nAssistant: Hello."
        await ask(chat, "When?")
        usage = await ask(chat, "/usage")
        assert len(server.requests) == 3
        assert said(server)[1:] == ["I want to go to Lisbon", "Hello.", "When?"]
    assert "You, today (UTC): 240 tokens read, 25 written" in usage
    (entry,) = [each for each in transcript_json(tmp_path) if each["type"] == "title"]
    assert (entry["model"], entry["usage"]["input_tokens"]) == ("house/other", 40)


async def test_no_answer_waits_for_a_title(tmp_path: Path) -> None:
    gate = asyncio.Event()
    script: list[Reply] = [HELLO, [gate, *TITLE], HELLO]
    async with talking(tmp_path, *script, **BY_MODEL) as (server, chat, daemon):
        await ask(chat, "one")
        await server.asked(2)
        assert await ask(chat, "two") == "Hello."
        gate.set()
        await titled(daemon, "Trip to Lisbon")


async def test_a_title_that_a_person_gives_meanwhile_wins(tmp_path: Path) -> None:
    gate = asyncio.Event()
    script: list[Reply] = [HELLO, [gate, *TITLE], HELLO]
    async with talking(tmp_path, *script, **BY_MODEL) as (server, chat, daemon):
        await ask(chat, "one")
        await server.asked(2)
        await ask(chat, "/session rename Mine")
        gate.set()
        await until(no_title_is_written)
        assert titles(daemon) == ["Mine"]
        usage = await ask(chat, "/usage")
        await ask(chat, "two")
        assert len(server.requests) == 3
    assert "140 tokens read" in usage


async def test_a_failure_changes_nothing_and_is_tried_again_after_the_next_answers(tmp_path: Path) -> None:
    async with talking(tmp_path, HELLO, BROKEN, HELLO, TITLE, HELLO, **BY_MODEL) as (server, chat, daemon):
        await ask(chat, "one")
        await server.asked(2)
        await until(no_title_is_written)
        assert titles(daemon) == ["one"]
        await ask(chat, "two")
        await titled(daemon, "Trip to Lisbon")


async def test_a_session_with_a_title_costs_nothing(tmp_path: Path) -> None:
    async with talking(tmp_path, HELLO, **BY_MODEL) as (server, chat, daemon):
        await ask(chat, "/new Mine")
        await ask(chat, "one")
        assert titles(daemon) == ["Mine"]
        assert len(server.requests) == 1


async def test_without_the_setting_no_model_is_asked(tmp_path: Path) -> None:
    async with talking(tmp_path, *[HELLO] * (MAX_TURNS + 1)) as (server, chat, daemon):
        for number in range(MAX_TURNS + 1):
            await ask(chat, f"message {number}")
        assert titles(daemon) == ["message 0"]
        assert len(server.requests) == MAX_TURNS + 1


@pytest.mark.parametrize(
    ("written", "title"),
    [
        ('"Trip to Lisbon"', "Trip to Lisbon"),
        ("\n\n# **Brot backen**\n", "Brot backen"),
        ("What is 2.5?", "What is 2.5?"),
        ("", ""),
        ('"""\n***', ""),
    ],
)
def test_the_title_is_the_first_line_without_marks(written: str, title: str) -> None:
    assert clean_title(written) == title


def test_a_long_title_is_cut() -> None:
    assert len(clean_title("word " * 100)) <= 60
