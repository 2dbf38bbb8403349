"""Every chat command through the whole gateway."""

import asyncio
import threading
from pathlib import Path

import pytest

from gateway.contract import OutboundKind, PeerKind, Sender, Verdict
from gateway.spool import Spool
from tests.daemon.harness import ask, gateway, hear_draft, say_and_hear, settings


async def test_undo_removes_only_the_last_message_and_its_answer(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        await ask(chat, "my name is Ada")
        await ask(chat, "my name is Bob")
        assert "my name is Bob" in await ask(chat, "/undo")
        assert "Ada" in await ask(chat, "what is my name?")
    transcript = next((tmp_path / "data/sessions/transcripts").iterdir()).read_text()
    assert "my name is Bob" in transcript


async def test_undo_with_nothing_to_undo_says_so(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        assert await ask(chat, "/undo") == "There is nothing to undo here."


async def test_clear_makes_the_agent_forget(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        await ask(chat, "my name is Ada")
        assert "Cleared" in await ask(chat, "/clear")
        assert "Ada" not in await ask(chat, "what is my name?")


async def test_retry_regenerates_the_last_answer(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        await ask(chat, "my name is Ada")
        await ask(chat, "what is my name?")
        await chat.say("/retry")
        reply = await chat.hear_message()
        assert reply.kind is OutboundKind.REPLY
        assert "Ada" in reply.text
        assert (await ask(chat, "/history")).count("You: what is my name?") == 1


async def test_retry_without_a_message_says_so(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        assert await ask(chat, "/retry") == "There is no answer to regenerate here."


async def test_a_retry_can_be_stopped_while_it_reads_its_session(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        await ask(chat, "hello")
    async with gateway(settings(tmp_path)) as (daemon, chat):
        gate = threading.Event()
        disk = daemon.sessions._store.storage_thread  # noqa: SLF001 - the only way to have a read that does not end
        held = disk.submit(gate.wait)
        await chat.say("/retry")
        await chat.say("/stop")
        texts = {(await chat.hear_message()).text for _ in range(2)}
        gate.set()
        await held
    assert texts == {"Stopped.", "Stopped. Nothing has changed."}
    async with await Spool.open(tmp_path / "data") as spool:
        assert (await spool.recover()).inbox == ()


async def test_queued_commands_wait_for_the_turns_before_them(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        await chat.say("my name is Ada")
        await chat.say("/clear")
        await chat.say("what is my name?")
        texts = [(await chat.hear_message()).text for _ in range(3)]
        assert "Cleared" in texts[1]
        assert "Ada" not in texts[2]


async def test_rename_close_info_and_delete(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        await ask(chat, "hello")
        assert await ask(chat, "/session rename Trip to Lisbon") == "Session 1 is now called Trip to Lisbon."
        assert "Session 1: Trip to Lisbon" in await ask(chat, "/session info")
        await ask(chat, "/new")
        assert " bytes on disk" in await ask(chat, "/session info")
        assert await ask(chat, "/session rename 1 2026 plans") == "Session 1 is now called 2026 plans."
        assert "2  (empty)" in await ask(chat, "/session list")
        assert "Session 2 is closed" in await ask(chat, "/session close")
        await ask(chat, "a new one now")
        assert "▸ 3  a new one now" in await ask(chat, "/session list")
        assert await ask(chat, "/session delete 3 yes") == "Session 3 is deleted. You are now in session 2."
        assert "no session 3" in await ask(chat, "/session resume 3")
        assert await ask(chat, "/new") == "Started session 4. Your next messages go there."


async def test_search_finds_words_in_this_scope_only(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        await chat.say("the heron stands in the water", peer="bob")
        await chat.hear_message()
        await ask(chat, "the router blinks")
        await ask(chat, "/new")
        assert "1  the router blinks · you" in await ask(chat, "/session search ROUTER blinks")
        assert "Nothing found for heron" in await ask(chat, "/session search heron")


async def test_export_shows_the_session_without_internal_keys(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        await ask(chat, "the router blinks")
        exported = await ask(chat, "/session export")
        assert "the router blinks" in exported
        assert "agent:main" not in exported


@pytest.mark.parametrize("wrong", ["0", "-1", "all", "9" * 30])
async def test_history_asks_for_a_valid_number_of_lines(tmp_path: Path, wrong: str) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        assert await ask(chat, f"/history {wrong}") == "How many lines? Send a number, like /history 20."


async def test_a_double_slash_reaches_the_agent_as_one_slash(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        await ask(chat, "//clear the table")
        assert "You: /clear the table" in await ask(chat, "/history")


async def test_only_an_owner_can_delete_the_session_of_a_group(tmp_path: Path) -> None:
    tables = {"loopback": {"group_policy": "open"}, "web": {"enabled": False}, "terminal": {"enabled": False}}
    async with gateway(settings(tmp_path, channels=tables)) as (_, chat):
        somebody = Sender(id="7", name="Somebody")
        await chat.say("hello", peer="g", kind=PeerKind.GROUP, sender=somebody)
        await chat.hear_message()
        verdict = await chat.say("/session delete 1 yes", peer="g", kind=PeerKind.GROUP, sender=somebody)
        assert verdict is Verdict.REFUSED
        assert "only an owner" in (await chat.hear_message()).text


async def test_a_session_deleted_during_a_turn_stays_deleted(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        await chat.say("hello")
        await hear_draft(chat)
        await chat.say("/session delete 1 yes")
        ends = {(await chat.hear_message()).text for _ in range(2)}
        assert "Session 1 is deleted." in ends
        assert any(end.endswith("*The session was deleted.*") for end in ends)
        assert "no session here" in await ask(chat, "/session list")
    assert not list((tmp_path / "data/sessions/transcripts").glob("*.jsonl"))


async def test_ordered_commands_survive_a_restart_without_a_flush(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        await ask(chat, "one")
        await ask(chat, "/new")
        await ask(chat, "two")
        await ask(chat, "/session resume 1")
    (tmp_path / "data/sessions/index.json").unlink()
    async with gateway(settings(tmp_path)) as (_, chat):
        listing = await ask(chat, "/session list")
    assert "▸ 1  one" in listing
    assert "  2  two" in listing


async def test_the_first_answer_after_a_restart_says_how_much_was_restored(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        for text in ("one", "two"):
            await ask(chat, text)
    async with gateway(settings(tmp_path)) as (_, chat):
        await chat.say("three")
        assert (await chat.hear_message()).restored == 2
        await chat.say("four")
        assert (await chat.hear_message()).restored == 0


@pytest.mark.parametrize(("mode", "replies"), [("collect", 2), ("followup", 3)])
async def test_messages_that_arrive_during_a_turn_follow_the_busy_mode(tmp_path: Path, mode: str, replies: int) -> None:
    tables = {"loopback": {"busy": mode}, "web": {"enabled": False}, "terminal": {"enabled": False}}
    async with gateway(settings(tmp_path, channels=tables)) as (_, chat):
        await chat.say("first")
        await hear_draft(chat)
        await chat.say("second")
        await chat.say("third")
        heard = [(await chat.hear_message()).text for _ in range(replies)]
        assert len(heard) == replies
        history = await ask(chat, "/history 20")
        assert [line for line in history.splitlines() if line.startswith("You: ")] == [
            "You: first",
            "You: second",
            "You: third",
        ]
        assert history.count("Agent: ") == replies


async def test_a_retry_that_collects_later_messages_loses_none_of_them(tmp_path: Path) -> None:
    tables = {"loopback": {"busy": "collect"}, "web": {"enabled": False}, "terminal": {"enabled": False}}
    async with gateway(settings(tmp_path, channels=tables)) as (_, chat):
        await chat.say("first")
        await hear_draft(chat)
        await chat.say("/retry")
        await chat.say("second")
        for _ in range(2):
            await chat.hear_message()
        history = await ask(chat, "/history 20")
        assert [line for line in history.splitlines() if line.startswith("You: ")] == ["You: first", "You: second"]


async def test_in_interrupt_mode_a_new_message_stops_the_running_turn(tmp_path: Path) -> None:
    tables = {"loopback": {"busy": "interrupt"}, "web": {"enabled": False}, "terminal": {"enabled": False}}
    async with asyncio.timeout(60), gateway(settings(tmp_path, channels=tables)) as (_, chat):
        await chat.say("first")
        await hear_draft(chat)
        await chat.say("what did I say first?")
        assert (await chat.hear_message()).text.endswith("*Interrupted by your next message.*")
        assert "first" in (await chat.hear_message()).text


async def test_a_repeated_stop_does_not_stop_later_messages(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        assert await chat.say("/stop", event_id="again") is Verdict.ACCEPTED
        await chat.hear_message()
        await chat.say("hello")
        await chat.say("my name is Ada")
        assert await chat.say("/stop", event_id="again") is Verdict.DUPLICATE
        replies = [await chat.hear_message() for _ in range(2)]
        assert {reply.kind for reply in replies} == {OutboundKind.REPLY}
        assert not any("Stopped." in reply.text for reply in replies)


async def test_a_guest_cannot_delete_or_clear_the_conversation_that_everyone_shares(tmp_path: Path) -> None:
    guest = Sender(id="7", name="Guest")
    tables = {"loopback": {"dm_policy": "open"}, "web": {"enabled": False}, "terminal": {"enabled": False}}
    async with gateway(settings(tmp_path, channels=tables, session={"dm_scope": "main"})) as (daemon, chat):
        await ask(chat, "my name is Ada")
        for command in ("/session delete 1 yes", "/clear", "/model other", "/undo"):
            answer = await ask(chat, command, sender=guest)
            assert answer.startswith("Several people share"), command
        assert [session.messages for session in daemon.sessions.list("agent:main:main")] == [2]
        await ask(chat, "hello", sender=guest)
        assert (await ask(chat, "/undo", sender=guest)).startswith("Undone: “hello”")
        assert await ask(chat, "/session delete 1 yes") == "Session 1 is deleted."


async def test_a_member_of_a_group_with_sessions_per_sender_deletes_their_own(tmp_path: Path) -> None:
    tables = {"loopback": {"group_policy": "open"}, "web": {"enabled": False}, "terminal": {"enabled": False}}
    member = Sender(id="7", name="Member")
    configured = settings(tmp_path, channels=tables, session={"group_scope": "per-sender"})
    async with gateway(configured) as (_, chat):
        await ask(chat, "hello", sender=member, group="g")
        assert await ask(chat, "/session delete 1 yes", sender=member, group="g") == "Session 1 is deleted."


@pytest.mark.parametrize(
    ("argument", "answer"),
    [
        ("99 foo", "There is no session 99 here. /session list shows your sessions."),
        ("2", "What should the title of session 2 be? Add it, like /session rename 2 Trip to Lisbon."),
        ("99", "There is no session 99 here. /session list shows your sessions."),
        ("1 Lisbon", "Session 1 is now called Lisbon."),
        ("#1 Lisbon", "Session 1 is now called Lisbon."),
        ("Lisbon in 2 days", "Session 2 is now called Lisbon in 2 days."),
        ('"2 days in Lisbon"', "Session 2 is now called 2 days in Lisbon."),
        ("", "What should the title be? Add it, like /session rename Trip to Lisbon."),
    ],
)
async def test_a_number_in_front_of_a_new_title_names_the_session(tmp_path: Path, argument: str, answer: str) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        await ask(chat, "/new one")
        await ask(chat, "/new two")
        assert await ask(chat, f"/session rename {argument}".rstrip()) == answer


async def test_a_session_is_found_by_its_key(tmp_path: Path) -> None:
    key = "agent:main:loopback:direct:somebody"
    async with gateway(settings(tmp_path)) as (_, chat):
        await ask(chat, "/new one")
        await ask(chat, "/new two")
        assert f"key {key}#2" in await ask(chat, "/session info")
        assert await ask(chat, f"/switch {key}") == "Back in session 1: one (0 messages)."
        assert await ask(chat, f"/switch {key}#2") == "Back in session 2: two (0 messages)."
        assert await ask(chat, "/switch #1") == "Back in session 1: one (0 messages)."
        other = "agent:main:loopback:direct:ada"
        assert (await ask(chat, f"/switch {other}")).startswith("There is no session with that key here.")


async def test_a_deletion_needs_a_confirmation(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (daemon, chat):
        await ask(chat, "hello there")
        question = await say_and_hear(chat, "/session delete 1")
        assert "Delete session 1, “hello there”, with 2 messages for good?" in question.text
        for text in ("/session delete 1 no", "/session delete 1 please"):
            assert "for good?" in await ask(chat, text)
        assert daemon.sessions.list("agent:main:loopback:direct:somebody")
        (button,) = question.buttons
        assert await ask(chat, button.command) == "Session 1 is deleted."
