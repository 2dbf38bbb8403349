from contextlib import ExitStack

import pytest
from msgspec.structs import replace

from channels.websocket.hub import (
    MAX_CONNECTIONS,
    MAX_MAILBOX_SIZE,
    MAX_MAILBOXES,
    MAX_RECENT_MESSAGES,
    Hub,
    TooManyConnections,
)
from channels.websocket.send_queue import SendQueue
from channels.websocket.wire import MessageFrame
from gateway.testing import StubBrowser, StubPulse
from tests.channels.websocket.harness import NOON, context


def new_hub(*, keeps_replies: bool = False) -> Hub:
    return Hub(context(StubBrowser(), StubPulse()).notebook, keeps_replies=keeps_replies)


def send_queue() -> SendQueue:
    return SendQueue(abort=lambda: None)


def notice(key: str) -> MessageFrame:
    return MessageFrame(key=key, kind="notice", text="Something happened.", at=NOON)


def reply(key: str) -> MessageFrame:
    return MessageFrame(key=key, kind="reply", text="An answer.", at=NOON, session=1)


async def test_a_frame_reaches_every_connection_of_its_peer_and_no_other() -> None:
    hub, first, second, other = new_hub(), send_queue(), send_queue(), send_queue()
    with hub.joined("a", first), hub.joined("a", second), hub.joined("b", other):
        assert hub.broadcast("a", reply("k"))
    assert [len(queue.unsent()) for queue in (first, second, other)] == [1, 1, 0]


async def test_broadcast_returns_false_for_a_peer_without_a_connection() -> None:
    hub = new_hub()
    with hub.joined("a", send_queue()):
        pass
    assert not hub.broadcast("a", reply("k"))


async def test_kept_messages_go_to_the_next_connection_once() -> None:
    hub, first, second = new_hub(), send_queue(), send_queue()
    await hub.keep("a", notice("n1"))
    await hub.keep("a", notice("n1"))
    await hub.keep("a", notice("n2"))
    with hub.joined("a", first), hub.joined("a", second):
        assert first.unsent() == [notice("n1"), notice("n2")]
        assert second.unsent() == []


async def test_an_unsent_notice_waits_for_the_next_connection() -> None:
    hub, lost, next_one = new_hub(), send_queue(), send_queue()
    with hub.joined("a", lost):
        hub.broadcast("a", reply("r1"))
        hub.broadcast("a", notice("n1"))
    with hub.joined("a", next_one):
        assert next_one.unsent() == [notice("n1")]


async def test_an_unsent_reply_waits_if_replies_are_kept() -> None:
    hub, gone, reader = new_hub(keeps_replies=True), send_queue(), send_queue()
    with hub.joined("a", gone):
        hub.broadcast("a", reply("r"))
    with hub.joined("a", reader):
        assert reader.unsent() == [reply("r")]


async def test_a_reply_of_another_channel_waits_because_no_transcript_of_the_peer_has_it() -> None:
    hub = new_hub()
    assert not hub.keeps(reply("k"))
    other = replace(reply("k"), session=None)
    assert hub.keeps(other)
    await hub.keep("a", other)
    with hub.joined("a", queue := send_queue()):
        assert queue.unsent() == [other]


async def test_a_full_mailbox_drops_its_oldest_notice() -> None:
    hub, reader = new_hub(), send_queue()
    for number in range(MAX_MAILBOX_SIZE + 5):
        await hub.keep("a", notice(f"n{number}"))
    with hub.joined("a", reader):
        assert reader.unsent() == [notice(f"n{number}") for number in range(5, MAX_MAILBOX_SIZE + 5)]


async def test_a_full_mailbox_drops_replies_before_notices() -> None:
    """Replies are in the transcript too; a reminder is only here."""
    hub, reader = new_hub(), send_queue()
    await hub.keep("a", notice("reminder"))
    for number in range(MAX_MAILBOX_SIZE + 5):
        await hub.keep("a", reply(f"r{number}"))
    with hub.joined("a", reader):
        assert reader.unsent() == [notice("reminder"), *(reply(f"r{each}") for each in range(6, MAX_MAILBOX_SIZE + 5))]


async def test_the_number_of_mailboxes_is_bounded() -> None:
    hub, first, last = new_hub(), send_queue(), send_queue()
    for number in range(MAX_MAILBOXES + 1):
        await hub.keep(f"p{number}", notice("n"))
    with hub.joined("p0", first), hub.joined(f"p{MAX_MAILBOXES}", last):
        assert (first.unsent(), last.unsent()) == ([], [notice("n")])


async def test_the_number_of_connections_per_peer_is_bounded() -> None:
    hub = new_hub()
    with ExitStack() as stack:
        for _ in range(MAX_CONNECTIONS):
            stack.enter_context(hub.joined("a", send_queue()))
        with pytest.raises(TooManyConnections), hub.joined("a", send_queue()):
            pass
        stack.enter_context(hub.joined("b", send_queue()))
    with hub.joined("a", send_queue()):
        pass


async def test_recent_answers_are_bounded() -> None:
    hub = new_hub()
    for number in range(MAX_RECENT_MESSAGES + 1):
        hub.broadcast("a", replace(reply(f"k{number}"), reply_to=f"m{number}"))
    hub.broadcast("a", replace(notice("q"), reply_to="m5", is_question=True))
    assert [said.key for said in hub.recent_answers("a", "m5")] == ["k5"]
    assert not hub.recent_answers("a", "m0")
    assert not hub.recent_answers("b", "m5")


async def test_the_mailbox_of_a_peer_follows_it_to_another_node() -> None:
    notebook = context(StubBrowser(), StubPulse()).notebook
    here, there = Hub(notebook, is_shared=True), Hub(notebook, is_shared=True)
    for hub in (here, there):
        await hub.load()
    await here.keep("a", notice("n1"))
    await there.keep("a", notice("n2"))
    await there.refresh("a")
    queue = send_queue()
    with there.joined("a", queue):
        await there.forget("a")
    assert queue.unsent() == [notice("n1"), notice("n2")]
    await here.refresh("a")
    again = send_queue()
    with here.joined("a", again):
        assert again.unsent() == []
