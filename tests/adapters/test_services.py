from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from gateway.adapters.services import ChannelStore, InMemoryStore, SessionBrowser
from gateway.contract import Address, EarlierMessage, Notebook, PeerKind, Sender, Verdict
from gateway.daemon import Daemon
from gateway.errors import HeldElsewhere
from gateway.shards import SHARD_COUNT, Shards, shard_of
from gateway.spool import Spool
from tests.daemon.harness import Parrot, Slow, gateway, settings

ANN = Sender(id="ann", is_owner=True)
CHAT = Address(channel="loopback", kind=PeerKind.DIRECT, peer="ann")


async def earlier(daemon: Daemon, event_id: str, sender: Sender = ANN, address: Address = CHAT) -> EarlierMessage:
    browser = SessionBrowser(daemon.live, daemon.sessions, daemon.approvals, daemon.spool)
    return await browser.earlier(address, sender, event_id)


def texts(found: EarlierMessage) -> list[str]:
    return [answer.message.text for answer in found.answers]


async def test_a_repeated_message_finds_its_answer_after_a_restart(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path), Parrot.answering) as (_, chat):
        for event, text in (("e1", "hello"), ("e2", "again"), ("e3", "/whoami")):
            await chat.say(text, peer="ann", sender=ANN, event_id=event)
            await chat.hear_message()
    slow = Slow()
    async with gateway(settings(tmp_path)) as (daemon, chat):
        assert await chat.say("hello", peer="ann", sender=ANN, event_id="e1") is Verdict.DUPLICATE
        found = await earlier(daemon, "e1")
        assert (texts(found), found.session, found.is_finished) == (["heard: hello"], 1, True)
        assert found.answers[0].key == found.turn
        assert texts(await earlier(daemon, "e2")) == ["heard: again"]
        assert await earlier(daemon, "e3") == EarlierMessage()
        daemon.agents.replace("main", lambda main: replace(main, provider=slow))
        await chat.say("wait", peer="ann", sender=ANN, event_id="e4")
        found = await earlier(daemon, "e4")
        assert (found.answers, found.is_finished) == ((), False)
        slow.may_answer.set()


async def test_the_answers_of_other_people_and_chats_are_not_found(tmp_path: Path) -> None:
    async with gateway(settings(tmp_path), Parrot.answering) as (daemon, chat):
        for event, text in (("e1", "hello"), ("e2", "/whoami")):
            await chat.say(text, peer="ann", sender=ANN, event_id=event)
            await chat.hear_message()
        others = [(Sender(id="ann"), CHAT), (Sender(id="bob", is_owner=True), structs.replace(CHAT, peer="bob"))]
        for sender, address in others:
            for event in ("e1", "e2", "e0"):
                assert not texts(await earlier(daemon, event, sender, address))


async def test_the_node_of_a_chat_is_found_by_its_scope(tmp_path: Path) -> None:
    moves: list[str] = []
    async with gateway(settings(tmp_path), Parrot.answering) as (daemon, chat):
        await chat.say("hello", peer="ann", sender=ANN)
        await chat.hear_message()
        browser = SessionBrowser(daemon.live, daemon.sessions, daemon.approvals, daemon.spool)
        browser.require_here(CHAT, ANN)
        with browser.watched(CHAT, ANN, lambda: moves.append("alone")):
            assert not browser.is_shared
        daemon.sessions.shards = shards = Shards()
        with pytest.raises(HeldElsewhere) as held:
            browser.require_here(CHAT, ANN)
        assert daemon.sessions.active(held.value.scope) is not None
        number = shard_of(held.value.scope)
        shards.epochs[number] = 1
        shards.loading.add(number)
        with pytest.raises(HeldElsewhere), browser.watched(CHAT, ANN, lambda: moves.append("too early")):
            pass
        shards.loading.clear()
        with browser.watched(CHAT, ANN, lambda: moves.append("moved")):
            shards.moved([number, (number + 1) % SHARD_COUNT])
        shards.moved([number])
        assert moves == ["moved"]


async def write_and_read(store: Notebook) -> dict[str, str]:
    await store.write({"a": "1", "b": "2"})
    await store.write({"a": None, "b": "3", "c": "4"})
    return await store.read()


async def test_the_last_value_written_is_read() -> None:
    assert await write_and_read(InMemoryStore()) == {"b": "3", "c": "4"}


async def test_facts_survive_a_restart(tmp_path: Path) -> None:
    async with await Spool.open(tmp_path) as spool:
        assert await write_and_read(ChannelStore(spool, "pigeon", "default")) == {"b": "3", "c": "4"}
    async with await Spool.open(tmp_path) as spool:
        assert await ChannelStore(spool, "pigeon", "default").read() == {"b": "3", "c": "4"}


@pytest.mark.parametrize(("channel", "account"), [("pigeon", "work"), ("pigeon-b", "default"), ("pig", "default")])
async def test_other_channels_and_accounts_cannot_read_them(tmp_path: Path, channel: str, account: str) -> None:
    async with await Spool.open(tmp_path) as spool:
        await write_and_read(ChannelStore(spool, "pigeon", "default"))
        assert await ChannelStore(spool, channel, account).read() == {}


OWNER, GUEST = Sender(id="1", is_owner=True), Sender(id="2")


@pytest.mark.parametrize(
    ("kind", "sender", "is_needed"),
    [("offline", OWNER, True), ("offline", GUEST, False), ("openai", OWNER, False)],
)
async def test_only_an_owner_without_a_model_is_told_to_set_one_up(
    tmp_path: Path, kind: str, sender: Sender, *, is_needed: bool
) -> None:
    provider = {"kind": kind, "base_url": "http://127.0.0.1:9/v1"}
    configured = settings(tmp_path, providers={"x": provider}, agents={"main": {"provider": "x", "model": "m"}})
    address = Address(channel="loopback", kind=PeerKind.DIRECT, peer=sender.id)
    async with gateway(configured) as (daemon, _):
        browser = SessionBrowser(daemon.live, daemon.sessions, daemon.approvals, daemon.spool)
        assert browser.needs_setup(address, sender) is is_needed
