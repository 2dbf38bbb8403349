import asyncio
from dataclasses import replace

import pytest

from gateway.contract import Address, Button, Outbound, PeerKind, Receipt, TextLimit
from gateway.delivery import ATTEMPTS, Delivery
from gateway.errors import ChannelError, Transient, Undeliverable

ADDRESS = Address(channel="wire", kind=PeerKind.DIRECT, peer="ada")
HELLO = Outbound(address=ADDRESS, text="hello")


class Wire:
    """A channel that fails as scripted, first in first out, and then accepts."""

    name = "wire"
    account = "default"
    text_limit = TextLimit(size=20)

    def __init__(self, *failures: ChannelError) -> None:
        self.failures = list(failures)
        self.accepted: list[tuple[str, Outbound]] = []
        self.tried: list[str] = []

    async def run(self, _deliver: object) -> None:
        await asyncio.Event().wait()

    async def send(self, message: Outbound, *, key: str) -> Receipt:
        self.tried.append(key)
        if self.failures:
            raise self.failures.pop(0)
        self.accepted.append((key, message))
        return Receipt(message_id=key)


class Naps:
    """A sleep that only notes how long it was asked for."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)


def delivery(wire: object, naps: Naps | None = None) -> Delivery:
    return Delivery({("wire", "default"): wire}, sleep=naps or Naps())  # type: ignore[dict-item]  # Channels with fewer abilities on purpose.


async def test_waits_as_long_as_the_platform_asked() -> None:
    naps, wire = Naps(), Wire(Transient("slow down", retry_after=17.0))
    assert await delivery(wire, naps).say(HELLO, key="k")
    assert naps.taken == [17.0]


async def test_every_retry_has_the_same_key() -> None:
    wire = Wire(Transient("lost"), Transient("lost"))
    assert await delivery(wire).say(HELLO, key="k")
    assert wire.tried == ["k", "k", "k"]


async def test_a_message_that_can_never_arrive_is_not_tried_again() -> None:
    wire = Wire(Undeliverable("blocked by the user"))
    assert not await delivery(wire).say(HELLO, key="k")
    assert wire.tried == ["k"]


async def test_gives_up_after_a_bounded_number_of_tries() -> None:
    wire = Wire(*[Transient("down")] * 100)
    assert not await delivery(wire).say(HELLO, key="k")
    assert len(wire.tried) == ATTEMPTS


async def test_long_text_goes_in_parts_that_fit_with_the_buttons_on_the_last() -> None:
    class WithButtons(Wire):
        max_buttons = 1

    wire = WithButtons()
    buttons = (Button(label="1", command="/one"), Button(label="2", command="/two"))
    long = replace(HELLO, text="one two three four five six seven eight", buttons=buttons)
    assert await delivery(wire).say(long, key="k")
    parts = [message for _, message in wire.accepted]
    assert len(parts) > 1
    assert all(len(part.text) <= 20 for part in parts)
    assert " ".join(part.text.strip() for part in parts) == long.text
    assert [part.buttons for part in parts[:-1]] == [()] * (len(parts) - 1)
    assert parts[-1].buttons == buttons[:1]
    assert len({key for key, _ in wire.accepted}) == len(parts)


async def test_a_broken_chat_delays_no_other() -> None:
    class HalfBroken(Wire):
        async def send(self, message: Outbound, *, key: str) -> Receipt:
            if message.address.peer == "broken":
                await asyncio.Event().wait()
            return await super().send(message, key=key)

    wire = HalfBroken()
    courier = delivery(wire)
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        stuck = tasks.create_task(courier.say(replace(HELLO, address=replace(ADDRESS, peer="broken")), key="a"))
        assert await courier.say(HELLO, key="b")
        stuck.cancel()


async def test_one_chat_keeps_its_order() -> None:
    class Slow(Wire):
        async def send(self, message: Outbound, *, key: str) -> Receipt:
            for _ in range(5 if key == "first" else 0):
                await asyncio.sleep(0)
            return await super().send(message, key=key)

    wire = Slow()
    courier = delivery(wire)
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        tasks.create_task(courier.say(HELLO, key="first"))
        tasks.create_task(courier.say(HELLO, key="second"))
    assert [key for key, _ in wire.accepted] == ["first", "second"]


async def test_a_message_to_a_channel_that_is_gone_is_reported() -> None:
    assert not await Delivery({}).say(HELLO, key="k")


class Easel(Wire):
    draft_pace = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.drafts: asyncio.Queue[str] = asyncio.Queue()

    async def draft(self, message: Outbound, *, key: str) -> None:
        self.drafts.put_nowait(f"{key}:{message.text}")


async def test_drafts_show_the_newest_text_and_end_with_the_turn() -> None:
    easel = Easel()
    async with asyncio.timeout(10), Delivery({("wire", "default"): easel}).drafting(HELLO, key="k") as draft:
        draft.show("a")
        draft.show("ab")
        assert await easel.drafts.get() == "k:ab"
        draft.show("abc")
        assert await easel.drafts.get() == "k:abc"


async def test_a_turn_that_fails_while_drafting_fails_plainly() -> None:
    """The tasks around it are ours; whoever handles the failure should not meet an exception group."""
    with pytest.raises(ValueError, match="the turn"):
        async with Delivery({("wire", "default"): Easel()}).drafting(HELLO, key="k"):
            raise ValueError("the turn")
