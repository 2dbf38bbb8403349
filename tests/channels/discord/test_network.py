"""Network faults between the whole gateway, with the real discord.py, and a fake Discord server."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.channels.discord.fake_discord import ADAS, FakeDiscord, discord_server
from tests.channels.discord.harness import daemon_settings, running_daemon, shown
from tests.channels.faulty_proxy import (
    FaultyProxy,
    faulty_proxy,
    wait_until_down,
    wait_until_ready,
    wait_until_replies_sent,
)
from tests.daemon.harness import Parrot

NOTICED_WITHIN = 30.0
HEARTBEAT = 1.0


@pytest.fixture
async def discord() -> AsyncIterator[FakeDiscord]:
    async with discord_server() as discord:
        discord.gateway.interval = HEARTBEAT
        yield discord


@dataclass(frozen=True, slots=True)
class Proxies:
    """One for each host of Discord: the REST API and the gateway."""

    rest: FaultyProxy
    gateway: FaultyProxy

    def disconnect(self) -> None:
        self.rest.disconnect()
        self.gateway.disconnect()

    def stall(self) -> None:
        """Stall the gateway connection only: a REST call would notice at once."""
        self.gateway.stall()

    async def restore(self) -> None:
        await self.rest.restore()
        await self.gateway.restore()


@pytest.fixture
async def proxies(discord: FakeDiscord) -> AsyncIterator[Proxies]:
    async with faulty_proxy(discord.url) as rest, faulty_proxy(discord.gateway.url) as gateway:
        discord.url = rest.url(discord.url)
        discord.gateway.url = gateway.url(discord.gateway.url)
        yield Proxies(rest, gateway)


@pytest.mark.parametrize("fault", ["disconnect", "stall"])
async def test_messages_written_during_a_network_outage_are_answered_once(
    tmp_path: Path, discord: FakeDiscord, proxies: Proxies, fault: str
) -> None:
    async with running_daemon(discord, daemon_settings(tmp_path, discord)) as daemon:
        Parrot.answering(daemon)
        await wait_until_ready(daemon)
        await discord.say("before")
        await shown(discord, "heard: before", ADAS)
        await wait_until_replies_sent(daemon)
        getattr(proxies, fault)()
        await discord.say("during the outage")
        assert await wait_until_down(daemon, within=NOTICED_WITHIN)
        await proxies.restore()
        await wait_until_ready(daemon)
        await shown(discord, "heard: during the outage", ADAS)
        await discord.say("after")
        await shown(discord, "heard: after", ADAS)
    assert [message["content"] for message in discord.sent()] == [
        "heard: before",
        "heard: during the outage",
        "heard: after",
    ]


async def test_an_answer_waits_for_the_network_and_is_sent_once(
    tmp_path: Path, discord: FakeDiscord, proxies: Proxies
) -> None:
    parrot = Parrot()
    async with running_daemon(discord, daemon_settings(tmp_path, discord)) as daemon:
        parrot.installed(daemon)
        await wait_until_ready(daemon)
        await discord.say("hello")
        await parrot.is_asked.wait()
        proxies.disconnect()
        parrot.may_answer.set()
        await wait_until_down(daemon, within=NOTICED_WITHIN)
        await proxies.restore()
        await shown(discord, "heard: hello", ADAS)
        await wait_until_ready(daemon)
    assert [message["content"] for message in discord.sent()] == ["heard: hello"]
