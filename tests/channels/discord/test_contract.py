"""Discord in the suite that holds every channel."""

import asyncio
import re
from collections.abc import AsyncIterator

import pytest

from gateway.contract import Address, Channel, Inbound, PeerKind, Verdict
from gateway.errors import Transient
from gateway.testing import NOT_TAKEN, Core, FarSide
from gateway.testing.suite import ChannelContract
from tests.channels.discord.running import Beats, opened, running
from tests.channels.discord.server import ADA, ADAS, FakeDiscord, discord_server


class DiscordFarSide:
    """Ada's Discord. What the core made of each message is known by listening in on `deliver`."""

    address = Address(channel="discord", kind=PeerKind.DIRECT, peer=str(ADA["id"]))

    def __init__(self, discord: FakeDiscord, channel: Channel, core: Core) -> None:
        self.channel = channel
        self._discord = discord
        self._core = core
        self._outcomes: asyncio.Queue[str] = asyncio.Queue()
        self._heard = 0

    async def deliver(self, inbound: Inbound) -> Verdict:
        try:
            verdict = await self._core.deliver(inbound)
        except Transient:
            await self._outcomes.put(NOT_TAKEN)
            raise
        await self._outcomes.put(verdict)
        return verdict

    async def say(self, text: str, event_id: str) -> str:
        await self._discord.say(text, channel=ADAS, id=str(1000 + int(event_id.removeprefix("e"))))
        return await self._outcomes.get()

    async def say_with_file(self, text: str, event_id: str, *, name: str, content: bytes) -> str:
        self._discord.files[name] = content
        url = f"{self._discord.url}/files/{name}"
        file = {"id": "8", "filename": name, "size": len(content), "content_type": "text/plain", "url": url}
        await self._discord.say(text, id=str(1000 + int(event_id.removeprefix("e"))), attachments=[file])
        return await self._outcomes.get()

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
        beats = Beats()
        async with discord_server() as discord:
            side = DiscordFarSide(discord, opened(discord, beats), core)
            async with running(side.channel, side.deliver, beats):
                yield side
