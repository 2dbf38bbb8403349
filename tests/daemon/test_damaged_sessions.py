"""Closed and damaged sessions: the next message is answered in a new session, and the reply says so."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.adapters.services import SessionBrowser
from gateway.contract import OutboundKind
from gateway.turns.approvals import Approvals
from tests.daemon.harness import (
    ADA,
    OWNER,
    Parrot,
    Slow,
    accepted,
    ask,
    begin_a_session,
    gateway,
    leave,
    say_and_hear,
    settings,
)


def overwrite(path: Path) -> None:
    path.write_bytes(os.urandom(path.stat().st_size))


def shorten(path: Path) -> None:
    path.write_bytes(os.urandom(path.stat().st_size // 2))


def link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES = [overwrite, link, replace_by_folder]


def transcript(folder: Path) -> Path:
    (path,) = (folder / "data/sessions/transcripts").glob("*.jsonl")
    return path


async def test_a_message_to_a_closed_session_is_answered_in_a_new_one(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path), Parrot.answering) as (_, chat):
        await ask(chat, "one")
        await ask(chat, "/session close")
        reply = await say_and_hear(chat, "two")
        listing = await ask(chat, "/session list")
        history = await ask(chat, "/history")
        again = await ask(chat, "three")
    notice = "Session 1 is closed, so this is session 2. /session resume 1 opens it again."
    assert (reply.text, reply.session) == (f"*{notice}*\n\nheard: two", 2)
    assert "▸ 2  two · open · 2 messages · " in listing
    assert "  1  one · closed · 2 messages · " in listing
    assert history == f"Gateway: {notice}\n\nYou: two\n\nAgent: heard: two"
    assert again == "heard: three"


async def test_a_message_is_answered_in_a_new_session_if_the_transcript_is_missing_at_the_start(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path), Parrot.answering) as (daemon, chat):
        await ask(chat, "an older session")
        await daemon.sessions.flush()
        before = transcript(tmp_path)
        await ask(chat, "/new")
        await ask(chat, "one")
    (path,) = {*before.parent.glob("*.jsonl")} - {before}
    path.unlink()
    with capture_logs() as logs:
        async with gateway(settings(tmp_path), Parrot.answering) as (_, chat):
            reply = await say_and_hear(chat, "two")
    assert reply.text == "*Session 2 can't be read any more, so this is session 3.*\n\nheard: two"
    assert [line["session"] for line in logs if line["event"] == "transcript_missing"] == [
        "agent:main:loopback:direct:somebody#2"
    ]


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_message_to_a_damaged_session_is_answered_in_a_new_one(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    await begin_a_session(tmp_path)
    path = transcript(tmp_path)
    damage(path)
    async with gateway(settings(tmp_path), Parrot.answering) as (daemon, chat):
        replies = [await say_and_hear(chat, text, sender=OWNER) for text in ("hello?", "and now?")]
    assert replies[0].kind is OutboundKind.REPLY
    assert not replies[0].is_failure
    assert replies[0].text == "*Session 1 can't be read any more, so this is session 2.*\n\nheard: hello?"
    assert replies[1].text == "heard: and now?"
    kept = [file for file in path.parent.iterdir() if ".jsonl.corrupted" in file.name or file.is_symlink()]
    assert kept
    assert daemon.sessions.trouble is None


@pytest.mark.parametrize("damage", [Path.unlink, shorten, link, replace_by_folder])
async def test_a_session_damaged_while_the_daemon_runs_goes_on(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    async with gateway(settings(tmp_path), Parrot.answering) as (daemon, chat):
        await ask(chat, "one")
        await daemon.sessions.flush()
        damage(transcript(tmp_path))
        assert await ask(chat, "two") == "heard: two"
        await daemon.sessions.flush()
    async with gateway(settings(tmp_path), Parrot.answering) as (_, chat):
        assert await ask(chat, "/history") == "You: one\n\nAgent: heard: one\n\nYou: two\n\nAgent: heard: two"


@pytest.mark.parametrize("damage", DAMAGES)
async def test_the_history_of_a_damaged_session_is_a_sentence_each_time(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    await begin_a_session(tmp_path)
    damage(transcript(tmp_path))
    async with gateway(settings(tmp_path), Parrot.answering) as (daemon, chat):
        approvals = Approvals(daemon.live, daemon.sessions)
        browser = SessionBrowser(daemon.live, daemon.sessions, approvals, daemon.spool)
        with capture_logs() as logs:
            shown = [await browser.history(ADA, OWNER, limit=9) for _ in range(3)]
        for lines in shown:
            (line,) = lines
            assert line.text.endswith("Your next message starts a new session.*")
        assert [entry["event"] for entry in logs].count("session_damaged") <= 1
        assert (await say_and_hear(chat, "hello?", sender=OWNER)).text.endswith("heard: hello?")


async def test_a_waiting_message_of_a_damaged_session_is_answered_after_a_restart(tmp_path: Path) -> None:
    await begin_a_session(tmp_path)
    await leave(tmp_path, accepted("t1", "still waiting"), accepted("t2", "me too"))
    overwrite(transcript(tmp_path))
    async with gateway(settings(tmp_path), Parrot.answering) as (_, chat):
        first, second = [await chat.hear_message() for _ in range(2)]
    assert first.text == "*Session 1 can't be read any more, so this is session 2.*\n\nheard: still waiting"
    assert second.text == "heard: me too"


async def test_a_command_about_a_damaged_session_says_so(tmp_path: Path) -> None:
    await begin_a_session(tmp_path)
    overwrite(transcript(tmp_path))
    async with gateway(settings(tmp_path)) as (_, chat):
        answer = await say_and_hear(chat, "/undo", sender=OWNER)
        listing = await say_and_hear(chat, "/session list", sender=OWNER)
    sentence = "The transcript of session 1 is damaged and was set aside. Your next message starts a new session."
    assert answer.text == sentence
    assert "▸ 1  hello · damaged · 2 messages" in listing.text


async def test_the_reason_for_a_new_session_is_in_its_history_once_its_first_reply_has_shown_it(tmp_path: Path) -> None:
    slow = Slow()
    async with gateway(settings(tmp_path), Parrot.answering) as (daemon, chat):
        await say_and_hear(chat, "one", sender=OWNER)
        await say_and_hear(chat, "/session close", sender=OWNER)
        daemon.agents.replace("main", lambda agent: replace(agent, provider=slow))
        browser = SessionBrowser(daemon.live, daemon.sessions, daemon.approvals, daemon.spool)
        await chat.say("two", peer="ada", sender=OWNER)
        await slow.is_asked.wait()
        during = [line.text for line in await browser.history(ADA, OWNER, limit=9)]
        slow.may_answer.set()
        await chat.hear_message()
        after = [line.text for line in await browser.history(ADA, OWNER, limit=9)]
    assert during == ["two"]
    assert after[0].startswith("*Session 1 is closed")
    assert after[1:] == ["two", "Done."]
