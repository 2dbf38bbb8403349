"""Helpers of the Discord tests: a channel, an event reader or a whole daemon that runs against a fake Discord."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from channels.discord import open_channel
from channels.discord.api import DiscordApi
from channels.discord.cache import GuildCache
from channels.discord.catchup import HistoryReader, ReadPositions
from channels.discord.events import EventReader
from channels.discord.gateway_connection import DiscordClient
from channels.discord.interactions import Interactions
from channels.discord.responses import CommandResponses
from channels.discord.wire import DiscordBot
from config import ChannelSettings, GatewaySettings, HttpSettings, Secret, Settings
from gateway.adapters.services import InMemoryStore
from gateway.build import open_daemon
from gateway.contract import Address, Channel, ChannelContext, Notebook, Outbound, OutboundKind, PeerKind
from gateway.daemon import Daemon
from gateway.testing import StubBrowser
from tests.channels.discord.fake_discord import ADA, BOT, CHANNEL, GUILD, THREAD, TOKEN, FakeDiscord, Json
from tests.channels.harness import TEST_TIMEOUT, Core, PulseRecorder, running

__all__ = ["Core", "PulseRecorder", "running"]

ADAS_CHAT = Address(channel="discord", kind=PeerKind.DIRECT, peer="42")
THREAD_CHAT = Address(channel="discord", kind=PeerKind.CHANNEL, peer=CHANNEL, thread=THREAD)
REPLY = Outbound(address=ADAS_CHAT, text="**good** day", kind=OutboundKind.REPLY, reply_to="9")


def open_discord(
    discord: FakeDiscord,
    pulse: PulseRecorder,
    *,
    token: str = TOKEN,
    notebook: Notebook | None = None,
    browser: StubBrowser | None = None,
) -> Channel:
    """Open a channel whose API is the fake server."""
    return open_channel(
        ChannelContext(
            name="discord",
            account="default",
            settings=ChannelSettings(token=Secret(token), api_base=discord.url),
            browser=browser or StubBrowser(),
            notebook=notebook or InMemoryStore(),
            pulse=pulse,
        )
    )


@asynccontextmanager
async def event_reader(
    discord: FakeDiscord, core: Core, notebook: InMemoryStore, **times: float
) -> AsyncIterator[EventReader]:
    """Run a reader without a gateway connection: the test passes the events to `receive`."""
    client = DiscordClient(discord.url, lambda _: None)
    api, bot = DiscordApi(client, Secret(TOKEN)), DiscordBot(channel="discord", account="default", id=str(BOT["id"]))
    positions = ReadPositions(notebook)
    await positions.load()
    async with asyncio.timeout(TEST_TIMEOUT), client, asyncio.TaskGroup() as tasks:
        await api.login()
        reader = EventReader(
            bot=bot,
            positions=positions,
            history=HistoryReader(api, positions, **times),
            guilds=GuildCache(api),
            interactions=Interactions(api, bot, StubBrowser(), CommandResponses(api), tasks),
            pulse=PulseRecorder(),
            on_direct_chat=lambda _user, _channel: None,
        )
        task = tasks.create_task(reader.run(core.deliver), name="reader")
        yield reader
        task.cancel()


def daemon_settings(
    folder: Path, discord: FakeDiscord, tables: Mapping[str, object] | None = None, **more: object
) -> Settings:
    channel = {"token": TOKEN, "api_base": discord.url, "allow": [ADA["id"]], "group_allow": [GUILD], **more}
    return Settings.model_validate(
        {
            "gateway": GatewaySettings(data_dir=folder / "data"),
            "http": HttpSettings(port=0),
            "channels": {"web": {"enabled": False}, "terminal": {"enabled": False}, "discord": channel},
            **(tables or {}),
        }
    )


@asynccontextmanager
async def running_daemon(discord: FakeDiscord, settings: Settings) -> AsyncIterator[Daemon]:
    """Run a daemon, and continue once its bot has logged in."""
    async with (
        asyncio.timeout(TEST_TIMEOUT),
        open_daemon(settings, listen=False) as daemon,
        asyncio.TaskGroup() as tasks,
    ):
        started, sessions = asyncio.Event(), len(discord.gateway.sessions)
        tasks.create_task(daemon.run(started.set), name="daemon")
        await started.wait()
        await discord.until(lambda: len(discord.gateway.sessions) > sessions)
        yield daemon
        daemon.stop()


async def shown(discord: FakeDiscord, text: str, channel: str = CHANNEL) -> Json:
    """Return the first message of the bot that contains `text`, waiting for it."""
    found: list[Json] = []

    def is_shown() -> bool:
        found[:] = [message for message in discord.sent(channel) if text in message["content"]]
        return bool(found)

    await discord.until(is_shown)
    return found[0]
