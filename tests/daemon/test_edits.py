"""Edited and forwarded messages, and those that have to wait, through the whole gateway."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec import structs

from channels.loopback import Heard, LoopbackChannel
from gateway.contract import Address, Inbound, OutboundKind, PeerKind, Quote, Sender, Verdict
from gateway.errors import NotAccepted
from gateway.inbound.inbox import OTHERS_FIRST
from gateway.outbound.reactions import SEEN
from gateway.sessions import Leaving, SessionMeta
from gateway.spool import WrongState
from tests.daemon.harness import ADA, Parrot, gateway, message, replies, settings

NO_LONGER = f"no {SEEN}"


async def test_an_edit_before_its_turn_replaces_the_text(tmp_path: Path) -> None:
    parrot = Parrot()
    async with gateway(settings(tmp_path), parrot.installed) as (_, chat):
        await chat.submit(message("first", "1"))
        await parrot.is_asked.wait()
        await chat.submit(message("second", "2"))
        assert await chat.submit(message("second, better", "2:e1", edits="2")) is Verdict.ACCEPTED
        assert await chat.submit(message("second, best", "2:e2", edits="2")) is Verdict.ACCEPTED
        assert await chat.submit(message("second, better", "2:e1", edits="2")) is Verdict.DUPLICATE
        parrot.may_answer.set()
        assert await replies(chat, 2) == ["heard: first", "heard: second, best"]
    assert parrot.heard[-1] == ["first", "second, best"]


async def test_an_accepted_edit_survives_a_crash(tmp_path: Path) -> None:
    parrot = Parrot()
    async with gateway(settings(tmp_path), parrot.installed) as (daemon, chat):
        await chat.submit(message("first", "1"))
        await parrot.is_asked.wait()
        await chat.submit(message("second", "2"))
        await chat.submit(message("second, better", "2:e1", edits="2"))
        daemon.stop()
        daemon.stop()
    parrot.may_answer.set()
    async with gateway(settings(tmp_path), parrot.installed) as (_, chat):
        assert await replies(chat, 2) == ["heard: first", "heard: second, better"]


async def test_an_edit_after_the_start_of_its_turn_is_shown_to_the_next_turn(tmp_path: Path) -> None:
    parrot = Parrot()
    async with gateway(settings(tmp_path), parrot.installed) as (_, chat):
        await chat.submit(message("first", "1"))
        await parrot.is_asked.wait()
        assert await chat.submit(message("first, better", "1:e1", edits="1")) is Verdict.ACCEPTED
        parrot.may_answer.set()
        assert await replies(chat, 1) == ["heard: first"]
        await chat.submit(message("next", "2"))
        assert await replies(chat, 1) == ["heard: next"]
        await chat.submit(message("next, better", "2:e1", edits="2"))
        await chat.submit(message("last", "3"))
        await replies(chat, 1)
    edited = [text.rpartition("\n")[2] for text in parrot.heard[-1]]
    assert edited == ["first", "first, better", "next", "next, better", "last"]
    transcript = next((tmp_path / "data/sessions/transcripts").iterdir()).read_text()
    assert transcript.count('"type":"edit"') == 2


async def test_an_edit_of_an_unknown_message_is_a_new_message_and_an_edited_command_runs(tmp_path: Path) -> None:
    parrot = Parrot()
    parrot.may_answer.set()
    async with gateway(settings(tmp_path), parrot.installed) as (_, chat):
        assert await chat.submit(message("@bot hello", "1:e1", edits="1")) is Verdict.ACCEPTED
        assert await replies(chat, 1) == ["heard: @bot hello"]
        await chat.submit(message("/nwe", "2"))
        await chat.hear_message()
        await chat.submit(message("/new Fresh", "2:e1", edits="2"))
        assert "Fresh" in (await chat.hear_message()).text


@pytest.mark.parametrize(
    "edit",
    [
        message("not theirs", "1:e1", edits="1", sender=Sender(id="bob", is_owner=True)),
        message("too old", "0:e1", edits="0", sent_at=datetime.now(UTC) - timedelta(days=3)),
        message("not for us", "9:e1", edits="9", is_addressed=False),
    ],
)
async def test_an_edit_that_is_not_for_the_bot_changes_nothing(tmp_path: Path, edit: Inbound) -> None:
    parrot = Parrot()
    parrot.may_answer.set()
    async with gateway(settings(tmp_path), parrot.installed) as (_, chat):
        await chat.submit(message("first", "1"))
        await replies(chat, 1)
        await chat.submit(edit)
        await chat.submit(message("next", "2"))
        await replies(chat, 1)
    assert parrot.heard[-1] == ["first", "next"]


async def test_an_edit_by_an_unknown_sender_is_refused(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        edit = message("let me in", "1:e1", edits="1", sender=Sender(id="666"))
        assert await chat.submit(edit) is Verdict.REFUSED


async def test_the_agent_sees_the_quoted_message(tmp_path: Path) -> None:
    parrot = Parrot()
    parrot.may_answer.set()
    async with gateway(settings(tmp_path), parrot.installed) as (_, chat):
        await chat.submit(message("/whoami", "0", quotes=Quote(author="gate", text="Done.", is_ours=True)))
        assert (await chat.hear_message()).text.startswith("You are ")
        await chat.submit(message("why?", "1", quotes=Quote(author='The\nboss"]', text="Do this.\nAnd that.")))
        await chat.submit(message("", "2", quotes=Quote(author="", text="x" * 5_000)))
        await chat.submit(message("and now?", "3", quotes=Quote(author="gate", text="Done.", is_ours=True)))
        assert await chat.submit(message("so?", "4", quotes=Quote(author="gate", text=" \n"))) is Verdict.ACCEPTED
        await replies(chat, 4)
    first, second, third, fourth = parrot.heard[-1]
    assert first == 'why?\n\n[in reply to "The boss"]\n> Do this.\n> And that.'
    assert second.startswith('[in reply to "someone"]\n> xxx')
    assert len(second) < 4_100
    assert third == "and now?\n\n[in reply to you]\n> Done."
    assert fourth == "so?"


@pytest.mark.parametrize("bug", [ZeroDivisionError(), WrongState("It is over.")])
async def test_a_message_that_hits_a_bug_after_its_commit_is_answered(tmp_path: Path, bug: Exception) -> None:
    async def fail(_meta: SessionMeta, _why: Leaving) -> None:
        raise bug

    async with gateway(settings(tmp_path), Parrot.answering) as (daemon, chat):
        await chat.submit(message("hello", "1"))
        assert await replies(chat, 1) == ["heard: hello"]
        await chat.submit(message("/session close", "2"))
        daemon.sessions._retention._on_leaving = fail  # noqa: SLF001 - there is no other archiver yet
        assert await chat.submit(message("again", "3")) is Verdict.ACCEPTED
        (reply,) = await replies(chat, 1)
        assert reply.endswith("heard: again")


@pytest.mark.parametrize("more", [{"sender": Sender(id="666")}, {"is_addressed": False}])
async def test_an_unknown_sender_is_not_told_about_a_bug(tmp_path: Path, more: dict[str, object]) -> None:
    async with gateway(settings(tmp_path)) as (_, chat):
        assert await chat.submit(message("hello", "1", forwarded_from=7, **more)) is Verdict.REFUSED
        await chat.submit(message("/whoami", "2"))
        assert (await chat.hear_message()).text.startswith("You are ")


async def test_forwarded_text_is_marked_and_is_never_a_command(tmp_path: Path) -> None:
    parrot = Parrot()
    parrot.may_answer.set()
    async with gateway(settings(tmp_path), parrot.installed) as (_, chat):
        await chat.submit(message("/new", "1", forwarded_from="The\nboss"))
        await chat.submit(message("hello", "2", forwarded_from=""))
        await replies(chat, 2)
    assert parrot.heard[-1] == ["[forwarded from The boss] /new", "[forwarded from someone] hello"]


async def signs(chat: LoopbackChannel, until: str) -> list[Heard]:
    """Return the events before the answer that ends with `until`."""
    heard: list[Heard] = []
    while not (heard and heard[-1].message and heard[-1].how == "send" and heard[-1].message.text.endswith(until)):
        heard.append(await chat.hear())
    return heard


@pytest.mark.parametrize("sign", ["reaction", "note", "off"])
async def test_a_waiting_message_gets_a_sign(tmp_path: Path, sign: str) -> None:
    parrot = Parrot()
    channels = {
        "web": {"enabled": False},
        "terminal": {"enabled": False},
        "loopback": {"waiting_sign": sign},
    }
    async with gateway(settings(tmp_path, channels=channels), parrot.installed) as (_, chat):
        await chat.submit(message("first", "1"))
        await parrot.is_asked.wait()
        await chat.submit(message("second", "2"))
        heard = [await chat.hear()]
        while sign != "off" and not (heard[-1].how == SEEN or (heard[-1].message and heard[-1].how == "send")):
            heard.append(await chat.hear())
        parrot.may_answer.set()
        heard += await signs(chat, "second")
    for how in (SEEN, NO_LONGER):
        assert [each.key for each in heard if each.how == how] == (["m-2"] if sign == "reaction" else [])
    notes = [each.message for each in heard if each.message and each.message.kind is OutboundKind.NOTICE]
    assert [note.reply_to for note in notes] == (["m-2"] if sign == "note" else [])


@pytest.mark.parametrize("sign", ["reaction", "note"])
async def test_a_message_that_waits_for_other_chats_gets_a_sign_too(tmp_path: Path, sign: str) -> None:
    """All places are taken by other people's turns."""
    parrot = Parrot()
    channels = {"web": {"enabled": False}, "terminal": {"enabled": False}, "loopback": {"waiting_sign": sign}}
    configured = settings(tmp_path, channels=channels)
    limits = configured.gateway.model_copy(update={"max_parallel_turns": 1})
    async with gateway(configured.model_copy(update={"gateway": limits}), parrot.installed) as (_, chat):
        await chat.submit(message("first", "1"))
        await parrot.is_asked.wait()
        await chat.submit(message("second", "2", address=structs.replace(ADA, peer="another")))
        heard = [await chat.hear()]
        while not (heard[-1].how == SEEN or (heard[-1].message and heard[-1].message.text == OTHERS_FIRST)):
            heard.append(await chat.hear())
        parrot.may_answer.set()
        heard += await signs(chat, "second")
    assert [each.key for each in heard if each.how == NO_LONGER] == (["m-2"] if sign == "reaction" else [])


async def second_waits(parrot: Parrot, chat: LoopbackChannel) -> None:
    """Say two things, of which the first keeps the model busy, until the second has its sign."""
    await chat.submit(message("first", "1"))
    await parrot.is_asked.wait()
    await chat.submit(message("second", "2"))
    while (await chat.hear()).how != SEEN:
        pass


async def second_waits_no_more(chat: LoopbackChannel) -> None:
    while (heard := await chat.hear()).how != NO_LONGER:
        pass
    assert heard.key == "m-2"


async def test_a_sign_is_removed_after_a_restart(tmp_path: Path) -> None:
    parrot = Parrot()
    async with gateway(settings(tmp_path), parrot.installed) as (daemon, chat):
        await second_waits(parrot, chat)
        daemon.stop()
        daemon.stop()
    parrot.may_answer.set()
    async with gateway(settings(tmp_path), parrot.installed) as (_, chat):
        await second_waits_no_more(chat)


async def test_the_sign_of_a_message_answered_during_shutdown_is_removed(tmp_path: Path) -> None:
    parrot = Parrot()
    async with gateway(settings(tmp_path), parrot.installed) as (daemon, chat):
        await second_waits(parrot, chat)
        daemon.stop()
        await asyncio.sleep(0)
        with pytest.raises(NotAccepted):
            await chat.submit(message("third", "3"))
        parrot.may_answer.set()
        await second_waits_no_more(chat)


async def test_the_sign_of_a_dropped_message_is_removed(tmp_path: Path) -> None:
    parrot = Parrot()
    async with gateway(settings(tmp_path), parrot.installed) as (_, chat):
        await second_waits(parrot, chat)
        await chat.submit(message("/stop", "3"))
        await second_waits_no_more(chat)


async def test_a_chat_with_a_new_id_keeps_its_conversation(tmp_path: Path) -> None:
    parrot = Parrot()
    parrot.may_answer.set()
    old = Address(channel="loopback", kind=PeerKind.GROUP, peer="-5")
    new, bob = structs.replace(old, peer="-1005"), Sender(id="bob")
    channels = {"web": {"enabled": False}, "terminal": {"enabled": False}, "loopback": {"group_allow": ["-5"]}}
    configured = settings(tmp_path, channels=channels)
    async with gateway(configured, parrot.installed) as (_, chat):
        await chat.submit(message("first", "1", address=old, sender=bob))
        await replies(chat, 1)
        assert await chat.submit(message("who?", "2", address=new, sender=bob)) is Verdict.IGNORED
        await chat.relocate(old, new)
        await chat.submit(message("second", "3", address=new, sender=bob))
        reply = await chat.hear_message()
        assert (reply.address.peer, reply.text) == ("-1005", "heard: second")
    async with gateway(configured, parrot.installed) as (_, chat):
        assert await chat.submit(message("third", "4", address=new, sender=bob)) is Verdict.ACCEPTED
        await replies(chat, 1)
    assert parrot.heard[-1] == ["first", "second", "third"]


async def test_a_message_that_waited_too_long_on_the_platform_is_refused_once(tmp_path: Path) -> None:
    old = datetime.now(UTC) - timedelta(days=2)
    async with gateway(settings(tmp_path)) as (_, chat):
        for number in range(3):
            assert await chat.submit(message("hello?", f"{number}", sent_at=old)) is Verdict.REFUSED
        await chat.submit(message("/whoami", "now"))
        heard = [(await chat.hear_message()).text for _ in range(2)]
    assert "offline too long" in heard[0]
    assert "Ada" in heard[1]
