"""Runs the contract suite against the Discord channel."""

import re
from collections.abc import AsyncIterator

import pytest

from gateway.contract import Address, Channel, PeerKind
from gateway.testing import Core, FarSide
from gateway.testing.suite import ChannelContract
from tests.channels.discord.fake_discord import ADA, ADAS, FakeDiscord, discord_server
from tests.channels.discord.harness import PulseRecorder, open_discord, running
from tests.channels.harness import RecordingFarSide


class DiscordFarSide(RecordingFarSide):
    """Ada's Discord client."""

    address = Address(channel="discord", kind=PeerKind.DIRECT, peer=str(ADA["id"]))

    def __init__(self, discord: FakeDiscord, channel: Channel, core: Core) -> None:
        super().__init__(channel, core)
        self._discord = discord
        self._heard = 0

    async def say(self, text: str, event_id: str) -> str:
        await self._discord.say(text, channel=ADAS, id=str(1000 + int(event_id.removeprefix("e"))))
        return await self.outcomes.get()

    async def say_with_file(self, text: str, event_id: str, *, name: str, content: bytes) -> str:
        self._discord.files[name] = content
        url = f"{self._discord.url}/files/{name}"
        file = {"id": "8", "filename": name, "size": len(content), "content_type": "text/plain", "url": url}
        await self._discord.say(text, id=str(1000 + int(event_id.removeprefix("e"))), attachments=[file])
        return await self.outcomes.get()

    async def get_file(self) -> bytes:
        (content,) = (await self._discord.heard(1))["files"]
        return str(content).encode("latin-1")

    async def hear(self) -> str:
        self._heard += 1
        shown = (await self._discord.heard(self._heard))["content"]
        return re.sub(r"\\([^\w\s])", r"\1", shown)


class TestDiscord(ChannelContract):
    @pytest.fixture
    async def far_side(self, core: Core) -> AsyncIterator[FarSide]:
        pulse = PulseRecorder()
        async with discord_server() as discord:
            side = DiscordFarSide(discord, open_discord(discord, pulse), core)
            async with running(side.channel, side.deliver, pulse):
                yield side
