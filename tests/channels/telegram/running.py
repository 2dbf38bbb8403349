"""A Telegram channel that runs against a fake Bot API, and how it is doing."""

from channels.telegram import open_channel
from config import ChannelSettings, Secret
from gateway.contract import Channel, ChannelContext
from gateway.notebook import LooseLeaf
from gateway.testing import StubBrowser
from tests.channels.at_work import Beats, Core, running
from tests.channels.telegram.bot_api import TOKEN, FakeBotApi

__all__ = ["Beats", "Core", "opened", "running"]


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
