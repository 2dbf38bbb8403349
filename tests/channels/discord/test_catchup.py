"""Catching up on missed messages."""

import json

import pytest

from channels.discord.api import HISTORY_PAGE
from channels.discord.catchup import MAX_PAGES
from gateway.adapters.services import InMemoryStore
from gateway.contract import (
    Verdict,
)
from tests.channels.discord.fake_discord import ADA, ADAS, BOB, BOBS, BOT, CHANNEL, GUILD, THREAD, FakeDiscord, refusal
from tests.channels.discord.harness import THREAD_CHAT, Core, PulseRecorder, event_reader, open_discord, running


async def notebook_of_known_chats(discord: FakeDiscord, core: Core) -> InMemoryStore:
    """Let Ada and Bob write to the bot, and return the notebook with their read positions."""
    notebook = InMemoryStore()
    async with event_reader(discord, core, notebook) as reader:
        for channel, author in ((ADAS, ADA), (BOBS, BOB)):
            reader.receive("MESSAGE_CREATE", discord.written("hello", channel=channel, author=author))
            await core.next_message()
    return notebook


async def test_messages_written_while_the_bot_was_offline_are_caught_up_on(
    discord: FakeDiscord, core: Core, pulse: PulseRecorder
) -> None:
    notebook = InMemoryStore()
    async with running(open_discord(discord, pulse, notebook=notebook), core.deliver, pulse):
        await discord.say("one")
        await discord.call_bot("two", channel=THREAD)
        assert [(await core.next_message()).text for _ in range(2)] == ["one", "two"]
    discord.written("a bot", author=BOT)
    for number in range(150):
        discord.written(f"three {number}")
    discord.written(f"<@{BOT['id']}> four", channel=THREAD, author=BOB, mentions=[BOT])
    pulse.states.clear()
    async with running(open_discord(discord, pulse, notebook=notebook), core.deliver, pulse):
        caught = [await core.next_message() for _ in range(151)]
        await discord.say("five")
        assert (await core.next_message()).text == "five"
    assert [inbound.text for inbound in caught] == [*(f"three {number}" for number in range(150)), "four"]
    assert (caught[-1].address, caught[-1].guild) == (THREAD_CHAT, GUILD)


async def test_a_chat_the_bot_lost_access_to_does_not_hold_up_others(
    discord: FakeDiscord, core: Core, pulse: PulseRecorder
) -> None:
    notebook = InMemoryStore()
    async with running(open_discord(discord, pulse, notebook=notebook), core.deliver, pulse):
        await discord.say("one")
        await core.next_message()
    discord.scripted["history"].append(refusal(403, 50001, "Missing Access"))
    pulse.states.clear()
    async with running(open_discord(discord, pulse, notebook=notebook), core.deliver, pulse):
        await discord.say("two", author=BOB)
        assert (await core.next_message()).text == "two"


async def test_an_unreadable_history_is_read_later(discord: FakeDiscord, core: Core, pulse: PulseRecorder) -> None:
    notebook = InMemoryStore()
    async with running(open_discord(discord, pulse, notebook=notebook), core.deliver, pulse):
        await discord.say("one")
        await core.next_message()
    discord.written("two")
    discord.scripted["history"].append(refusal(503, 0, "Service Unavailable"))
    pulse.states.clear()
    async with running(open_discord(discord, pulse, notebook=notebook), core.deliver, pulse):
        assert (await core.next_message()).text == "two"


async def test_a_history_unreadable_for_long_is_postponed_and_read_later(discord: FakeDiscord, core: Core) -> None:
    notebook = await notebook_of_known_chats(discord, core)
    discord.lost_histories = {ADAS}
    missed = [discord.written("missed"), discord.written("missed too", channel=BOBS, author=BOB)]
    async with event_reader(discord, core, notebook, max_blocking=0.0, retry_interval=0.01) as reader:
        reader.receive("READY", {})
        assert (await core.next_message()).message_id == missed[1]["id"]
        reader.receive("MESSAGE_CREATE", discord.written("live"))
        assert (await core.next_message()).text == "live"
        discord.lost_histories.clear()
        assert (await core.next_message()).message_id == missed[0]["id"]


async def test_the_read_position_of_a_postponed_chat_survives_a_restart(discord: FakeDiscord, core: Core) -> None:
    notebook = await notebook_of_known_chats(discord, core)
    discord.lost_histories = {ADAS}
    discord.written("missed")
    async with event_reader(discord, core, notebook, max_blocking=0.0) as reader:
        reader.receive("READY", {})
        reader.receive("MESSAGE_CREATE", discord.written("live"))
        assert (await core.next_message()).text == "live"
    discord.lost_histories.clear()
    async with event_reader(discord, core, notebook) as reader:
        reader.receive("READY", {})
        assert (await core.next_message()).text == "missed"


async def test_a_history_unreadable_for_a_moment_is_waited_for_to_keep_the_order(
    discord: FakeDiscord, core: Core
) -> None:
    notebook = await notebook_of_known_chats(discord, core)
    discord.lost_histories = {ADAS}
    discord.written("missed")
    async with event_reader(discord, core, notebook) as reader:
        reader.receive("READY", {})
        reader.receive("MESSAGE_CREATE", discord.written("live"))
        await discord.called("history", times=2)
        discord.lost_histories.clear()
        assert [(await core.next_message()).text for _ in range(2)] == ["missed", "live"]


async def test_of_too_many_missed_messages_the_oldest_and_newest_pages_are_read(
    discord: FakeDiscord, core: Core
) -> None:
    notebook = await notebook_of_known_chats(discord, core)
    count = (MAX_PAGES + 2) * HISTORY_PAGE
    for number in range(count):
        discord.written(f"{number}")
    async with event_reader(discord, core, notebook) as reader:
        reader.receive("READY", {})
        texts = [(await core.next_message()).text for _ in range(MAX_PAGES * HISTORY_PAGE)]
    oldest, newest = range(HISTORY_PAGE), range(count - (MAX_PAGES - 1) * HISTORY_PAGE, count)
    assert texts == [f"{number}" for number in (*oldest, *newest)]


@pytest.mark.parametrize(("verdict", "count"), [(Verdict.ACCEPTED, 1), (Verdict.DUPLICATE, 2)])
async def test_a_missed_message_edited_since_is_new_unless_the_core_has_it(
    discord: FakeDiscord, core: Core, verdict: Verdict, count: int
) -> None:
    """Delivered only as an edit, it would be answered again when the event of its creation comes, or another edit."""
    notebook = await notebook_of_known_chats(discord, core)
    missed = discord.written("as it reads now", edited_timestamp="2026-01-01T00:00:00+00:00")
    core.verdict = verdict
    async with event_reader(discord, core, notebook) as reader:
        reader.receive("READY", {})
        reader.receive("MESSAGE_CREATE", discord.written("live", channel=BOBS, author=BOB))
        taken = [await core.next_message() for _ in range(count + 1)]
    assert (taken[0].event_id, taken[0].edits, taken[0].text) == (missed["id"], None, "as it reads now")
    assert [each.edits for each in taken[1:]] == [missed["id"], None][2 - count :]


async def test_the_position_after_a_missed_edited_message_is_saved_at_once(discord: FakeDiscord, core: Core) -> None:
    notebook = await notebook_of_known_chats(discord, core)
    missed = discord.written("as it reads now", edited_timestamp="2026-01-01T00:00:00+00:00")
    discord.written("next")
    async with event_reader(discord, core, notebook) as reader:
        reader.receive("READY", {})
        assert [(await core.next_message()).text for _ in range(2)] == ["as it reads now", "next"]
        assert json.loads((await notebook.read())[f"chat:{ADAS}"])["read"] == int(missed["id"])


async def test_a_missed_mention_of_the_bots_role_is_recognised_before_guild_create(
    discord: FakeDiscord, core: Core
) -> None:
    notebook = InMemoryStore()
    async with event_reader(discord, core, notebook) as reader:
        reader.receive("MESSAGE_CREATE", discord.written("hello", channel=CHANNEL, author=BOB, mentions=[BOT]))
        await core.next_message()
    discord.gateway.guilds[0]["roles"] = [{"id": "951"}, {"id": "950", "tags": {"bot_id": BOT["id"]}}]
    for role in ("950", "951"):
        discord.written(f"<@&{role}> missed", channel=CHANNEL, author=BOB, mention_roles=[role])
    async with event_reader(discord, core, notebook) as reader:
        reader.receive("READY", {})
        caught = [await core.next_message() for _ in range(2)]
    assert [(each.text, each.is_addressed) for each in caught] == [("missed", True), ("<@&951> missed", False)]
    assert len(discord.calls_of("roles")) == 1
