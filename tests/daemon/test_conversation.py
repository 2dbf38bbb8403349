"""Conversations through the whole gateway, over the loopback channel."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from channels.loopback import Heard
from gateway.agent.protocol import Chunk, Prompt, TextDelta
from gateway.contract import Address, Inbound, OutboundKind, PeerKind, Sender, Verdict
from gateway.errors import NotAccepted
from gateway.spool import Spool
from tests.daemon.harness import delivered, gateway, hear_draft, settings


async def test_a_message_is_answered_in_the_chat_it_came_from(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        assert await chat.say("hello", peer="ada") is Verdict.ACCEPTED
        reply = await chat.hear_message()
    assert reply.kind is OutboundKind.REPLY
    assert reply.address.peer == "ada"
    assert reply.session == 1
    assert "offline" in reply.text.lower()


async def test_a_message_that_hits_a_bug_is_refused_and_delays_no_other(tmp_path: Path) -> None:
    """Here it is a channel's bug: times are told with their zone."""
    here = Address(channel="loopback", kind=PeerKind.DIRECT, peer="ada")
    strange = Inbound(
        address=here,
        sender=Sender(id="ada", is_owner=True),
        event_id="1",
        text="hello",
        sent_at=datetime(2026, 3, 1),  # noqa: DTZ001 - that is the bug.
    )
    async with gateway(settings(tmp_path)) as (_, chat):
        assert await chat.submit(strange) is Verdict.REFUSED
        assert "internal error" in (await chat.hear_message()).text
        assert await chat.say("hello", peer="ada") is Verdict.ACCEPTED


class Witness:
    """A model that notes how many transactions there were when it was asked."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self.seen: list[int] = []

    async def stream(self, _prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        self.seen.append(self._spool.transactions)
        yield TextDelta(text="Yes.")


async def test_a_message_that_need_not_wait_is_accepted_and_started_in_one_commit(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (daemon, chat):
        spool = daemon.spool
        model = Witness(spool)
        daemon.agents.replace("main", lambda agent: replace(agent, provider=model))
        await chat.say("this one starts the session")
        await chat.hear_message()
        await delivered(daemon)
        before = spool.transactions
        await chat.say("hello")
        await chat.hear_message()
        assert model.seen[-1] - before == 1


async def test_a_message_is_answered_even_if_its_delivery_was_cancelled(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        for text in ("a new session", "an open one"):
            saying = asyncio.create_task(chat.say(text))
            await asyncio.sleep(0)
            saying.cancel()
            assert (await chat.hear_message()).kind is OutboundKind.REPLY


async def test_the_answer_is_streamed_before_it_is_complete(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        await chat.say("hello")
        heard: list[Heard] = []
        while not heard or heard[-1].how != "send":
            heard.append(await chat.hear())
    drafts = [each.message.text for each in heard if each.how == "draft" and each.message]
    final = heard[-1].message
    assert final is not None
    assert len(drafts) > 2
    assert all(final.text.startswith(draft.rstrip()) for draft in drafts)
    assert {each.key for each in heard if each.how in {"draft", "send"}} == {heard[-1].key}


async def test_history_is_kept_and_new_starts_without_it(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        await chat.say("my name is Ada")
        await chat.hear_message()
        await chat.say("what is my name?")
        assert "Ada" in (await chat.hear_message()).text
        await chat.say("/new Trip to Lisbon")
        assert "session 2: Trip to Lisbon" in (await chat.hear_message()).text
        await chat.say("what is my name?")
        assert "Ada" not in (await chat.hear_message()).text
        await chat.say("/session resume 1")
        assert "Back in session 1" in (await chat.hear_message()).text
        await chat.say("what is my name?")
        assert "Ada" in (await chat.hear_message()).text


async def test_the_session_list_shows_number_title_and_age(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        await chat.say("Fix the router")
        await chat.hear_message()
        await chat.say("/new")
        await chat.hear_message()
        await chat.say("/session list")
        listing = await chat.hear_message()
    assert listing.text.splitlines() == [
        "Sessions (newest first)",
        "▸ 2  (empty) · open",
        "  1  Fix the router · open · 2 messages · just now",
        "/session resume <number> goes back to one",
    ]
    assert [button.command for button in listing.buttons] == ["/session resume 2", "/session resume 1"]


async def test_two_people_never_see_each_others_sessions(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        await chat.say("my name is Ada", peer="ada")
        await chat.hear_message()
        await chat.say("what is my name?", peer="bob")
        assert "Ada" not in (await chat.hear_message()).text
        await chat.say("/session resume 2", peer="bob")
        assert "no session 2" in (await chat.hear_message()).text


async def test_a_conversation_continues_after_a_restart(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        await chat.say("my name is Ada")
        await chat.hear_message()
    async with gateway(settings(tmp_path)) as (_, chat):
        await chat.say("what is my name?")
        assert "Ada" in (await chat.hear_message()).text


async def test_a_repeated_event_gets_one_answer(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        assert await chat.say("hello", event_id="e1") is Verdict.ACCEPTED
        assert await chat.say("hello", event_id="e1") is Verdict.DUPLICATE
        await chat.hear_message()
        await chat.say("/history")
        assert (await chat.hear_message()).text.count("You: hello") == 1


async def test_a_tool_is_used_and_its_result_is_in_the_transcript(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        await chat.say("remember that the key is under the mat")
        await chat.hear_message()
        await chat.say("what do you remember?")
        assert "under the mat" in (await chat.hear_message()).text
        await chat.say("what do you remember?", peer="bob")
        assert "under the mat" not in (await chat.hear_message()).text
    transcript = next((tmp_path / "data/sessions/transcripts").glob("*somebody*.jsonl")).read_text()
    assert '"type":"tool_use"' in transcript
    assert '"type":"tool_result"' in transcript


async def test_an_unknown_sender_is_told_only_how_to_get_access(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        stranger = Sender(id="666", name="Mallory")
        assert await chat.say("/session list", peer="666", sender=stranger) is Verdict.REFUSED
        notice = await chat.hear_message()
        assert "666" in notice.text
        assert await chat.say("hi all", peer="g", kind=PeerKind.GROUP, sender=stranger) is Verdict.IGNORED
    assert not list((tmp_path / "data/sessions/transcripts").iterdir())


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("   ", "empty"),
        ("x" * 40_000, "the limit is 32,000"),
        ("/nwe", "Did you mean /new?"),
        ("/session resume two", "Add its number"),
        ("/session resume 7", "no session 7"),
        ("/history " + "9" * 400, "Send a number"),
    ],
)
async def test_bad_input_gets_a_helpful_answer(tmp_path: Path, text: str, answer: str) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        assert await chat.say(text) is Verdict.REFUSED
        assert answer in (await chat.hear_message()).text


async def test_strange_text_does_not_silence_the_chat(tmp_path: Path) -> None:
    """Lone surrogates and NUL become replacement characters; the rest comes back as it was."""
    async with gateway(settings(tmp_path)) as (_, chat):
        await chat.say("a\ud800b\0c\u2028d \U0001f468\u200d\U0001f469")
        await chat.hear_message()
        await chat.say("/history")
        assert "You: a\ufffdb\ufffdc\u2028d \U0001f468\u200d\U0001f469" in (await chat.hear_message()).text


async def test_stop_ends_the_answer_and_drops_waiting_messages(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        await chat.say("hello")
        await hear_draft(chat)
        await chat.say("never mind this one")
        await chat.say("/stop")
        ends = [await chat.hear_message() for _ in range(2)]
        said = {end.kind: end.text for end in ends}
        assert said[OutboundKind.NOTICE] == "Stopped. 1 waiting message dropped."
        assert said[OutboundKind.REPLY]
        assert "Stopped" not in said[OutboundKind.REPLY], "the text so far stays, and the chat is told once"
        await chat.say("/stop")
        assert (await chat.hear_message()).text == "Nothing is running here."
        await chat.say("and now?")
        assert (await chat.hear_message()).kind is OutboundKind.REPLY


async def test_a_stop_is_reported_to_other_chats_whose_messages_it_drops(tmp_path: Path) -> None:
    """One conversation over several chats: the answer to /stop is seen in one of them only."""
    async with gateway(settings(tmp_path, session={"dm_scope": "main"})) as (_, chat):
        await chat.say("hello", peer="ada")
        await hear_draft(chat)
        await chat.say("and mine?", peer="bob")
        await chat.say("/stop", peer="ada")
        heard = [await chat.hear_message() for _ in range(3)]
    told = [message.text for message in heard if message.address.peer == "bob"]
    assert told == ["This wasn't answered: someone sent /stop. Please resend it if it's still relevant."]
    async with await Spool.open(tmp_path / "data") as spool:
        assert (await spool.recover()).inbox == ()


async def test_stop_also_ends_the_turn_of_a_session_that_was_left(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        await chat.say("hello")
        await hear_draft(chat)
        await chat.say("/new")
        await chat.say("/stop")
        texts = [(await chat.hear_message()).text for _ in range(3)]
        assert [text for text in texts if "Stopped" in text] == ["Stopped."]


async def test_status_whoami_and_help_answer(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        for command, part in (("/status", "loopback up"), ("/whoami", "owner"), ("/help", "/session resume <number>")):
            await chat.say(command)
            assert part in (await chat.hear_message()).text


async def test_a_turn_running_at_shutdown_is_finished_and_delivered(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (daemon, chat):
        await chat.say("hello")
        await hear_draft(chat)
        daemon.stop()
        assert "*" not in (await chat.hear_message()).text[-20:]


async def test_no_message_is_accepted_during_shutdown(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (daemon, chat):
        await chat.say("hello")
        await hear_draft(chat)
        daemon.stop()
        await asyncio.sleep(0)
        with pytest.raises(NotAccepted):
            await chat.say("too late")


async def test_a_second_stop_skips_the_wait_and_the_next_start_answers(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (daemon, chat):
        await chat.say("hello", peer="ada")
        await hear_draft(chat)
        await chat.say("what did I say first?", peer="ada")
        daemon.stop()
        daemon.stop()
    async with gateway(settings(tmp_path)) as (_, chat):
        answers = [(await chat.hear_message()).text for _ in range(2)]
        await chat.say("/history", peer="ada")
        history = (await chat.hear_message()).text
    assert "hello" in answers[1]
    assert history.count("You: ") == 2
    assert history.count("Agent: ") == 2
