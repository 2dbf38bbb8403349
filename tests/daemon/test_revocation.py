"""People lose access while the gateway works for them."""

import dataclasses
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from channels.loopback import LoopbackChannel
from config import DmScope, SessionSettings, Settings
from gateway.access.guests import Guest, Person
from gateway.access.rules import ACCESS_LOST
from gateway.adapters.services import SessionBrowser
from gateway.agent.protocol import TextDelta
from gateway.contract import Address, Outbound, OutboundKind, PeerKind, Sender, Verdict
from gateway.daemon import Daemon
from gateway.spool import AddToOutbox, InboxState, Spool
from tests.agent.scripted import ScriptedProvider
from tests.daemon.harness import Slow, gateway, settings
from tests.daemon.tools import Gate, Rocket, agent, call, launch, scripted
from tests.polling import until

EVE, BOB = Sender(id="666", name="Eve"), Sender(id="7", name="Bob")
OWNER = Sender(id="owner", name="Olga", is_owner=True)
EVES_CHAT = Address(channel="loopback", kind=PeerKind.DIRECT, peer="666")


def house(folder: Path, *, session: SessionSettings | None = None, **loopback: object) -> Settings:
    channels = {"web": {"enabled": False}, "terminal": {"enabled": False}, "loopback": loopback}
    return settings(folder, channels=channels, session=session or SessionSettings())


def approve(daemon: Daemon, *senders: Sender) -> None:
    for sender in senders:
        person = Person(channel="loopback", account="default", sender=sender.id)
        daemon.live.guest_book.guests[person] = Guest(
            person=person, name=sender.name, peer=sender.id, since=datetime.now(UTC)
        )


async def say(chat: LoopbackChannel, text: str, sender: Sender = EVE, group: str | None = None) -> Verdict:
    kind = PeerKind.GROUP if group else PeerKind.DIRECT
    return await chat.say(text, peer=group or sender.id, kind=kind, sender=sender)


async def revoke(chat: LoopbackChannel, sender: Sender = EVE) -> None:
    await say(chat, f"/pair revoke loopback:{sender.id}", OWNER)
    assert (await heard_by(chat, OWNER)).startswith(f"{sender.name} (loopback:{sender.id}) no longer has access")


async def heard_by(chat: LoopbackChannel, sender: Sender) -> str:
    """Return the next message to `sender`, and fail if another person gets one before."""
    message = await chat.hear_message()
    assert message.address.peer == sender.id, message
    return message.text


async def nothing_is_heard(chat: LoopbackChannel) -> None:
    await say(chat, "/whoami", OWNER)
    assert "You are Olga" in await heard_by(chat, OWNER)


async def inbox(daemon: Daemon) -> dict[InboxState, int]:
    return dict((await daemon.spool.stats()).inbox)


async def nothing_is_left(daemon: Daemon) -> None:
    """Wait until every accepted message has its end."""

    async def is_settled() -> bool:
        return not await inbox(daemon)

    await until(is_settled)


async def test_a_revoked_person_gets_neither_the_rest_of_the_turn_nor_a_notice(tmp_path: Path) -> None:
    provider, gate = ScriptedProvider([TextDelta(text="Wait."), call(1)], [TextDelta(text="Secret.")]), Gate()
    async with gateway(house(tmp_path), agent(provider, gate)) as (daemon, chat):
        approve(daemon, EVE)
        for text in ("at work", "waiting", "/undo", "/retry", "/history", "/compact"):
            assert await say(chat, text) is Verdict.ACCEPTED
        await gate.entered.wait()
        assert "You: at work" in await heard_by(chat, EVE)  # The answer to /history, which does not wait.
        await revoke(chat)
        gate.leave.set()
        await nothing_is_left(daemon)
        await nothing_is_heard(chat)
        assert not (await daemon.spool.stats()).outbox
    assert len(provider.prompts) == 1, "the model was asked again"


async def test_a_turn_that_waits_for_an_approval_ends_and_its_question_is_hidden(tmp_path: Path) -> None:
    rocket = Rocket()
    async with gateway(house(tmp_path), agent(scripted([launch("Mars")]), rocket)) as (daemon, chat):
        approve(daemon, EVE)
        await say(chat, "go")
        assert "May I use launch?" in await heard_by(chat, EVE)
        browser = SessionBrowser(daemon.live, daemon.sessions, daemon.approvals, daemon.spool)
        assert len(browser.questions(EVES_CHAT, EVE)) == 1
        daemon.live.guest_book.guests.clear()
        assert browser.questions(EVES_CHAT, EVE) == []
        approve(daemon, EVE)
        await revoke(chat)
        await nothing_is_left(daemon)
        assert not daemon.approvals.open_questions
        assert await say(chat, "yes") is Verdict.REFUSED
        await nothing_is_heard(chat)
    assert rocket.launched == []


@pytest.mark.parametrize("group", [None, "g"])
async def test_in_a_shared_scope_only_the_turn_of_the_revoked_person_stops(tmp_path: Path, group: str | None) -> None:
    provider = Slow()
    session = SessionSettings(dm_scope=DmScope.MAIN)
    async with gateway(house(tmp_path, session=session, group_policy="open")) as (daemon, chat):
        daemon.agents.replace("main", lambda main: dataclasses.replace(main, provider=provider))
        approve(daemon, EVE, BOB)
        for sender in (BOB, EVE):
            assert await say(chat, "hello", sender, group) is Verdict.ACCEPTED
        await provider.is_asked.wait()
        await revoke(chat)
        provider.may_answer.set()
        assert (await chat.hear_message()).text == "Done."
        await nothing_is_left(daemon)
        await nothing_is_heard(chat)
        verdict = Verdict.REFUSED if group is None else Verdict.IGNORED
        assert await say(chat, "hello", EVE, group) is verdict


async def test_other_people_in_a_stopped_turn_are_told(tmp_path: Path) -> None:
    provider, gate = ScriptedProvider([call(1)], [call(2)], [TextDelta(text="Both.")]), Gate()
    async with gateway(house(tmp_path, group_policy="open", busy="steer"), agent(provider, gate)) as (daemon, chat):
        approve(daemon, EVE)
        await say(chat, "one", EVE, "g")
        await gate.entered.wait()
        await say(chat, "two", BOB, "g")
        gate.entered.clear()
        gate.leave.set()
        gate.leave.clear()
        await gate.entered.wait()
        await revoke(chat)
        told = await chat.hear_message()
        assert (told.address.peer, told.text, told.recipient) == ("g", f"*{ACCESS_LOST}*", BOB)
        await nothing_is_left(daemon)
        await nothing_is_heard(chat)


async def test_removing_a_person_from_the_allowlist_works_like_a_revocation(tmp_path: Path) -> None:
    provider = Slow()

    def installed(daemon: Daemon) -> None:
        daemon.agents.replace("main", lambda main: dataclasses.replace(main, provider=provider))

    async with gateway(house(tmp_path, allow=["666"]), installed) as (daemon, chat):
        assert await say(chat, "hello") is Verdict.ACCEPTED
        await provider.is_asked.wait()
        plan = await daemon.reload(house(tmp_path))
        assert plan.applied == ("channels.loopback.allow",)
        new_chat = daemon.channels.by_identity["loopback", "default"]
        assert isinstance(new_chat, LoopbackChannel)
        await nothing_is_left(daemon)
        assert await say(new_chat, "please") is Verdict.REFUSED
        await nothing_is_heard(new_chat)
    async with gateway(house(tmp_path)) as (_, chat):
        assert await say(chat, "please") is Verdict.REFUSED
        await nothing_is_heard(chat)
    async with gateway(house(tmp_path, allow=["666"])) as (_, chat):
        assert await say(chat, "hello") is Verdict.ACCEPTED


async def test_messages_for_a_person_without_access_are_not_sent_after_a_restart(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    for_eve = Outbound(address=EVES_CHAT, text="secret", kind=OutboundKind.REPLY, recipient=EVE)
    for_all = Outbound(address=EVES_CHAT, text="This bot is private.")
    async with gateway(house(tmp_path)):
        pass
    async with await Spool.open(tmp_path / "data") as spool:
        await spool.commit(
            AddToOutbox(key="k1", turn=None, message=for_eve, at=now),
            AddToOutbox(key="k2", turn=None, message=for_eve, at=now, is_sending=True),
            AddToOutbox(key="k3", turn=None, message=for_all, at=now),
        )
    async with gateway(house(tmp_path)) as (_, chat):
        assert await heard_by(chat, EVE) == for_all.text
        await nothing_is_heard(chat)
    async with await Spool.open(tmp_path / "data") as spool:
        assert not (await spool.recover()).outbox


async def test_a_revoked_person_gets_a_new_code_after_a_day(tmp_path: Path) -> None:
    clock = [datetime.now(UTC)]

    def now() -> datetime:
        return clock[0]

    async with gateway(house(tmp_path), now=now) as (_, chat):
        await say(chat, "let me in")
        code = (await heard_by(chat, EVE)).partition("code: ")[2][:9]
        await say(chat, f"/pair approve {code}", OWNER)
        assert {(await chat.hear_message()).address.peer for _ in range(2)} == {"666", "owner"}
        await revoke(chat)
        assert await say(chat, "let me in") is Verdict.REFUSED
        await nothing_is_heard(chat)
    clock[0] += timedelta(hours=23)
    async with gateway(house(tmp_path), now=now) as (_, chat):
        assert await say(chat, "let me in") is Verdict.REFUSED
        await nothing_is_heard(chat)
    clock[0] += timedelta(hours=2)
    async with gateway(house(tmp_path), now=now) as (daemon, chat):
        await say(chat, "let me in")
        code = (await heard_by(chat, EVE)).partition("code: ")[2][:9]
        await daemon.pairing.approve(await daemon.pairing.find_applicant(code))
        assert not daemon.live.guest_book.revoked
