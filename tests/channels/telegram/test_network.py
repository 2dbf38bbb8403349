"""Telegram over a network that breaks: the real aiogram, the whole gateway, and a cable in between."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from config import Settings
from tests.channels.cable import Cable, back, laid, noticed, settled
from tests.channels.telegram.bot_api import FakeBotApi, bot_api
from tests.channels.telegram.test_daemon import gateway, heard, settings
from tests.daemon.harness import Parrot

NOTICED_WITHIN = 20.0
"""Far more than the poll of one second and its slack take, for slow machines; far less than polls take by default."""


@pytest.fixture
async def api() -> AsyncIterator[FakeBotApi]:
    async with bot_api() as api:
        yield api


@pytest.fixture
async def cable(api: FakeBotApi) -> AsyncIterator[Cable]:
    async with laid(api.url) as cable:
        yield cable


def through(cable: Cable, api: FakeBotApi, folder: Path) -> Settings:
    return settings(folder, api, api_base=cable.through(api.url), options={"poll_seconds": 1})


@pytest.mark.parametrize("fault", ["cut", "die"])
async def test_what_is_written_while_the_network_is_away_is_answered_once(
    tmp_path: Path, api: FakeBotApi, cable: Cable, fault: str
) -> None:
    """Telegram itself believes that it has delivered what a dead connection has swallowed."""
    async with gateway(through(cable, api, tmp_path)) as daemon:
        await api.say("before")
        await heard(api, 1)
        await settled(daemon)
        getattr(cable, fault)()
        await api.say("meanwhile")
        assert "Telegram" in await noticed(daemon, within=NOTICED_WITHIN)
        assert len(api.calls_of("sendMessage")) == 1
        await cable.heal()
        await back(daemon)
        await heard(api, 2)
        await api.acknowledged()
        await api.say("after")
        await heard(api, 3)
    assert len(api.calls_of("sendMessage")) == 3


async def test_an_answer_waits_until_the_network_is_back_and_comes_once(
    tmp_path: Path, api: FakeBotApi, cable: Cable
) -> None:
    parrot = Parrot()
    async with gateway(through(cable, api, tmp_path)) as daemon:
        parrot.installed(daemon)
        await api.say("hello")
        await parrot.is_asked.wait()
        cable.cut()
        parrot.may_answer.set()
        await noticed(daemon, within=NOTICED_WITHIN)
        await cable.heal()
        assert (await heard(api, 1)).fields["text"] == "heard: hello"
        await back(daemon)
    assert len(api.calls_of("sendMessage")) == 1


async def test_a_connection_that_breaks_now_and_then_costs_nothing(
    tmp_path: Path, api: FakeBotApi, cable: Cable
) -> None:
    async with gateway(through(cable, api, tmp_path)) as daemon:
        for number in range(1, 4):
            await api.say(f"message {number}")
            await heard(api, number)
            await settled(daemon)
            await api.acknowledged()
            cable.tear()
        await back(daemon)
    assert len(api.calls_of("sendMessage")) == 3
