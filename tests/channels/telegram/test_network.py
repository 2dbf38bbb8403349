"""Telegram over a network that breaks: the whole gateway, through a proxy that can fail."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from config import Settings
from tests.channels.faulty_proxy import (
    FaultyProxy,
    faulty_proxy,
    wait_until_down,
    wait_until_ready,
    wait_until_replies_sent,
)
from tests.channels.telegram.bot_api import FakeBotApi
from tests.channels.telegram.harness import gateway, heard, settings
from tests.daemon.harness import Parrot

NOTICED_WITHIN = 20.0
"""Seconds. Far more than a poll of one second with its slack takes, and far less than a poll takes by default."""


@pytest.fixture
async def proxy(api: FakeBotApi) -> AsyncIterator[FaultyProxy]:
    async with faulty_proxy(api.url) as proxy:
        yield proxy


def through(proxy: FaultyProxy, api: FakeBotApi, folder: Path) -> Settings:
    return settings(folder, api, api_base=proxy.url(api.url), options={"poll_seconds": 1})


@pytest.mark.parametrize("fault", ["disconnect", "stall"])
async def test_a_message_sent_during_a_network_outage_is_answered_once(
    tmp_path: Path, api: FakeBotApi, proxy: FaultyProxy, fault: str
) -> None:
    """Telegram considers updates delivered that it wrote to a dead connection."""
    async with gateway(through(proxy, api, tmp_path)) as daemon:
        await api.say("before")
        await heard(api, 1)
        await wait_until_replies_sent(daemon)
        getattr(proxy, fault)()
        await api.say("during")
        assert "Telegram" in await wait_until_down(daemon, within=NOTICED_WITHIN)
        assert len(api.calls_of("sendMessage")) == 1
        await proxy.restore()
        await wait_until_ready(daemon)
        await heard(api, 2)
        await api.acknowledged()
        await api.say("after")
        await heard(api, 3)
    assert len(api.calls_of("sendMessage")) == 3


async def test_an_answer_waits_for_the_network_and_is_sent_once(
    tmp_path: Path, api: FakeBotApi, proxy: FaultyProxy
) -> None:
    parrot = Parrot()
    async with gateway(through(proxy, api, tmp_path)) as daemon:
        parrot.installed(daemon)
        await api.say("hello")
        await parrot.is_asked.wait()
        proxy.disconnect()
        parrot.may_answer.set()
        await wait_until_down(daemon, within=NOTICED_WITHIN)
        await proxy.restore()
        assert (await heard(api, 1)).fields["text"] == "heard: hello"
        await wait_until_ready(daemon)
    assert len(api.calls_of("sendMessage")) == 1


async def test_a_connection_that_breaks_now_and_then_loses_no_message(
    tmp_path: Path, api: FakeBotApi, proxy: FaultyProxy
) -> None:
    async with gateway(through(proxy, api, tmp_path)) as daemon:
        for number in range(1, 4):
            await api.say(f"message {number}")
            await heard(api, number)
            await wait_until_replies_sent(daemon)
            await api.acknowledged()
            proxy.reset()
        await wait_until_ready(daemon)
    assert len(api.calls_of("sendMessage")) == 3
