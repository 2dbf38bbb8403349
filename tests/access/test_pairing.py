"""Pairing codes under clock jumps and a full disk."""

from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.access.guests import CODE_LIFE, FACTS, GuestBook, Person
from gateway.access.pairing import MAX_WAITING, Pairing
from gateway.contract import Address, Inbound, PeerKind, Sender
from gateway.errors import Refused
from gateway.spool import Operation, Spool, SpoolUnavailable


class House:
    """A pairing with a clock that is set by hand; `told` has the answers to unknown senders."""

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
        await self.pairing.request(inbound, self.tell)
        person = Person.of(address, inbound.sender)
        found = self.pairing.guest_book.applicants.get(person)
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
async def test_a_code_is_valid_for_an_hour_and_expires_if_the_clock_jumps_back(house: House, jump: timedelta) -> None:
    old = await house.ask()
    house.now += jump
    with pytest.raises(Refused):
        await house.pairing.find_applicant(old)
    assert await house.ask() != old
    assert len(house.told) == 2


async def test_expired_codes_make_room_for_new_ones(house: House) -> None:
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


async def test_a_code_that_cannot_be_stored_is_not_given_out(house: House) -> None:
    async def fail(_text: str, _operations: Sequence[Operation]) -> None:
        raise SpoolUnavailable("the disk is full")

    address = Address(channel="loopback", kind=PeerKind.DIRECT, peer="666")
    inbound = Inbound(address=address, sender=Sender(id="666"), event_id="1", text="hi", sent_at=house.now)
    with pytest.raises(SpoolUnavailable):
        await house.pairing.request(inbound, fail)
    assert not house.pairing.waiting()
    assert await house.ask()


async def test_the_guest_book_equals_the_facts_in_the_spool(house: House) -> None:
    guest = await house.pairing.find_applicant(await house.ask("guest"))
    await house.pairing.approve(guest, is_owner=True)
    await house.pairing.deny(await house.pairing.find_applicant(await house.ask("denied")))
    await house.ask("waiting")
    with pytest.raises(Refused):
        await house.pairing.find_applicant("AAAA-AAAA")
    book = await house.reread()
    assert (book.guests, book.applicants) == (house.pairing.guest_book.guests, house.pairing.guest_book.applicants)
    assert [(str(each.person), each.tries) for each in house.pairing.waiting()] == [("loopback:waiting", 1)]


async def test_a_code_can_be_approved_only_once(house: House) -> None:
    applicant = await house.pairing.find_applicant(await house.ask())
    await house.pairing.approve(applicant)
    with pytest.raises(Refused):
        await house.pairing.approve(applicant)
