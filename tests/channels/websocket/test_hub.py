from contextlib import ExitStack

import pytest
from msgspec.structs import replace

from channels.websocket.hub import MAX_CONNECTIONS, MAX_MAILBOXES, MAX_NOTES, MAX_SAID, Hub, TooManyConnections
from channels.websocket.send_queue import Outlet
from channels.websocket.wire import Message
from tests.channels.websocket.harness import NOON


def outlet() -> Outlet:
    return Outlet(abort=lambda: None)


def notice(key: str) -> Message:
    return Message(key=key, kind="notice", text="Something happened.", at=NOON)


def reply(key: str) -> Message:
    return Message(key=key, kind="reply", text="An answer.", at=NOON)


async def test_everybody_at_a_peer_hears_and_nobody_else() -> None:
    hub, here, also_here, elsewhere = Hub(), outlet(), outlet(), outlet()
    with hub.joined("a", here), hub.joined("a", also_here), hub.joined("b", elsewhere):
        assert hub.broadcast("a", reply("k"))
    assert [len(one.unsent()) for one in (here, also_here, elsewhere)] == [1, 1, 0]


async def test_says_when_nobody_is_there() -> None:
    hub = Hub()
    with hub.joined("a", outlet()):
        pass
    assert not hub.broadcast("a", reply("k"))


async def test_who_comes_next_finds_the_notes_and_only_once() -> None:
    hub, first, second = Hub(), outlet(), outlet()
    hub.leave_note("a", notice("n1"))
    hub.leave_note("a", notice("n1"))
    hub.leave_note("a", notice("n2"))
    with hub.joined("a", first), hub.joined("a", second):
        assert first.unsent() == [notice("n1"), notice("n2")]
        assert second.unsent() == []


async def test_a_notice_that_did_not_get_out_waits_for_the_next_connection() -> None:
    hub, lost, next_one = Hub(), outlet(), outlet()
    with hub.joined("a", lost):
        hub.broadcast("a", reply("r1"))
        hub.broadcast("a", notice("n1"))
    with hub.joined("a", next_one):
        assert next_one.unsent() == [notice("n1")]


async def test_a_reply_that_did_not_get_out_waits_too_where_replies_are_kept() -> None:
    hub, gone, reader = Hub(keeps_replies=True), outlet(), outlet()
    with hub.joined("a", gone):
        hub.broadcast("a", reply("r"))
    with hub.joined("a", reader):
        assert reader.unsent() == [reply("r")]


async def test_a_mailbox_keeps_the_newest_notes() -> None:
    hub, reader = Hub(), outlet()
    for number in range(MAX_NOTES + 5):
        hub.leave_note("a", notice(f"n{number}"))
    with hub.joined("a", reader):
        assert reader.unsent() == [notice(f"n{number}") for number in range(5, MAX_NOTES + 5)]


async def test_in_a_full_mailbox_replies_give_way_to_notices() -> None:
    """They are in the transcript too; a reminder is nowhere else."""
    hub, reader = Hub(), outlet()
    hub.leave_note("a", notice("reminder"))
    for number in range(MAX_NOTES + 5):
        hub.leave_note("a", reply(f"r{number}"))
    with hub.joined("a", reader):
        assert reader.unsent() == [notice("reminder"), *(reply(f"r{each}") for each in range(6, MAX_NOTES + 5))]


async def test_the_number_of_mailboxes_is_bounded() -> None:
    hub, first, last = Hub(), outlet(), outlet()
    for number in range(MAX_MAILBOXES + 1):
        hub.leave_note(f"p{number}", notice("n"))
    with hub.joined("p0", first), hub.joined(f"p{MAX_MAILBOXES}", last):
        assert (first.unsent(), last.unsent()) == ([], [notice("n")])


async def test_a_peer_has_a_bounded_number_of_connections() -> None:
    hub = Hub()
    with ExitStack() as stack:
        for _ in range(MAX_CONNECTIONS):
            stack.enter_context(hub.joined("a", outlet()))
        with pytest.raises(TooManyConnections), hub.joined("a", outlet()):
            pass
        stack.enter_context(hub.joined("b", outlet()))
    with hub.joined("a", outlet()):
        pass


async def test_what_was_said_is_remembered_where_replies_are_kept_and_only_so_much_of_it() -> None:
    keeping, hub = Hub(keeps_replies=True), Hub()
    for number in range(MAX_SAID + 1):
        for each in (keeping, hub):
            each.broadcast("a", replace(reply(f"k{number}"), reply_to=f"m{number}"))
    keeping.broadcast("a", replace(notice("q"), reply_to="m5", is_question=True))
    assert [said.key for said in keeping.answers("a", "m5")] == ["k5"]
    assert not keeping.answers("a", "m0")
    assert not keeping.answers("b", "m5")
    assert not hub.answers("a", "m5")
