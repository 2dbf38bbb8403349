"""Fixtures of the Discord tests: a fake Discord server, and a channel that runs against it."""

from collections.abc import AsyncIterator

import pytest

from gateway.contract import Channel
from tests.channels.discord.fake_discord import FakeDiscord, discord_server
from tests.channels.discord.harness import Core, PulseRecorder, open_discord, running


@pytest.fixture
async def discord() -> AsyncIterator[FakeDiscord]:
    async with discord_server() as discord:
        yield discord


@pytest.fixture
async def channel(discord: FakeDiscord, core: Core, pulse: PulseRecorder) -> AsyncIterator[Channel]:
    channel = open_discord(discord, pulse)
    async with running(channel, core.deliver, pulse):
        yield channel
