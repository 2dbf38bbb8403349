from collections.abc import AsyncIterator

import pytest

from tests.channels.websocket.harness import Served, running, serving_channel


@pytest.fixture
async def idle() -> AsyncIterator[Served]:
    async with serving_channel() as served:
        yield served


@pytest.fixture
async def served(idle: Served) -> AsyncIterator[Served]:
    async with running(idle.channel, idle.core, idle.pulse):
        yield idle
