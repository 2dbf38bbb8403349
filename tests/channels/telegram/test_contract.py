"""Telegram in the suite that holds every channel."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.contract import Address, Channel, Inbound, PeerKind, Verdict
from gateway.errors import Transient
from tests.channels.far_sides import NOT_TAKEN, FarSide
from tests.channels.sockets.serving import Core
from tests.channels.telegram.bot_api import ADA, FakeBotApi, bot_api, visible
from tests.channels.telegram.running import Beats, opened, running
from tests.channels.test_contract import (
    core,
    test_a_repeated_event_has_the_same_id,
    test_it_is_acknowledged_only_once_the_core_has_it,
    test_it_says_who_it_is_and_what_fits,
    test_order_is_kept,
    test_text_arrives_as_it_is,
    test_what_is_said_reaches_the_core_with_all_that_a_reply_needs,
    test_what_is_sent_is_heard_and_receipted,
)

__all__ = [
    "core",
    "test_a_repeated_event_has_the_same_id",
    "test_it_is_acknowledged_only_once_the_core_has_it",
    "test_it_says_who_it_is_and_what_fits",
    "test_order_is_kept",
    "test_text_arrives_as_it_is",
    "test_what_is_said_reaches_the_core_with_all_that_a_reply_needs",
    "test_what_is_sent_is_heard_and_receipted",
]


class TelegramFarSide:
    """Ada's Telegram. What the core made of each message is known by listening in on `deliver`."""

    address = Address(channel="telegram", kind=PeerKind.DIRECT, peer=str(ADA["id"]))

    def __init__(self, api: FakeBotApi, channel: Channel, core: Core) -> None:
        self.channel = channel
        self._api = api
        self._core = core
        self._outcomes: asyncio.Queue[str] = asyncio.Queue()
        self._heard = 0

    async def deliver(self, inbound: Inbound) -> Verdict:
        try:
            verdict = await self._core.deliver(inbound)
        except Transient:
            await self._outcomes.put(NOT_TAKEN)
            raise
        await self._outcomes.put(verdict)
        return verdict

    async def say(self, text: str, event_id: str) -> str:
        await self._api.say(text, message_id=int(event_id.removeprefix("e")))
        return await self._outcomes.get()

    async def hear(self) -> str:
        self._heard += 1
        sent = await self._api.called("sendMessage", times=self._heard)
        return visible(sent.fields["text"]) if "parse_mode" in sent.fields else sent.fields["text"]


@pytest.fixture
async def far_side(core: Core) -> AsyncIterator[FarSide]:
    beats = Beats()
    async with bot_api() as api:
        side = TelegramFarSide(api, opened(api, beats), core)
        async with running(side.channel, side.deliver, beats):
            yield side
