"""Telegram channels for tests: one against a fake Bot API, or one in a whole gateway."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from channels.telegram import open_channel
from config import ChannelSettings, GatewaySettings, HttpSettings, Secret, Settings
from gateway.adapters.services import InMemoryStore
from gateway.build import open_daemon
from gateway.contract import Address, Channel, ChannelContext, Outbound, OutboundKind, PeerKind
from gateway.daemon import Daemon
from gateway.testing import StubBrowser
from tests.channels.harness import Core, PulseRecorder, running
from tests.channels.telegram.bot_api import ADA, GROUP, TEST_TIMEOUT, TOKEN, Call, FakeBotApi

__all__ = [
    "HERE",
    "REPLY",
    "THERE",
    "Core",
    "PulseRecorder",
    "channel_context",
    "gateway",
    "heard",
    "opened",
    "running",
    "settings",
]

HERE = Address(channel="telegram", kind=PeerKind.DIRECT, peer="42")
THERE = Address(channel="telegram", kind=PeerKind.GROUP, peer="-1001", thread="7")
REPLY = Outbound(address=HERE, text="**good** day", kind=OutboundKind.REPLY, reply_to="9")


def channel_context(
    settings: ChannelSettings, *, pulse: PulseRecorder | None = None, account: str = "default"
) -> ChannelContext:
    async def relocate(old: Address, new: Address) -> None:
        raise AssertionError(f"unexpected move from {old} to {new}")

    return ChannelContext(
        name="telegram",
        account=account,
        settings=settings,
        browser=StubBrowser(),
        notebook=InMemoryStore(),
        pulse=pulse or PulseRecorder(),
        relocate=relocate,
    )


def opened(api: FakeBotApi, pulse: PulseRecorder, token: str = TOKEN) -> Channel:
    return open_channel(channel_context(ChannelSettings(token=Secret(token), api_base=api.url), pulse=pulse))


def settings(folder: Path, api: FakeBotApi, **options: object) -> Settings:
    """Return the settings of a gateway whose only channel is Telegram."""
    telegram = {"token": TOKEN, "api_base": api.url, "allow": [ADA["id"]], "group_allow": [GROUP["id"]], **options}
    return Settings.model_validate(
        {
            "gateway": GatewaySettings(data_dir=folder / "data"),
            "http": HttpSettings(port=0),
            "channels": {"web": {"enabled": False}, "terminal": {"enabled": False}, "telegram": telegram},
        }
    )


@asynccontextmanager
async def gateway(
    configured: Settings, *, listen: bool = False, now: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> AsyncIterator[Daemon]:
    async with (
        asyncio.timeout(TEST_TIMEOUT),
        open_daemon(configured, listen=listen, now=now) as daemon,
        asyncio.TaskGroup() as tasks,
    ):
        started = asyncio.Event()
        tasks.create_task(daemon.run(started.set), name="daemon")
        await started.wait()
        yield daemon
        daemon.stop()


async def heard(api: FakeBotApi, number: int) -> Call:
    """Wait for the `number`-th message that the bot sends, and return it."""
    return await api.called("sendMessage", times=number)
