from collections.abc import AsyncIterator

import pytest

from gateway.contract import Channel
from tests.channels.telegram.bot_api import FakeBotApi, bot_api
from tests.channels.telegram.harness import Core, PulseRecorder, opened, running


@pytest.fixture
async def api() -> AsyncIterator[FakeBotApi]:
    async with bot_api() as api:
        yield api


@pytest.fixture
async def channel(api: FakeBotApi, core: Core, pulse: PulseRecorder) -> AsyncIterator[Channel]:
    channel = opened(api, pulse)
    async with running(channel, core.deliver, pulse):
        yield channel
