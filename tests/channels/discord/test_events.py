"""The way in, by itself: catching up where Discord does not give the history away at once."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from channels.discord.api import PAGE, Api
from channels.discord.cache import Places
from channels.discord.catchup import PAGES, Backlog, Chats
from channels.discord.events import WAITING, Reader
from channels.discord.gateway_connection import Client
from channels.discord.interactions import Interactions
from channels.discord.wire import BotIdentity
from config import Secret
from gateway.contract import Verdict
from gateway.notebook import LooseLeaf
from gateway.testing import StubBrowser
from tests.channels.at_work import PATIENCE
from tests.channels.discord.harness import Beats, Core
from tests.channels.discord.server import ADA, ADAS, BOB, BOBS, BOT, CHANNEL, TOKEN, FakeDiscord, discord_server


@pytest.fixture
async def discord() -> AsyncIterator[FakeDiscord]:
    async with discord_server() as discord:
        yield discord


@asynccontextmanager
async def reading(discord: FakeDiscord, core: Core, notebook: LooseLeaf, **times: float) -> AsyncIterator[Reader]:
    """Read without a line: what the gateway says is told to the reader by the test."""
    client = Client(discord.url, lambda _: None)
    api, bot = Api(client, Secret(TOKEN)), BotIdentity(channel="discord", account="default", id=str(BOT["id"]))
    chats = Chats(notebook)
    await chats.load()
    async with asyncio.timeout(PATIENCE), client, asyncio.TaskGroup() as tasks:
        await api.login()
        reader = Reader(
            bot=bot,
            chats=chats,
            backlog=Backlog(api, chats, **times),
            places=Places(api),
            interactions=Interactions(api, bot, StubBrowser(), tasks),
            pulse=Beats(),
            learn=lambda _user, _channel: None,
        )
        task = tasks.create_task(reader.run(core.deliver), name="reader")
        yield reader
        task.cancel()


async def known(discord: FakeDiscord, core: Core) -> LooseLeaf:
    """Have Ada and Bob talk to the bot, so that both are known to it."""
    notebook = LooseLeaf()
    async with reading(discord, core, notebook) as reader:
        for channel, author in ((ADAS, ADA), (BOBS, BOB)):
            reader.hear("MESSAGE_CREATE", discord.written("hello", channel=channel, author=author))
            await core.heard()
    return notebook


async def test_a_history_that_stays_away_holds_up_nobody_and_is_read_when_it_is_back(
    discord: FakeDiscord, core: Core
) -> None:
    notebook = await known(discord, core)
    discord.lost_histories = {ADAS}
    missed = [discord.written("missed"), discord.written("missed too", channel=BOBS, author=BOB)]
    async with reading(discord, core, notebook, patience=0.0, again=0.01) as reader:
        reader.hear("READY", {})
        assert (await core.heard()).message_id == missed[1]["id"]
        reader.hear("MESSAGE_CREATE", discord.written("live"))
        assert (await core.heard()).text == "live"
        discord.lost_histories.clear()
        assert (await core.heard()).message_id == missed[0]["id"]


async def test_the_place_in_a_chat_that_is_behind_is_kept_over_a_restart(discord: FakeDiscord, core: Core) -> None:
    notebook = await known(discord, core)
    discord.lost_histories = {ADAS}
    discord.written("missed")
    async with reading(discord, core, notebook, patience=0.0) as reader:
        reader.hear("READY", {})
        reader.hear("MESSAGE_CREATE", discord.written("live"))
        assert (await core.heard()).text == "live"
    discord.lost_histories.clear()
    async with reading(discord, core, notebook) as reader:
        reader.hear("READY", {})
        assert (await core.heard()).text == "missed"


async def test_a_history_that_is_back_soon_is_waited_for_to_keep_the_order(discord: FakeDiscord, core: Core) -> None:
    notebook = await known(discord, core)
    discord.lost_histories = {ADAS}
    discord.written("missed")
    async with reading(discord, core, notebook) as reader:
        reader.hear("READY", {})
        reader.hear("MESSAGE_CREATE", discord.written("live"))
        await discord.called("history", times=2)
        discord.lost_histories.clear()
        assert [(await core.heard()).text for _ in range(2)] == ["missed", "live"]


async def test_of_more_than_can_be_caught_up_on_the_newest_is(discord: FakeDiscord, core: Core) -> None:
    notebook = await known(discord, core)
    count = (PAGES + 2) * PAGE
    for number in range(count):
        discord.written(f"{number}")
    async with reading(discord, core, notebook) as reader:
        reader.hear("READY", {})
        texts = [(await core.heard()).text for _ in range(PAGES * PAGE)]
    oldest, newest = range(PAGE), range(count - (PAGES - 1) * PAGE, count)
    assert texts == [f"{number}" for number in (*oldest, *newest)]


@pytest.mark.parametrize(("verdict", "count"), [(Verdict.ACCEPTED, 1), (Verdict.DUPLICATE, 2)])
async def test_what_was_edited_before_it_was_read_is_new_unless_the_core_has_it(
    discord: FakeDiscord, core: Core, verdict: Verdict, count: int
) -> None:
    """Known by the edit alone, it would be answered again when its first reading comes, or another edit."""
    notebook = await known(discord, core)
    missed = discord.written("as it reads now", edited_timestamp="2026-01-01T00:00:00+00:00")
    core.verdict = verdict
    async with reading(discord, core, notebook) as reader:
        reader.hear("READY", {})
        reader.hear("MESSAGE_CREATE", discord.written("live", channel=BOBS, author=BOB))
        taken = [await core.heard() for _ in range(count + 1)]
    assert (taken[0].event_id, taken[0].edits, taken[0].text) == (missed["id"], None, "as it reads now")
    assert [each.edits for each in taken[1:]] == [missed["id"], None][2 - count :]


async def test_what_was_edited_before_it_was_read_is_not_read_again_after_a_crash(
    discord: FakeDiscord, core: Core
) -> None:
    notebook = await known(discord, core)
    missed = discord.written("as it reads now", edited_timestamp="2026-01-01T00:00:00+00:00")
    discord.written("next")
    async with reading(discord, core, notebook) as reader:
        reader.hear("READY", {})
        assert [(await core.heard()).text for _ in range(2)] == ["as it reads now", "next"]
        assert json.loads((await notebook.read())[f"chat:{ADAS}"])["read"] == int(missed["id"])


async def test_a_call_by_its_role_is_caught_up_on_though_the_gateway_has_not_told_of_the_role(
    discord: FakeDiscord, core: Core
) -> None:
    notebook = LooseLeaf()
    async with reading(discord, core, notebook) as reader:
        reader.hear("MESSAGE_CREATE", discord.written("hello", channel=CHANNEL, author=BOB, mentions=[BOT]))
        await core.heard()
    discord.gateway.guilds[0]["roles"] = [{"id": "951"}, {"id": "950", "tags": {"bot_id": BOT["id"]}}]
    for role in ("950", "951"):
        discord.written(f"<@&{role}> missed", channel=CHANNEL, author=BOB, mention_roles=[role])
    async with reading(discord, core, notebook) as reader:
        reader.hear("READY", {})
        caught = [await core.heard() for _ in range(2)]
    assert [(each.text, each.is_addressed) for each in caught] == [("missed", True), ("<@&951> missed", False)]
    assert len(discord.calls_of("roles")) == 1


async def test_a_first_message_that_was_dropped_in_a_flood_is_caught_up_on(discord: FakeDiscord, core: Core) -> None:
    async with reading(discord, core, LooseLeaf()) as reader:
        for _ in range(WAITING + 1):
            reader.hear("MESSAGE_CREATE", discord.written("flood"))
        reader.hear("MESSAGE_CREATE", discord.written("ahead", channel=BOBS, author=BOB))
        reader.hear("MESSAGE_CREATE", discord.written("behind", channel=BOBS, author=BOB))
        texts = [(await core.heard()).text for _ in range(WAITING + 3)]
        reader.hear("MESSAGE_CREATE", discord.written("later", channel=BOBS, author=BOB))
        assert (await core.heard()).text == "later"
    assert texts[-2:] == ["ahead", "behind"]


async def test_a_first_message_that_was_dropped_is_not_forgotten_while_the_history_stays_away(
    discord: FakeDiscord, core: Core
) -> None:
    notebook = LooseLeaf()
    async with reading(discord, core, notebook, patience=0.0, again=0.01) as reader:
        discord.lost_histories = {BOBS}
        for _ in range(WAITING + 1):
            reader.hear("MESSAGE_CREATE", discord.written("flood"))
        reader.hear("MESSAGE_CREATE", discord.written("dropped", channel=BOBS, author=BOB))
        for _ in range(WAITING + 1):
            assert (await core.heard()).text == "flood"
        reader.hear("READY", {})
        await discord.until(lambda: sum(ADAS in call.path for call in discord.calls_of("history")) > 1)
        discord.lost_histories.clear()
        assert (await core.heard()).text == "dropped"
    assert f"chat:{BOBS}" in await notebook.read()
