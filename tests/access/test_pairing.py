"""What holds of codes whatever the clock and the disk do."""

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.access.guests import CODE_LIFE, FACTS, GuestBook, Person
from gateway.access.pairing import MAX_WAITING, Pairing
from gateway.contract import Address, Inbound, PeerKind, Sender
from gateway.errors import Refused
from gateway.spool import Operation, Spool, SpoolFull


class House:
    """A pairing with a clock that is set by hand; `told` is what strangers were told."""

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        self.now = datetime(2026, 3, 1, tzinfo=UTC)
        self.told: list[str] = []
        self.pairing = Pairing(GuestBook(), spool, now=lambda: self.now)

    async def tell(self, text: str, operations: Sequence[Operation]) -> None:
        await self.spool.commit(*operations)
        self.told.append(text)

    async def ask(self, sender: str = "666", channel: str = "loopback") -> str:
        address = Address(channel=channel, kind=PeerKind.DIRECT, peer=sender)
        inbound = Inbound(address=address, sender=Sender(id=sender), event_id="1", text="hi", sent_at=self.now)
        await self.pairing.ask(inbound, self.tell)
        person = Person.of(address, inbound.sender)
        found = self.pairing.book.applicants.get(person)
        return found.code if found else ""

    async def reread(self) -> GuestBook:
        book = GuestBook()
        book.read(await self.spool.facts(FACTS))
        return book


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with await Spool.open(tmp_path) as spool:
        yield House(spool)


@pytest.mark.parametrize("jump", [CODE_LIFE, timedelta(days=3650), -timedelta(seconds=1), -timedelta(days=3650)])
async def test_a_code_is_good_for_an_hour_by_a_clock_that_runs_forwards(house: House, jump: timedelta) -> None:
    old = await house.ask()
    house.now += jump
    with pytest.raises(Refused):
        await house.pairing.approve(old)
    assert await house.ask() != old
    assert len(house.told) == 2


async def test_room_is_made_by_those_that_have_expired(house: House) -> None:
    for number in range(MAX_WAITING):
        assert await house.ask(f"s{number}")
    assert not await house.ask("late")
    assert await house.ask("elsewhere", channel="other")
    house.now += CODE_LIFE
    assert await house.ask("late")
    assert [str(person) for person in (await house.reread()).applicants] == ["loopback:late"]


async def test_codes_are_long_enough_and_differ(house: House) -> None:
    codes = {await house.ask(f"s{number}", channel=f"c{number}") for number in range(50)}
    assert len(codes) == 50
    assert all(len(code.replace("-", "")) * 5 >= 40 for code in codes)


async def test_a_code_that_could_not_be_kept_was_not_given(house: House) -> None:
    async def fail(_text: str, _operations: Sequence[Operation]) -> None:
        raise SpoolFull("the disk is full")

    address = Address(channel="loopback", kind=PeerKind.DIRECT, peer="666")
    inbound = Inbound(address=address, sender=Sender(id="666"), event_id="1", text="hi", sent_at=house.now)
    with pytest.raises(SpoolFull):
        await house.pairing.ask(inbound, fail)
    assert not house.pairing.waiting()
    assert await house.ask()


async def test_what_is_in_memory_is_what_the_spool_has(house: House) -> None:
    await house.pairing.approve(await house.ask("guest"), is_owner=True)
    await house.pairing.deny(await house.ask("denied"))
    await house.ask("waiting")
    with pytest.raises(Refused):
        await house.pairing.approve("AAAA-AAAA")
    book = await house.reread()
    assert (book.guests, book.applicants) == (house.pairing.book.guests, house.pairing.book.applicants)
    assert [(str(each.person), each.tries) for each in house.pairing.waiting()] == [("loopback:waiting", 1)]
