import asyncio
from datetime import timedelta
from itertools import count

import pytest
from aiohttp import WSMsgType
from msgspec.structs import replace

from channels.websocket.connection import FRAMES_PER_SECOND, MAX_BURST, MAX_REFUSALS, TokenBucket
from channels.websocket.hub import MAX_CONNECTIONS
from channels.websocket.send_queue import MAX_FRAMES, PAUSE_READING_AT
from channels.websocket.wire import MAX_FRAME_SIZE
from gateway.contract import Address, EarlierMessage, Line, PeerKind, Sender, SentMessage, SessionInfo, Verdict
from gateway.errors import NotAccepted
from tests.channels.websocket.harness import NOON, Served, frame, outbound, running, say, serving_channel, transport_of


def test_a_token_bucket_allows_a_burst_and_then_its_rate() -> None:
    time = 0.0
    bucket = TokenBucket(rate=2, burst=3, clock=lambda: time)
    assert [bucket.take() for _ in range(5)] == [True, True, True, False, False]
    time = 1.0
    assert [bucket.take() for _ in range(3)] == [True, True, False]


def test_a_token_bucket_never_holds_more_than_a_burst() -> None:
    time = 0.0
    bucket = TokenBucket(rate=2, burst=3, clock=lambda: time)
    time = 1e6
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]


async def test_a_message_is_delivered_to_the_core(served: Served) -> None:
    async with served.connected() as socket:
        await say(socket, "hello there", "m1")
        assert (await frame(socket, "ack"))["verdict"] == "accepted"
    [inbound] = served.core.taken
    assert (inbound.text, inbound.event_id, inbound.message_id) == ("hello there", "m1", "m1")
    assert inbound.sender == Sender(id="owner", name="owner", is_owner=True)
    assert inbound.address == Address(channel="web", kind=PeerKind.DIRECT, peer="owner")


async def test_a_message_is_acknowledged_after_the_core_has_taken_it(served: Served) -> None:
    served.core.gate.clear()
    async with served.connected() as socket:
        await say(socket, "hello")
        await served.core.has_arrived.wait()
        await served.channel.send(outbound("a message in the meantime"), key="k")
        assert (await socket.receive_json())["type"] == "message"
        served.core.gate.set()
        assert (await socket.receive_json())["type"] == "ack"


@pytest.mark.parametrize("verdict", list(Verdict))
async def test_the_acknowledgement_has_the_verdict(served: Served, verdict: Verdict) -> None:
    served.core.verdict = verdict
    async with served.connected() as socket:
        await say(socket, "hello", "m1")
        ack = await frame(socket, "ack")
        assert (ack["id"], ack["verdict"]) == ("m1", verdict)


async def test_a_message_can_be_resent_after_a_transient_failure(served: Served) -> None:
    served.core.verdict = NotAccepted("the disk is full")
    async with served.connected() as socket:
        await say(socket, "hello", "m1")
        failure = await frame(socket, "error")
        assert (failure["id"], failure["can_retry"]) == ("m1", True)
        served.core.verdict = Verdict.ACCEPTED
        await say(socket, "hello", "m1")
        assert (await frame(socket, "ack"))["id"] == "m1"


async def test_a_message_is_echoed_to_the_other_connections_of_the_user(served: Served) -> None:
    async with served.connected() as socket, served.connected() as other:
        await say(socket, "hello", "m1")
        echo = await frame(other, "echo")
        assert (echo["id"], echo["text"]) == ("m1", "hello")
        assert (await socket.receive_json())["type"] == "ack"


async def test_a_duplicate_is_not_echoed(served: Served) -> None:
    served.core.verdict = Verdict.DUPLICATE
    async with served.connected() as socket, served.connected() as other:
        await say(socket, "hello", "m1")
        await frame(socket, "ack")
        await served.channel.send(outbound("next"), key="k")
        assert (await other.receive_json())["type"] == "message"


async def test_a_client_that_resends_a_message_gets_its_answers_again(served: Served) -> None:
    served.core.verdict = Verdict.DUPLICATE
    answer = replace(outbound("*hi*", session=3), reply_to="m1")
    sent = (SentMessage(key="t1", message=answer, at=NOON),)
    served.browser.earlier_messages["m1"] = EarlierMessage(turn="t1", session=3, answers=sent)
    served.browser.earlier_messages["m2"] = EarlierMessage(turn="t2", session=3, is_finished=False)
    async with served.connected() as socket:
        await say(socket, "hello", "m1")
        ack = await frame(socket, "ack")
        assert (ack["verdict"], ack["turn"], ack["session"], ack["is_finished"]) == ("duplicate", "t1", 3, True)
        again = await frame(socket, "message")
        assert (again["key"], again["reply_to"], again["session"], again["text"]) == ("t1", "m1", 3, "*hi*")
        await say(socket, "hello", "m2")
        ack = await frame(socket, "ack")
        assert (ack["turn"], "is_finished" in ack) == ("t2", False)


async def test_a_client_gets_its_own_sessions_history_and_commands(served: Served) -> None:
    served.browser.infos = [
        SessionInfo(number=2, title="Trip", messages=3, updated_at=NOON, is_active=True, id="a1", agent="main")
    ]
    served.browser.lines = [Line(role="user", text="<b>", at=NOON), Line(role="assistant", text="hi", at=NOON)]
    async with served.connected() as socket:
        await socket.send_json({"type": "sessions"})
        [session] = (await frame(socket, "sessions"))["sessions"]
        assert session == {
            "number": 2, "title": "Trip", "messages": 3, "updated_at": "2026-03-01T12:00:00Z", "is_active": True,
            "id": "a1", "agent": "main", "model": None,
        }  # fmt: skip
        await socket.send_json({"type": "history", "limit": 10})
        history = await frame(socket, "history")
        assert history["session"] == 2
        assert [line.get("html") for line in history["lines"]] == [None, "<p>hi</p>"]
        await socket.send_json({"type": "commands"})
        assert (await frame(socket, "commands"))["commands"][0]["name"] == "new"
    assert {address.peer for address, _ in served.browser.asked_for} == {"owner"}


async def test_a_history_too_big_for_one_frame_drops_its_oldest_lines(served: Served) -> None:
    served.browser.lines = [
        Line(role="assistant", text=f"{number}" * 300_000, at=NOON + timedelta(minutes=number)) for number in range(9)
    ]
    async with served.client.ws_connect("/ws", max_msg_size=0) as socket:
        await socket.send_json({"type": "history"})
        assert [line["text"][0] for line in (await frame(socket, "history"))["lines"]] == ["6", "7", "8"]


@pytest.mark.parametrize("raw", ["{", '{"type":"shout"}', "[]", "x" * (MAX_FRAME_SIZE + 1)])
async def test_the_connection_survives_a_bad_frame(served: Served, raw: str) -> None:
    async with served.connected() as socket:
        await socket.send_str(raw)
        assert (await socket.receive_json())["type"] == "error"
        await say(socket, "still here")
        assert (await socket.receive_json())["type"] == "ack"


async def test_the_connection_survives_a_binary_frame(served: Served) -> None:
    async with served.connected() as socket:
        await socket.send_bytes(b"\x00\xff")
        assert (await socket.receive_json())["type"] == "error"
        await say(socket, "still here")
        assert (await socket.receive_json())["type"] == "ack"


async def test_too_many_connections_of_one_peer_are_closed_with_1013(served: Served) -> None:
    sockets = [await served.client.ws_connect("/ws") for _ in range(MAX_CONNECTIONS)]
    for socket in sockets:
        await socket.receive_json()
    extra = await served.client.ws_connect("/ws")
    assert (await extra.receive()).type is WSMsgType.CLOSE
    assert extra.close_code == 1013
    for socket in sockets:
        await socket.close()


async def test_a_client_that_does_not_read_is_dropped_and_delays_no_other(served: Served) -> None:
    async with served.connected() as deaf, served.connected() as other:
        line = transport_of(deaf)
        line.pause_reading()
        for number in range(MAX_FRAMES * 3):
            await served.channel.send(outbound("x" * 100_000), key=f"k{number}")
            assert (await other.receive_json())["key"] == f"k{number}"
            if served.handlers[0].done():
                break
        assert served.handlers[0].done()
        line.abort()


async def test_a_lost_client_ends_its_handler(served: Served) -> None:
    async with served.connected() as socket:
        transport_of(socket).abort()
        [handler] = served.handlers
        await asyncio.wait([handler])
    await served.channel.send(outbound("Nobody hears this."), key="k")


@pytest.mark.parametrize("frames_per_second", [200, 10_000])
async def test_a_flood_gets_errors_and_is_then_closed(frames_per_second: int) -> None:
    """The clock is the test's own, so that the rate of the flood does not depend on the machine."""
    times = count(step=1 / frames_per_second / 2)  # Read twice for each refused frame, once for each bucket.
    async with (
        serving_channel(clock=lambda: next(times)) as served,
        running(served.channel, served.core, served.pulse),
        served.connected() as socket,
    ):
        for number in range(MAX_BURST + MAX_REFUSALS * 2):
            await say(socket, "flood", f"m{number}")
        kinds = [message.json()["type"] async for message in socket]
        assert socket.close_code == 1008
    assert MAX_BURST <= kinds.count("ack") <= MAX_BURST * 2
    # The errors that are still in the send queue are dropped with the connection.
    assert kinds.count("error") >= MAX_REFUSALS - PAUSE_READING_AT


async def test_a_client_within_its_rate_is_never_closed() -> None:
    times = count(step=1 / FRAMES_PER_SECOND)
    async with (
        serving_channel(clock=lambda: next(times)) as served,
        running(served.channel, served.core, served.pulse),
        served.connected() as socket,
    ):
        for number in range(MAX_BURST + MAX_REFUSALS * 2):
            await say(socket, "hello", f"m{number}")
            assert (await frame(socket, "ack"))["id"] == f"m{number}"


async def test_pings_are_answered_and_count_against_the_rate_limit() -> None:
    async with serving_channel(clock=lambda: 0.0) as served, served.client.ws_connect("/ws", autoping=False) as socket:
        await socket.receive_json()
        for _ in range(MAX_BURST + MAX_REFUSALS * 2):
            await socket.ping(b"hello?")
        received = [message.type async for message in socket]
        assert socket.close_code == 1008
    assert received == [WSMsgType.PONG] * MAX_BURST


async def test_unsolicited_pongs_count_against_the_rate_limit() -> None:
    async with serving_channel(clock=lambda: 0.0) as served, served.connected() as socket:
        for _ in range(MAX_BURST + MAX_REFUSALS * 2):
            await socket.pong()
        async for _ in socket:
            pass
        assert socket.close_code == 1008
