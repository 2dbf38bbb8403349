"""A Telegram channel that runs against a fake Bot API, and how it is doing."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from channels.telegram import open_channel
from config import ChannelSettings, Secret
from gateway.contract import Channel, ChannelContext, Deliver
from gateway.notebook import LooseLeaf
from tests.channels.sockets.serving import StubBrowser
from tests.channels.telegram.bot_api import PATIENCE, TOKEN, FakeBotApi


@dataclass(slots=True)
class Beats:
    """A pulse that remembers."""

    heard: list[str] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def up(self) -> None:
        self.down("up")

    def down(self, reason: str) -> None:
        self.heard.append(reason)
        self._changed.set()

    async def wait_for(self, is_there: Callable[[str], bool]) -> None:
        while not any(map(is_there, self.heard)):
            self._changed.clear()
            await self._changed.wait()


def opened(api: FakeBotApi, beats: Beats, token: str = TOKEN) -> Channel:
    settings = ChannelSettings(token=Secret(token), api_base=api.url)
    return open_channel(
        ChannelContext(
            name="telegram",
            account="default",
            settings=settings,
            browser=StubBrowser(),
            notebook=LooseLeaf(),
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
