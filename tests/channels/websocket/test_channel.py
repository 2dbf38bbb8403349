import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from aiohttp import WSCloseCode, WSMsgType

from channels.websocket import WebSocketChannel
from channels.websocket.channel import MAX_MESSAGE_SIZE
from gateway.contract import Access, Address, OutboundKind, PeerKind, Route, Sender
from gateway.errors import HeldElsewhere
from gateway.testing import StubBrowser, StubPulse
from tests.channels.websocket.harness import (
    Served,
    context,
    frame,
    outbound,
    running,
    say,
    serving,
    serving_channel,
    transport_of,
)
from tests.http import harness as http

EMPTY_BEGINNING = b"\x01\x80mask"
EMPTY_FRAGMENT = b"\x00\x80mask"
"""As RFC 6455 has them: no end, text or continuation, masked, no payload."""


async def test_messages_are_refused_for_now_while_the_channel_is_not_running(idle: Served) -> None:
    async with idle.connected() as socket:
        await say(socket, "too early", "m1")
        assert (await frame(socket, "error"))["can_retry"]
        async with running(idle.channel, idle.core, idle.pulse):
            await say(socket, "in time", "m2")
            await frame(socket, "ack")
        await say(socket, "too late", "m3")
        assert (await frame(socket, "error"))["id"] == "m3"
    assert [inbound.text for inbound in idle.core.taken] == ["in time"]


class BrowserOfOtherNode(StubBrowser):
    is_shared = True

    def require_here(self, address: Address, sender: Sender) -> None:
        self.asked_for.append((address, sender))
        raise HeldElsewhere("a scope")

    @contextmanager
    def watched(self, address: Address, sender: Sender, _on_moved: Callable[[], None]) -> Iterator[None]:
        self.require_here(address, sender)
        yield


async def test_a_reply_to_a_chat_of_another_node_waits_for_its_next_connection() -> None:
    """A hook may answer into a chat whose browser is connected to the owner of that chat."""
    given = context(BrowserOfOtherNode(), StubPulse())
    await WebSocketChannel(given).send(outbound("ding"), key="k")
    assert any("ding" in value for value in (await given.notebook.read()).values())
    alone = context(StubBrowser(), StubPulse())
    await WebSocketChannel(alone).send(outbound("ding"), key="k")
    assert await alone.notebook.read() == {}, "the transcript has it"


@dataclass
class MovingBrowser(StubBrowser):
    """Its chats are at this node until `move` is called."""

    is_shared = True
    move: Callable[[], None] = print

    def require_here(self, address: Address, sender: Sender) -> None:
        pass

    @contextmanager
    def watched(self, _address: Address, _sender: Sender, on_moved: Callable[[], None]) -> Iterator[None]:
        self.move = on_moved
        yield


async def test_a_client_whose_chat_moves_gets_the_rest_and_connects_again() -> None:
    browser = MovingBrowser()
    async with serving_channel(browser=browser) as served, served.connected() as socket:
        await served.channel.send(outbound("the last words"), key="k")
        browser.move()
        assert (await socket.receive_json())["text"] == "the last words"
        assert (await socket.receive()).type is WSMsgType.CLOSE
        assert socket.close_code == WSCloseCode.SERVICE_RESTART


async def test_a_chat_of_another_node_gets_no_websocket(tmp_path: Path) -> None:
    """The request has to stay unanswered, so that it can be forwarded."""
    browser = BrowserOfOtherNode()
    channel = WebSocketChannel(context(browser, StubPulse()))
    route = Route(method="GET", path="/web/ws", access=Access.OWNER, handle=channel.serve)
    async with http.serving(tmp_path, [route]) as server:
        assert await server.upgrade("/web/ws", http.BEARER) == HTTPStatus.SERVICE_UNAVAILABLE
    address = Address(channel="web", kind=PeerKind.DIRECT, peer="owner")
    assert browser.asked_for == [(address, Sender(id="owner", name="owner", is_owner=True))]


async def test_an_answer_is_drafted_and_then_sent(served: Served) -> None:
    async with served.connected() as socket:
        await served.channel.draft(outbound("so"), key="k")
        assert await socket.receive_json() == {
            "type": "draft", "key": "k", "text": "so", "session": 1, "html": "<p>so</p>"
        }  # fmt: skip
        receipt = await served.channel.send(outbound("so far"), key="k")
        whole = await socket.receive_json()
        assert (whole["key"], whole["kind"], whole["html"]) == ("k", "reply", "<p>so far</p>")
        assert receipt.message_id == "k"


async def test_drafts_are_skipped_after_a_slow_one() -> None:
    renders: list[str] = []

    def render(text: str) -> str:
        renders.append(text)
        time.sleep(0.05)
        return text

    channel = WebSocketChannel(context(StubBrowser(), StubPulse()), render=render)
    for word in ("one", "one two", "one two three"):
        await channel.draft(outbound(word), key="k")
    await channel.send(outbound("the end"), key="k")
    assert renders == ["one", "the end"]


async def test_a_notice_waits_for_an_absent_peer_and_a_reply_does_not(served: Served) -> None:
    await served.channel.send(outbound("An answer."), key="r")
    await served.channel.send(outbound("A notice.", OutboundKind.NOTICE), key="n")
    async with served.connected() as socket:
        waited = await socket.receive_json()
        assert (waited["key"], waited["text"]) == ("n", "A notice.")
        assert "html" not in waited
        await socket.send_json({"type": "commands"})
        assert (await socket.receive_json())["type"] == "commands"


async def test_a_notice_waits_across_restarts_and_is_sent_once() -> None:
    """A reminder comes while no client is connected, and the daemon restarts before one connects."""
    room = context(StubBrowser(), StubPulse())
    for key in ("n1", "n2"):
        await WebSocketChannel(room).send(outbound(key, OutboundKind.NOTICE), key=key)
    await WebSocketChannel(room).send(outbound("not yours", OutboundKind.NOTICE, peer="another"), key="n3")
    route = Route(method="GET", path="/ws", access=Access.OWNER, handle=WebSocketChannel(room).serve)
    async with serving([route]) as client, client.ws_connect("/ws") as socket:
        assert [(await frame(socket, "message"))["key"] for _ in range(2)] == ["n1", "n2"]
        await socket.send_json({"type": "commands"})
        assert (await socket.receive_json())["type"] == "commands"
    assert set(await room.notebook.read()) == {"mail/another"}


async def test_a_huge_message_closes_the_connection(served: Served) -> None:
    async with served.connected() as socket:
        await socket.send_str("x" * (MAX_MESSAGE_SIZE + 1))
        assert (await socket.receive()).type is WSMsgType.CLOSE
        assert socket.close_code == 1009
    async with served.connected() as socket:
        await say(socket, "others do not notice")
        await frame(socket, "ack")


async def test_a_message_that_never_ends_closes_the_connection() -> None:
    """Fragments are data, so the heartbeat is content, but no message ever comes of them."""
    async with serving_channel(heartbeat=0.1) as served, served.connected() as socket:
        line, goodbye = transport_of(socket), asyncio.ensure_future(socket.receive())
        line.write(EMPTY_BEGINNING)
        while not goodbye.done():
            line.write(EMPTY_FRAGMENT)
            await asyncio.wait([goodbye], timeout=0.02)
        assert goodbye.result().type is WSMsgType.CLOSE
        assert socket.close_code == 1008


async def test_a_cancelled_handler_closes_the_socket_with_1001(served: Served) -> None:
    async with served.connected() as socket:
        [handler] = served.handlers
        handler.cancel()
        assert (await socket.receive()).type is WSMsgType.CLOSE
        assert socket.close_code == 1001
        await asyncio.wait([handler])
