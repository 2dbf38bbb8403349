"""Messages whose answers go to a chat of another bot identity: the answer, failures, questions and restarts."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec import structs

from channels.loopback import LoopbackChannel
from config import Settings
from gateway.agent.protocol import TextDelta
from gateway.contract import Address, Inbound, Outbound, OutboundKind, PeerKind, Sender, Verdict
from gateway.daemon import Daemon
from gateway.errors import ProviderFailed
from tests.daemon.harness import Parrot, accepted, gateway, leave, message, replies, settings
from tests.daemon.tools import Rocket, agent, launch, scripted

NEAR = Address(channel="loopback", kind=PeerKind.CHANNEL, peer="doorbell")
FAR = Address(channel="loopback", account="second", kind=PeerKind.DIRECT, peer="olga")
BELL = Sender(id="doorbell", is_owner=True)
OLGA = Sender(id="olga", name="Olga", is_owner=True)


def house(folder: Path) -> Settings:
    accounts = {"default": {}, "second": {"dm_policy": "open"}}
    channels = {"web": {"enabled": False}, "terminal": {"enabled": False}, "loopback": {"accounts": accounts}}
    return settings(folder, channels=channels)


@asynccontextmanager
async def both(
    folder: Path, before: Callable[[Daemon], None] = Parrot.answering
) -> AsyncIterator[tuple[LoopbackChannel, LoopbackChannel]]:
    """Yield the channel that gets the messages, and the one that gets the answers."""
    async with gateway(house(folder), before) as (daemon, near):
        far = daemon.channels.by_identity["loopback", "second"]
        assert isinstance(far, LoopbackChannel)
        yield near, far


def ring(event: str = "e1", **more: object) -> Inbound:
    fields = {"address": NEAR, "sender": BELL, "answer_address": FAR, **more}
    return message("someone is at the door", event, **fields)


async def test_the_answer_comes_whole_and_says_what_it_answers(tmp_path: Path) -> None:
    async with both(tmp_path) as (near, far):
        assert await near.submit(ring()) is Verdict.ACCEPTED
        heard = await far.hear()
    assert heard.how == "send", "no typing and no drafts: no one waits there"
    said = heard.message
    assert said is not None
    assert (said.address, said.kind) == (FAR, OutboundKind.REPLY)
    assert said.text.startswith("[loopback doorbell] heard: ")
    assert (said.reply_to, said.session, said.recipient) == (None, None, None)


async def test_the_chat_that_gets_the_answers_keeps_its_own_conversation(tmp_path: Path) -> None:
    async with both(tmp_path) as (near, far):
        await near.submit(ring())
        await far.hear_message()
        await far.say("hello", peer="olga", sender=OLGA)
        assert await replies(far, 1) == ["heard: hello"]
        await far.say("/history", peer="olga", sender=OLGA)
        told = await far.hear_message()
    assert "door" not in told.text


async def test_a_long_answer_is_split_by_the_limit_of_the_other_channel(tmp_path: Path) -> None:
    long = "\n\n".join(f"{number} {'word ' * 150}" for number in range(8))
    async with both(tmp_path, agent(scripted([TextDelta(text=long)]), Rocket())) as (near, far):
        await near.submit(ring())
        parts = [await far.hear_message(), await far.hear_message()]
    assert [len(part.text) <= far.text_limit.size for part in parts] == [True, True]
    assert {part.address for part in parts} == {FAR}


async def test_a_failure_is_told_where_the_answer_would_have_gone(tmp_path: Path) -> None:
    failing = agent(scripted([ProviderFailed("The model is on holiday.")]), Rocket())
    async with both(tmp_path, failing) as (near, far):
        await near.submit(ring())
        said = await far.hear_message()
    assert said.is_failure
    assert said.text == "[loopback doorbell] *The model is on holiday.*"


async def test_a_message_that_is_abandoned_at_a_start_is_reported_in_the_other_chat(tmp_path: Path) -> None:
    async with both(tmp_path):
        pass
    old = accepted("t1", "x", at=datetime.now(UTC) - timedelta(days=3))
    await leave(tmp_path, structs.replace(old, inbound=ring()))
    async with both(tmp_path) as (_, far):
        said = await far.hear_message()
    assert said.address == FAR
    assert said.text.startswith("[loopback doorbell] I was offline too long")


async def ask(near: LoopbackChannel, far: LoopbackChannel) -> Outbound:
    await near.submit(ring())
    question = await far.hear_message()
    assert question.address == FAR
    assert "May I use launch?" in question.text
    return question


async def test_an_owner_approves_a_tool_in_the_other_chat(tmp_path: Path) -> None:
    rocket = Rocket()
    async with both(tmp_path, agent(scripted([launch("Mars")]), rocket)) as (near, far):
        question = await ask(near, far)
        assert "An owner, press a button or send /approve" in question.text
        await far.say(question.buttons[0].command, peer="olga", sender=OLGA)
        texts = {(await far.hear_message()).text for _ in range(2)}
        assert texts == {"Approved: launch will run.", "[loopback doorbell] Done."}
        await far.say(question.buttons[0].command, peer="olga", sender=OLGA)
        assert (await far.hear_message()).text == "This was already approved."
    assert rocket.launched == ["Mars"]


@pytest.mark.parametrize("sender", [Sender(id="doorbell"), Sender(id="eve")])
async def test_only_an_owner_may_approve_in_the_other_chat(tmp_path: Path, sender: Sender) -> None:
    """A person there may have the id that the sender of the message has on its own channel."""
    rocket = Rocket()
    async with both(tmp_path, agent(scripted([launch("Mars")]), rocket)) as (near, far):
        question = await ask(near, far)
        await far.say(question.buttons[0].command, peer="olga", sender=sender)
        assert "owner" in (await far.hear_message()).text
    assert rocket.launched == []


async def test_a_plain_yes_in_the_other_chat_is_an_ordinary_message(tmp_path: Path) -> None:
    rocket = Rocket()
    async with both(tmp_path, agent(scripted([launch("Mars")]), rocket)) as (near, far):
        await ask(near, far)
        await far.say("yes", peer="olga", sender=OLGA)
        assert await replies(far, 1) == ["Done."]
    assert rocket.launched == []
