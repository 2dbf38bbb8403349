import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import ClientWebSocketResponse, WSMsgType, web
from aiohttp.test_utils import TestClient

from channels.websocket import SocketChannel
from channels.websocket.channel import HEARTBEAT, MAX_MESSAGE_SIZE
from channels.websocket.connection import FRAMES_AT_ONCE, PATIENCE
from channels.websocket.hub import MAX_CONNECTIONS
from channels.websocket.send_queue import MAX_FRAMES
from channels.websocket.wire import MAX_FRAME_SIZE
from gateway.contract import Access, Address, Caller, Line, OutboundKind, PeerKind, Route, Sender, SessionInfo, Verdict
from gateway.errors import Transient
from tests.channels.websocket.harness import (
    NOON,
    Core,
    StubBrowser,
    StubPulse,
    context,
    frame,
    outbound,
    running,
    say,
    serving,
)

EMPTY_BEGINNING = b"\x01\x80mask"
EMPTY_FRAGMENT = b"\x00\x80mask"
"""As RFC 6455 has them: no end, text or continuation, masked, no payload."""


@dataclass(slots=True, kw_only=True)
class Served:
    endpoint: SocketChannel
    core: Core
    browser: StubBrowser
    pulse: StubPulse
    client: TestClient[Any, Any]
    handlers: list[asyncio.Task[Any]]

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[ClientWebSocketResponse]:
        async with self.client.ws_connect("/ws") as socket:
            assert await socket.receive_json() == {
                "type": "hello",
                "name": "owner",
                "max_frame_bytes": MAX_FRAME_SIZE,
            }
            yield socket


@asynccontextmanager
async def an_endpoint(heartbeat: float = HEARTBEAT) -> AsyncIterator[Served]:
    browser, pulse = StubBrowser(), StubPulse()
    endpoint = SocketChannel(context(browser, pulse), render=lambda text: f"<p>{text}</p>", heartbeat=heartbeat)
    handlers: list[asyncio.Task[Any]] = []

    async def handle(request: web.Request, caller: Caller) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        handlers.append(task)
        return await endpoint.serve(request, caller)

    route = Route(method="GET", path="/ws", access=Access.OWNER, handle=handle)
    async with serving([route]) as client:
        yield Served(endpoint=endpoint, core=Core(), browser=browser, pulse=pulse, client=client, handlers=handlers)


@pytest.fixture
async def idle() -> AsyncIterator[Served]:
    async with an_endpoint() as served:
        yield served


@pytest.fixture
async def served(idle: Served) -> AsyncIterator[Served]:
    async with running(idle.endpoint, idle.core, idle.pulse):
        yield idle


def transport_of(socket: ClientWebSocketResponse) -> asyncio.Transport:
    """Return what is below the socket, to misbehave with."""
    connection = socket._response.connection  # noqa: SLF001 - a well-behaved client has no public way to do this.
    assert connection is not None
    assert isinstance(connection.transport, asyncio.Transport)
    return connection.transport


async def test_what_is_said_reaches_the_core_whole(served: Served) -> None:
    async with served.connected() as socket:
        await say(socket, "hello there", "m1")
        assert (await frame(socket, "ack"))["verdict"] == "accepted"
    [inbound] = served.core.taken
    assert (inbound.text, inbound.event_id, inbound.message_id) == ("hello there", "m1", "m1")
    assert inbound.sender == Sender(id="owner", name="owner", is_owner=True)
    assert inbound.address == Address(channel="web", kind=PeerKind.DIRECT, peer="owner")


async def test_nothing_is_acknowledged_before_the_core_has_taken_it(served: Served) -> None:
    served.core.gate.clear()
    async with served.connected() as socket:
        await say(socket, "hello")
        await served.core.has_arrived.wait()
        await served.endpoint.send(outbound("meanwhile"), key="k")
        assert (await socket.receive_json())["type"] == "message"
        served.core.gate.set()
        assert (await socket.receive_json())["type"] == "ack"


@pytest.mark.parametrize("verdict", list(Verdict))
async def test_the_client_learns_the_verdict(served: Served, verdict: Verdict) -> None:
    served.core.verdict = verdict
    async with served.connected() as socket:
        await say(socket, "hello", "m1")
        ack = await frame(socket, "ack")
        assert (ack["id"], ack["verdict"]) == ("m1", verdict)


async def test_what_is_not_taken_now_can_be_sent_again(served: Served) -> None:
    served.core.verdict = Transient("the disk is full")
    async with served.connected() as socket:
        await say(socket, "hello", "m1")
        failure = await frame(socket, "error")
        assert (failure["id"], failure["can_retry"]) == ("m1", True)
        served.core.verdict = Verdict.ACCEPTED
        await say(socket, "hello", "m1")
        assert (await frame(socket, "ack"))["id"] == "m1"


async def test_before_and_after_it_runs_the_client_is_asked_to_try_again(idle: Served) -> None:
    async with idle.connected() as socket:
        await say(socket, "too early", "m1")
        assert (await frame(socket, "error"))["can_retry"]
        async with running(idle.endpoint, idle.core, idle.pulse):
            await say(socket, "in time", "m2")
            await frame(socket, "ack")
        await say(socket, "too late", "m3")
        assert (await frame(socket, "error"))["id"] == "m3"
    assert [inbound.text for inbound in idle.core.taken] == ["in time"]


async def test_other_tabs_see_what_was_typed_in_one(served: Served) -> None:
    async with served.connected() as socket, served.connected() as other:
        await say(socket, "hello", "m1")
        echo = await frame(other, "echo")
        assert (echo["id"], echo["text"]) == ("m1", "hello")
        assert (await socket.receive_json())["type"] == "ack"


async def test_a_repeated_message_is_not_echoed_again(served: Served) -> None:
    served.core.verdict = Verdict.DUPLICATE
    async with served.connected() as socket, served.connected() as other:
        await say(socket, "hello", "m1")
        await frame(socket, "ack")
        await served.endpoint.send(outbound("next"), key="k")
        assert (await other.receive_json())["type"] == "message"


async def test_an_answer_is_drafted_and_then_whole(served: Served) -> None:
    async with served.connected() as socket:
        await served.endpoint.draft(outbound("so"), key="k")
        assert await socket.receive_json() == {
            "type": "draft", "key": "k", "text": "so", "session": 1, "html": "<p>so</p>"
        }  # fmt: skip
        receipt = await served.endpoint.send(outbound("so far"), key="k")
        whole = await socket.receive_json()
        assert (whole["key"], whole["kind"], whole["html"]) == ("k", "reply", "<p>so far</p>")
        assert receipt.message_id == "k"


async def test_drafts_that_are_slow_to_render_become_fewer() -> None:
    renders: list[str] = []

    def render(text: str) -> str:
        renders.append(text)
        time.sleep(0.05)
        return text

    endpoint = SocketChannel(context(StubBrowser(), StubPulse()), render=render)
    for word in ("one", "one two", "one two three"):
        await endpoint.draft(outbound(word), key="k")
    await endpoint.send(outbound("the end"), key="k")
    assert renders == ["one", "the end"]


async def test_a_notice_waits_for_who_is_away_and_a_reply_is_in_the_history(served: Served) -> None:
    await served.endpoint.send(outbound("An answer."), key="r")
    await served.endpoint.send(outbound("A notice.", OutboundKind.NOTICE), key="n")
    async with served.connected() as socket:
        waited = await socket.receive_json()
        assert (waited["key"], waited["text"]) == ("n", "A notice.")
        assert "html" not in waited
        await socket.send_json({"type": "commands"})
        assert (await socket.receive_json())["type"] == "commands"


async def test_a_notice_waits_over_restarts_and_is_handed_over_once() -> None:
    """A reminder comes when nobody is there, and the daemon is restarted before somebody is."""
    room = context(StubBrowser(), StubPulse())
    for key in ("n1", "n2"):
        await SocketChannel(room).send(outbound(key, OutboundKind.NOTICE), key=key)
    await SocketChannel(room).send(outbound("not yours", OutboundKind.NOTICE, peer="another"), key="n3")
    route = Route(method="GET", path="/ws", access=Access.OWNER, handle=SocketChannel(room).serve)
    async with serving([route]) as client, client.ws_connect("/ws") as socket:
        assert [(await frame(socket, "message"))["key"] for _ in range(2)] == ["n1", "n2"]
        await socket.send_json({"type": "commands"})
        assert (await socket.receive_json())["type"] == "commands"
    assert set(await room.notebook.read()) == {"mail/another"}


async def test_shows_sessions_history_and_commands_of_the_caller_only(served: Served) -> None:
    served.browser.infos = [SessionInfo(number=2, title="Trip", messages=3, updated_at=NOON, is_active=True)]
    served.browser.lines = [Line(role="user", text="<b>", at=NOON), Line(role="assistant", text="hi", at=NOON)]
    async with served.connected() as socket:
        await socket.send_json({"type": "sessions"})
        [session] = (await frame(socket, "sessions"))["sessions"]
        assert session == {
            "number": 2, "title": "Trip", "messages": 3, "updated_at": "2026-03-01T12:00:00Z", "is_active": True
        }  # fmt: skip
        await socket.send_json({"type": "history", "limit": 10})
        history = await frame(socket, "history")
        assert history["session"] == 2
        assert [line.get("html") for line in history["lines"]] == [None, "<p>hi</p>"]
        await socket.send_json({"type": "commands"})
        assert (await frame(socket, "commands"))["commands"][0]["name"] == "new"
    assert {address.peer for address, _ in served.browser.asked_for} == {"owner"}


async def test_a_history_too_big_for_one_frame_loses_its_oldest_lines(served: Served) -> None:
    served.browser.lines = [
        Line(role="assistant", text=f"{number}" * 300_000, at=NOON + timedelta(minutes=number)) for number in range(9)
    ]
    async with served.client.ws_connect("/ws", max_msg_size=0) as socket:
        await socket.send_json({"type": "history"})
        assert [line["text"][0] for line in (await frame(socket, "history"))["lines"]] == ["6", "7", "8"]


@pytest.mark.parametrize("raw", ["{", '{"type":"shout"}', "[]", "x" * (MAX_FRAME_SIZE + 1)])
async def test_a_bad_frame_is_answered_and_the_connection_survives(served: Served, raw: str) -> None:
    async with served.connected() as socket:
        await socket.send_str(raw)
        assert (await socket.receive_json())["type"] == "error"
        await say(socket, "still here")
        assert (await socket.receive_json())["type"] == "ack"


async def test_a_binary_frame_is_answered_and_the_connection_survives(served: Served) -> None:
    async with served.connected() as socket:
        await socket.send_bytes(b"\x00\xff")
        assert (await socket.receive_json())["type"] == "error"
        await say(socket, "still here")
        assert (await socket.receive_json())["type"] == "ack"


async def test_a_frame_beyond_all_measure_closes_the_connection_cleanly(served: Served) -> None:
    async with served.connected() as socket:
        await socket.send_str("x" * (MAX_MESSAGE_SIZE + 1))
        assert (await socket.receive()).type is WSMsgType.CLOSE
        assert socket.close_code == 1009
    async with served.connected() as socket:
        await say(socket, "others do not notice")
        await frame(socket, "ack")


async def test_a_flood_is_answered_first_and_closed_if_it_goes_on(served: Served) -> None:
    async with served.connected() as socket:
        for number in range(FRAMES_AT_ONCE + PATIENCE * 2):
            await say(socket, "flood", f"m{number}")
        received = [message async for message in socket]
        kinds = [message.json()["type"] for message in received]
        assert socket.close_code == 1008
    assert FRAMES_AT_ONCE <= kinds.count("ack") <= FRAMES_AT_ONCE + 60
    assert kinds.count("error") >= 100


async def test_pings_are_answered_within_the_same_limit(served: Served) -> None:
    async with served.client.ws_connect("/ws", autoping=False) as socket:
        await socket.receive_json()
        await socket.ping(b"are you there")
        assert (await socket.receive()).type is WSMsgType.PONG
        for _ in range(FRAMES_AT_ONCE + PATIENCE * 2):
            await socket.ping()
        async for _ in socket:
            pass
        assert socket.close_code == 1008


async def test_pongs_that_nobody_asked_for_are_limited_too(served: Served) -> None:
    async with served.connected() as socket:
        for _ in range(FRAMES_AT_ONCE + PATIENCE * 2):
            await socket.pong()
        async for _ in socket:
            pass
        assert socket.close_code == 1008


async def test_a_message_without_end_is_given_up() -> None:
    """Fragments are data, so the heartbeat is content, but no message ever comes of them."""
    async with an_endpoint(heartbeat=0.1) as served, served.connected() as socket:
        line, goodbye = transport_of(socket), asyncio.ensure_future(socket.receive())
        line.write(EMPTY_BEGINNING)
        while not goodbye.done():
            line.write(EMPTY_FRAGMENT)
            await asyncio.wait([goodbye], timeout=0.02)
        assert goodbye.result().type is WSMsgType.CLOSE
        assert socket.close_code == 1008


async def test_a_peer_with_too_many_connections_is_told_to_come_later(served: Served) -> None:
    sockets = [await served.client.ws_connect("/ws") for _ in range(MAX_CONNECTIONS)]
    for socket in sockets:
        await socket.receive_json()
    extra = await served.client.ws_connect("/ws")
    assert (await extra.receive()).type is WSMsgType.CLOSE
    assert extra.close_code == 1013
    for socket in sockets:
        await socket.close()


async def test_a_reader_who_takes_nothing_is_dropped_and_delays_nobody(served: Served) -> None:
    async with served.connected() as deaf, served.connected() as other:
        line = transport_of(deaf)
        line.pause_reading()
        for number in range(MAX_FRAMES * 3):
            await served.endpoint.send(outbound("x" * 100_000), key=f"k{number}")
            assert (await other.receive_json())["key"] == f"k{number}"
            if served.handlers[0].done():
                break
        assert served.handlers[0].done()
        line.abort()


async def test_a_cancelled_handler_says_goodbye(served: Served) -> None:
    async with served.connected() as socket:
        [handler] = served.handlers
        handler.cancel()
        assert (await socket.receive()).type is WSMsgType.CLOSE
        assert socket.close_code == 1001
        await asyncio.wait([handler])


async def test_a_client_that_vanishes_leaves_nothing_behind(served: Served) -> None:
    async with served.connected() as socket:
        transport_of(socket).abort()
        [handler] = served.handlers
        await asyncio.wait([handler])
    await served.endpoint.send(outbound("Nobody hears this."), key="k")
