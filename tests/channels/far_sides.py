"""The far side of each channel for the contract suite: a person's client on the platform."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from aiohttp import ClientWebSocketResponse

from channels.loopback import LoopbackChannel
from channels.loopback import open_channel as open_loopback
from channels.terminal import open_channel as open_terminal
from channels.web import open_channel as open_web
from gateway.contract import Address, Attachment, AttachmentKind, Channel, HasRoutes, OpenChannel, PeerKind
from gateway.errors import NotAccepted
from gateway.testing import NOT_TAKEN, Core, FarSide, StubBrowser, StubPulse
from tests.channels.websocket.harness import context, frame, running, serving


class LoopbackFarSide:
    def __init__(self, channel: LoopbackChannel) -> None:
        self.channel = channel
        self.address = Address(channel="loopback", kind=PeerKind.DIRECT, peer="owner")

    async def say(self, text: str, event_id: str) -> str:
        try:
            return await self.channel.say(text, peer="owner", event_id=event_id)
        except NotAccepted:
            return NOT_TAKEN

    async def say_with_file(self, text: str, event_id: str, *, name: str, content: bytes) -> str:
        self.channel.files["F1"] = content
        file = Attachment(kind=AttachmentKind.FILE, name=name, media_type="text/plain", size=len(content), ref="F1")
        return await self.channel.say(text, peer="owner", event_id=event_id, attachments=[file])

    async def get_file(self) -> bytes:
        return (await self.channel.hear()).content

    async def hear(self) -> str:
        return (await self.channel.hear_message()).text


class SocketFarSide:
    def __init__(self, channel: Channel, socket: ClientWebSocketResponse) -> None:
        self.channel = channel
        self.address = Address(channel=channel.name, kind=PeerKind.DIRECT, peer="owner")
        self._socket = socket

    async def say(self, text: str, event_id: str) -> str:
        await self._socket.send_json({"type": "message", "id": event_id, "text": text})
        while True:
            received = await self._socket.receive_json()
            if received["type"] == "ack":
                return str(received["verdict"])
            if received["type"] == "error":
                return NOT_TAKEN

    async def get_file(self) -> None:
        """Check that the message has a file. A page downloads it from the gateway."""
        assert (await frame(self._socket, "message"))["file"]["name"] == "note.txt"

    async def hear(self) -> str:
        return str((await frame(self._socket, "message"))["text"])


@asynccontextmanager
async def loopback(core: Core) -> AsyncIterator[FarSide]:
    pulse = StubPulse()
    channel = open_loopback(context(StubBrowser(), pulse, "loopback"))
    assert isinstance(channel, LoopbackChannel)
    async with asyncio.timeout(60), running(channel, core, pulse):
        yield LoopbackFarSide(channel)


def over_socket(
    open_channel: OpenChannel, name: str, path: str
) -> Callable[[Core], AbstractAsyncContextManager[FarSide]]:
    @asynccontextmanager
    async def far_side(core: Core) -> AsyncIterator[FarSide]:
        pulse = StubPulse()
        channel = open_channel(context(StubBrowser(), pulse, name))
        assert isinstance(channel, HasRoutes)
        async with (
            running(channel, core, pulse),
            serving(channel.routes()) as client,
            client.ws_connect(path) as socket,
        ):
            yield SocketFarSide(channel, socket)

    return far_side


FAR_SIDES: dict[str, Callable[[Core], AbstractAsyncContextManager[FarSide]]] = {
    "loopback": loopback,
    "terminal": over_socket(open_terminal, "terminal", "/terminal/ws"),
    "web": over_socket(open_web, "web", "/web/ws"),
}
"""A new channel that needs no fake platform is added here."""
