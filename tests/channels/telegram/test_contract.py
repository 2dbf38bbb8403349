"""Telegram in the contract suite of all channels."""

from collections.abc import AsyncIterator

import pytest

from gateway.contract import Address, Channel, PeerKind
from gateway.testing import Core, FarSide
from gateway.testing.suite import ChannelContract
from tests.channels.harness import RecordingFarSide
from tests.channels.telegram.bot_api import ADA, FakeBotApi, bot_api, visible
from tests.channels.telegram.harness import PulseRecorder, opened, running


class TelegramFarSide(RecordingFarSide):
    """Ada's Telegram."""

    address = Address(channel="telegram", kind=PeerKind.DIRECT, peer=str(ADA["id"]))

    def __init__(self, api: FakeBotApi, channel: Channel, core: Core) -> None:
        super().__init__(channel, core)
        self._api = api
        self._heard = 0

    async def say(self, text: str, event_id: str) -> str:
        await self._api.say(text, message_id=int(event_id.removeprefix("e")))
        return await self.outcomes.get()

    async def say_with_file(self, text: str, event_id: str, *, name: str, content: bytes) -> str:
        self._api.files["F1"] = content
        document = {"file_id": "F1", "file_unique_id": "U1", "file_name": name, "mime_type": "text/plain"}
        number = int(event_id.removeprefix("e"))
        await self._api.say("", message_id=number, document=document, caption=text or None)
        return await self.outcomes.get()

    async def get_file(self) -> bytes:
        sent = (await self._api.called("sendDocument")).fields
        return sent["document"].encode("latin-1")

    async def hear(self) -> str:
        self._heard += 1
        sent = await self._api.called("sendMessage", times=self._heard)
        return visible(sent.fields["text"]) if "parse_mode" in sent.fields else sent.fields["text"]


class TestTelegram(ChannelContract):
    @pytest.fixture
    async def far_side(self, core: Core) -> AsyncIterator[FarSide]:
        pulse = PulseRecorder()
        async with bot_api() as api:
            side = TelegramFarSide(api, opened(api, pulse), core)
            async with running(side.channel, side.deliver, pulse):
                yield side
