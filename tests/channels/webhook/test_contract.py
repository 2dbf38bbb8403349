"""Runs the contract suite against the webhook channel. The far side is a program that gets callbacks."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path
from time import time

import pytest
from msgspec.structs import replace

from channels.webhook import open_channel
from channels.webhook.channel import WebhookChannel
from config import ChannelSettings
from gateway.adapters.services import post_safely
from gateway.contract import Address, Inbound, Outbound, OutboundKind, PeerKind, Verdict
from gateway.testing import NOT_TAKEN, Core, FarSide, StubBrowser, StubPulse, context, running
from gateway.testing.suite import TEXTS, ChannelContract
from tests.channels.webhook.harness import Receiver, callback, receiving, sign_standard
from tests.http.harness import Running, serving


class ProgramFarSide:
    def __init__(self, channel: WebhookChannel, served: Running, receiver: Receiver, core: Core) -> None:
        self.channel = channel
        self.address = Address(channel="webhook", kind=PeerKind.CHANNEL, peer="ci")
        self._served = served
        self._receiver = receiver
        self._core = core

    async def deliver(self, inbound: Inbound) -> Verdict:
        """Pass on the text without its quotes."""
        return await self._core.deliver(replace(inbound, text=json.loads(inbound.text)))

    async def say(self, text: str, event_id: str) -> str:
        body = json.dumps({"text": text}).encode()
        status = await self._served.status(
            "POST", "/hooks/ci", data=body, headers=sign_standard(body, event_id, time())
        )
        return Verdict.ACCEPTED if status == 202 else NOT_TAKEN

    async def hear(self) -> str:
        return str((await self._receiver.next()).data["data"]["text"])


class TestWebhook(ChannelContract):
    @pytest.fixture
    async def far_side(self, core: Core, tmp_path: Path) -> AsyncIterator[FarSide]:
        pulse = StubPulse()
        async with asyncio.timeout(60), receiving() as receiver:
            hooks = {"ci": callback(receiver, prompt="{text}", fields={"text": "/text"})}
            made = context("webhook", StubBrowser(), pulse, ChannelSettings.model_validate({"hooks": hooks}))
            channel = open_channel(dataclasses.replace(made, post=post_safely))
            assert isinstance(channel, WebhookChannel)
            async with serving(tmp_path, channel.routes()) as served:
                program = ProgramFarSide(channel, served, receiver, core)
                async with running(channel, program.deliver, pulse):
                    yield program

    @pytest.mark.parametrize("text", TEXTS)
    async def test_text_arrives_unchanged(self, far_side: FarSide, core: Core, text: str) -> None:
        """Programs get answers, and no notices."""
        await far_side.say(text, "e1")
        assert core.taken[0].text == text
        await far_side.channel.send(Outbound(address=far_side.address, text=text, kind=OutboundKind.REPLY), key="k1")
        assert await far_side.hear() == text
