"""Reading gateway events."""

import asyncio

import pytest
from msgspec.structs import replace

from channels.discord.events import QUEUE_SIZE
from gateway.adapters.services import InMemoryStore
from gateway.contract import (
    Channel,
    Inbound,
    Verdict,
)
from gateway.errors import NotAccepted
from tests.channels.discord.fake_discord import (
    ADAS,
    BOB,
    BOBS,
    BOT,
    CHANNEL,
    GUILD,
    THREAD,
    FakeDiscord,
)
from tests.channels.discord.harness import (
    REPLY,
    THREAD_CHAT,
    Core,
    PulseRecorder,
    event_reader,
    open_discord,
    running,
)


async def test_a_thread_is_a_separate_conversation(channel: Channel, discord: FakeDiscord, core: Core) -> None:
    asked = await discord.call_bot("hello", channel=THREAD)
    taken = await core.next_message()
    assert (taken.address, taken.guild, taken.text, taken.is_addressed) == (THREAD_CHAT, GUILD, "hello", True)
    await channel.send(replace(REPLY, address=taken.address, reply_to=taken.message_id), key="k1")
    (sent,) = discord.sent(THREAD)
    assert sent["message_reference"] == {"message_id": int(asked["id"]), "fail_if_not_exists": False}


@pytest.mark.usefixtures("channel")
async def test_threads_announced_by_the_gateway_are_not_looked_up(discord: FakeDiscord, core: Core) -> None:
    thread = {"id": THREAD, "type": 11, "parent_id": CHANNEL, "guild_id": GUILD}
    await discord.gateway.dispatch("THREAD_CREATE", thread)
    await discord.call_bot("hello", channel=THREAD)
    assert (await core.next_message()).address == THREAD_CHAT
    assert not discord.calls_of("channel")


async def test_a_mention_of_the_bots_own_role_addresses_the_bot(
    discord: FakeDiscord, core: Core, pulse: PulseRecorder
) -> None:
    """Typing the name offers both, and they look the same."""
    roles = [{"id": "951", "name": "all"}, {"id": "950", "name": "gate", "tags": {"bot_id": BOT["id"]}}]
    discord.gateway.guilds[0]["roles"] = roles
    async with running(open_discord(discord, pulse), core.deliver, pulse):
        await discord.say("<@&950> hello", channel=CHANNEL, author=BOB, mention_roles=["950"])
        await discord.say("<@&951> hello", channel=CHANNEL, author=BOB, mention_roles=["951"])
        taken = [await core.next_message() for _ in range(2)]
    assert [(each.text, each.is_addressed) for each in taken] == [("hello", True), ("<@&951> hello", False)]


@pytest.mark.usefixtures("channel")
async def test_bots_webhooks_and_system_messages_are_ignored(discord: FakeDiscord, core: Core) -> None:
    await discord.say("myself", author={**BOT, "id": "42"})
    await discord.say("a hook", webhook_id="7")
    await discord.say("has pinned a message", type=6)
    await discord.gateway.dispatch("MESSAGE_CREATE", {"id": "1", "channel_id": ADAS, "author": "of a kind to come"})
    await discord.say("hello")
    assert (await core.next_message()).text == "hello"


@pytest.mark.usefixtures("channel")
async def test_an_edit_refers_to_its_message_and_a_preview_is_not_an_edit(discord: FakeDiscord, core: Core) -> None:
    said = await discord.say("helo")
    assert (await core.next_message()).edits is None
    await discord.gateway.dispatch("MESSAGE_UPDATE", {**said, "embeds": [{"type": "link"}]})
    await discord.edit(said, "hello")
    edited = await core.next_message()
    assert (edited.text, edited.edits) == ("hello", said["id"])
    assert edited.event_id != said["id"]


async def test_messages_wait_in_order_while_the_core_cannot_take_them(
    discord: FakeDiscord, core: Core, pulse: PulseRecorder
) -> None:
    async with running(open_discord(discord, pulse), core.deliver, pulse):
        core.errors = [NotAccepted("the disk is full", retry_after=0.01)]
        await discord.say("one")
        await discord.say("two")
        assert [(await core.next_message()).text for _ in range(2)] == ["one", "two"]
    assert "the disk is full" not in pulse.states, "Discord itself has not failed"


async def test_events_dropped_from_a_full_queue_are_caught_up_on(discord: FakeDiscord, pulse: PulseRecorder) -> None:
    gate, taken, count = asyncio.Event(), list[str](), QUEUE_SIZE + 50
    done = asyncio.Event()

    async def deliver(inbound: Inbound) -> Verdict:
        if taken:
            await gate.wait()
        taken.append(inbound.text)
        if inbound.text == "last":
            done.set()
        return Verdict.ACCEPTED

    async with running(open_discord(discord, pulse), deliver, pulse):
        for number in range(count):
            await discord.say(f"{number}")
        await discord.gateway.read()
        gate.set()
        await discord.called("history")
        await discord.say("last")
        await done.wait()
    assert list(dict.fromkeys(taken)) == [*(f"{number}" for number in range(count)), "last"]


async def test_a_dropped_message_of_an_unknown_chat_is_caught_up_on(discord: FakeDiscord, core: Core) -> None:
    async with event_reader(discord, core, InMemoryStore()) as reader:
        for _ in range(QUEUE_SIZE + 1):
            reader.receive("MESSAGE_CREATE", discord.written("flood"))
        reader.receive("MESSAGE_CREATE", discord.written("ahead", channel=BOBS, author=BOB))
        reader.receive("MESSAGE_CREATE", discord.written("behind", channel=BOBS, author=BOB))
        texts = [(await core.next_message()).text for _ in range(QUEUE_SIZE + 3)]
        reader.receive("MESSAGE_CREATE", discord.written("later", channel=BOBS, author=BOB))
        assert (await core.next_message()).text == "later"
    assert texts[-2:] == ["ahead", "behind"]


async def test_a_dropped_message_of_an_unknown_chat_survives_an_unreadable_history(
    discord: FakeDiscord, core: Core
) -> None:
    notebook = InMemoryStore()
    async with event_reader(discord, core, notebook, max_blocking=0.0, retry_interval=0.01) as reader:
        discord.lost_histories = {BOBS}
        for _ in range(QUEUE_SIZE + 1):
            reader.receive("MESSAGE_CREATE", discord.written("flood"))
        reader.receive("MESSAGE_CREATE", discord.written("dropped", channel=BOBS, author=BOB))
        for _ in range(QUEUE_SIZE + 1):
            assert (await core.next_message()).text == "flood"
        reader.receive("READY", {})
        await discord.until(lambda: sum(ADAS in call.path for call in discord.calls_of("history")) > 1)
        discord.lost_histories.clear()
        assert (await core.next_message()).text == "dropped"
    assert f"chat:{BOBS}" in await notebook.read()
