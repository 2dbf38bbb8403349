"""A Discord channel that runs against a fake Discord, and how it is doing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from channels.discord import open_channel
from config import ChannelSettings, Secret
from gateway.contract import Channel, ChannelContext, Deliver, Inbound, Notebook, Verdict
from gateway.notebook import LooseLeaf
from tests.channels.discord.server import PATIENCE, TOKEN, FakeDiscord
from tests.channels.sockets.serving import StubBrowser
from tests.channels.telegram.running import Beats

__all__ = ["Beats", "Core", "opened", "running"]


@dataclass(slots=True)
class Core:
    """Takes every message, unless it has `troubles`, which it raises first."""

    taken: asyncio.Queue[Inbound] = field(default_factory=asyncio.Queue)
    troubles: list[Exception] = field(default_factory=list)
    verdict: Verdict = Verdict.ACCEPTED

    async def deliver(self, inbound: Inbound) -> Verdict:
        if self.troubles:
            raise self.troubles.pop(0)
        await self.taken.put(inbound)
        return self.verdict

    async def heard(self) -> Inbound:
        async with asyncio.timeout(PATIENCE):
            return await self.taken.get()


def opened(
    discord: FakeDiscord,
    beats: Beats,
    *,
    token: str = TOKEN,
    notebook: Notebook | None = None,
    browser: StubBrowser | None = None,
    require_mention: bool = True,
) -> Channel:
    settings = ChannelSettings(token=Secret(token), api_base=discord.url, require_mention=require_mention)
    return open_channel(
        ChannelContext(
            name="discord",
            account="default",
            settings=settings,
            browser=browser or StubBrowser(),
            notebook=notebook or LooseLeaf(),
            pulse=beats,
        )
    )


@asynccontextmanager
async def running(channel: Channel, deliver: Deliver, beats: Beats) -> AsyncIterator[None]:
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as tasks:
        task = tasks.create_task(channel.run(deliver), name="channel")
        await beats.wait_for("up".__eq__)
        yield
        task.cancel()
