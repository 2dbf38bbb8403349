"""A Discord channel that runs against a fake Discord, and how it is doing."""

from channels.discord import open_channel
from config import ChannelSettings, Secret
from gateway.contract import Channel, ChannelContext, Notebook
from gateway.notebook import LooseLeaf
from gateway.testing import StubBrowser
from tests.channels.at_work import Beats, Core, running
from tests.channels.discord.server import TOKEN, FakeDiscord

__all__ = ["Beats", "Core", "opened", "running"]


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
