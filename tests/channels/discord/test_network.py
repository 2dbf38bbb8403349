"""Network faults between the whole gateway, with the real discord.py, and a fake Discord server."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.channels.cable import Cable, back, laid, noticed, settled
from tests.channels.discord.fake_discord import ADAS, FakeDiscord, discord_server
from tests.channels.discord.harness import daemon_settings, running_daemon, shown
from tests.daemon.harness import Parrot

NOTICED_WITHIN = 30.0
HEARTBEAT = 1.0


@pytest.fixture
async def discord() -> AsyncIterator[FakeDiscord]:
    async with discord_server() as discord:
        discord.gateway.interval = HEARTBEAT
        yield discord


@dataclass(frozen=True, slots=True)
class Cables:
    """One for each host of Discord: the REST API and the gateway."""

    rest: Cable
    gateway: Cable

    def cut(self) -> None:
        self.rest.cut()
        self.gateway.cut()

    def die(self) -> None:
        """Stall the gateway connection only: a REST call would notice at once."""
        self.gateway.die()

    async def heal(self) -> None:
        await self.rest.heal()
        await self.gateway.heal()


@pytest.fixture
async def cables(discord: FakeDiscord) -> AsyncIterator[Cables]:
    async with laid(discord.url) as rest, laid(discord.gateway.url) as gateway:
        discord.url = rest.through(discord.url)
        discord.gateway.url = gateway.through(discord.gateway.url)
        yield Cables(rest, gateway)


@pytest.mark.parametrize("fault", ["cut", "die"])
async def test_messages_written_during_a_network_outage_are_answered_once(
    tmp_path: Path, discord: FakeDiscord, cables: Cables, fault: str
) -> None:
    async with running_daemon(discord, daemon_settings(tmp_path, discord)) as daemon:
        Parrot.answering(daemon)
        await back(daemon)
        await discord.say("before")
        await shown(discord, "heard: before", ADAS)
        await settled(daemon)
        getattr(cables, fault)()
        await discord.say("during the outage")
        assert await noticed(daemon, within=NOTICED_WITHIN)
        await cables.heal()
        await back(daemon)
        await shown(discord, "heard: during the outage", ADAS)
        await discord.say("after")
        await shown(discord, "heard: after", ADAS)
    assert [message["content"] for message in discord.sent()] == [
        "heard: before",
        "heard: during the outage",
        "heard: after",
    ]


async def test_an_answer_waits_for_the_network_and_is_sent_once(
    tmp_path: Path, discord: FakeDiscord, cables: Cables
) -> None:
    parrot = Parrot()
    async with running_daemon(discord, daemon_settings(tmp_path, discord)) as daemon:
        parrot.installed(daemon)
        await back(daemon)
        await discord.say("hello")
        await parrot.is_asked.wait()
        cables.cut()
        parrot.may_answer.set()
        await noticed(daemon, within=NOTICED_WITHIN)
        await cables.heal()
        await shown(discord, "heard: hello", ADAS)
        await back(daemon)
    assert [message["content"] for message in discord.sent()] == ["heard: hello"]
