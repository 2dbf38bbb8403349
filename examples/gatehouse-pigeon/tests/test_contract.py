"""Runs Gatehouse's contract suite against the pigeon channel."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from gatehouse_pigeon import open_channel

from config import ChannelSettings
from gateway.contract import Address, Channel, Inbound, PeerKind, Verdict
from gateway.errors import CannotStart, Transient
from gateway.testing import NOT_TAKEN, Core, FarSide, StubBrowser, StubPulse, context, running
from gateway.testing.suite import ChannelContract

TIMEOUT = 30
ADA = Address(channel="pigeon", kind=PeerKind.DIRECT, peer="ada")


def open_pigeon(loft: Path, pulse: StubPulse) -> Channel:
    settings = ChannelSettings(options={"loft": str(loft)})
    return open_channel(context("pigeon", StubBrowser(), pulse, settings))


class Ada:
    """A person with pigeons. Records the outcome of each letter by wrapping `deliver`."""

    address = ADA

    def __init__(self, loft: Path, channel: Channel, core: Core) -> None:
        self.channel = channel
        self._loft = loft
        self._core = core
        self._outcomes: asyncio.Queue[str] = asyncio.Queue()

    async def deliver(self, inbound: Inbound) -> Verdict:
        try:
            verdict = await self._core.deliver(inbound)
        except Transient:
            await self._outcomes.put(NOT_TAKEN)
            raise
        await self._outcomes.put(verdict)
        return verdict

    async def say(self, text: str, event_id: str) -> str:
        letter = self._loft / "in" / f"{event_id}.json"
        if not letter.exists():
            unfinished = letter.with_suffix(".unfinished")
            unfinished.write_text(json.dumps({"from": "ada", "text": text}))
            unfinished.replace(letter)
        async with asyncio.timeout(TIMEOUT):
            outcome = await self._outcomes.get()
            # The channel acknowledges a letter by deleting it.
            while outcome != NOT_TAKEN and letter.exists():  # noqa: ASYNC110 - a folder sends no events.
                await asyncio.sleep(0)
        return outcome

    async def hear(self) -> str:
        (letter,) = (self._loft / "out").glob("*.json")
        return str(json.loads(letter.read_text())["text"])


class TestPigeon(ChannelContract):
    @pytest.fixture
    async def far_side(self, core: Core, tmp_path: Path) -> AsyncIterator[FarSide]:
        pulse = StubPulse()
        ada = Ada(tmp_path, open_pigeon(tmp_path, pulse), core)
        async with running(ada.channel, ada.deliver, pulse):
            yield ada


@pytest.mark.parametrize("raw", [b"", b"[]", b'{"text": "x"}', b'{"from": "", "text": "x"}', b"x" * 200_000])
async def test_an_invalid_letter_is_moved_away(tmp_path: Path, raw: bytes) -> None:
    core, pulse = Core(), StubPulse()
    channel = open_pigeon(tmp_path, pulse)
    async with asyncio.timeout(TIMEOUT), running(channel, core.deliver, pulse):
        (tmp_path / "in" / "0.json").write_bytes(raw)
        while not (tmp_path / "in" / "refused" / "0.json").exists():  # noqa: ASYNC110 - as above.
            await asyncio.sleep(0)
    assert not core.taken


def test_a_missing_loft_is_a_config_error() -> None:
    with pytest.raises(CannotStart, match=r"options\.loft"):
        open_channel(context("pigeon", StubBrowser(), StubPulse()))
