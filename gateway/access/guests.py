"""The guest book: who has asked to be let in, and who was. Kept in memory, and as facts in the spool."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

import msgspec
import structlog

from gateway.contract import Address, PeerKind, Sender
from gateway.spool import SetFact

__all__ = ["FACTS", "Applicant", "Guest", "GuestBook", "Person"]

log = structlog.get_logger()

FACTS = "guests/"
"""What the names of all facts of the guest book begin with."""
GUEST = f"{FACTS}in/"
APPLICANT = f"{FACTS}asked/"

CODE_LIFE = timedelta(hours=1)
DENIED_FOR = timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Somebody on one bot identity; the same id on another account or channel is somebody else."""

    channel: str
    account: str
    sender: str

    @classmethod
    def of(cls, address: Address, sender: Sender) -> "Person":
        return cls(channel=address.channel, account=address.account, sender=sender.id)

    def __str__(self) -> str:
        account = "" if self.account == "default" else f"/{self.account}"
        return f"{self.channel}{account}:{self.sender}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Applicant:
    """A stranger with a code. `peer` is where to tell them; `tries` is how many wrong codes were tried meanwhile."""

    person: Person
    name: str
    peer: str
    code: str
    asked_at: datetime
    tries: int = 0
    is_denied: bool = False

    def is_over(self, now: datetime) -> bool:
        """Tell whether it has expired; one from the future is over too, since the clock was wrong then or is now."""
        life = DENIED_FOR if self.is_denied else CODE_LIFE
        return not timedelta(0) <= now - self.asked_at < life


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """Somebody whom the owner has let in."""

    person: Person
    name: str
    peer: str
    since: datetime
    is_owner: bool = False

    @property
    def address(self) -> Address:
        """Where they can be told something."""
        person = self.person
        return Address(channel=person.channel, account=person.account, kind=PeerKind.DIRECT, peer=self.peer)


_Entry = TypeVar("_Entry", Applicant, Guest)


class GuestBook:
    """Reading costs a look into a dictionary. Whoever writes commits the fact that goes with it."""

    def __init__(self) -> None:
        self.guests: dict[Person, Guest] = {}
        self.applicants: dict[Person, Applicant] = {}

    def read(self, facts: Mapping[str, str]) -> None:
        """Take over what the spool has kept."""
        self.guests = {guest.person: guest for guest in _entries(facts, GUEST, Guest)}
        self.applicants = {each.person: each for each in _entries(facts, APPLICANT, Applicant)}

    def is_guest(self, address: Address, sender: Sender) -> bool:
        return Person.of(address, sender) in self.guests

    def is_owner(self, address: Address, sender: Sender) -> bool:
        guest = self.guests.get(Person.of(address, sender))
        return guest is not None and guest.is_owner

    def waiting(self, now: datetime) -> list[Applicant]:
        """Return those whose code is still good, oldest first."""
        return [each for each in self.applicants.values() if not each.is_denied and not each.is_over(now)]

    def over(self, now: datetime) -> list[Applicant]:
        return [each for each in self.applicants.values() if each.is_over(now)]


def kept(entry: Applicant | Guest) -> SetFact:
    """Return the fact that says so."""
    kind = APPLICANT if isinstance(entry, Applicant) else GUEST
    return SetFact(name=f"{kind}{entry.person}", value=msgspec.json.encode(entry).decode())


def dropped(entry: Applicant | Guest) -> SetFact:
    """Return the fact that takes it back."""
    return SetFact(name=kept(entry).name, value=None)


def _entries(facts: Mapping[str, str], prefix: str, kind: type[_Entry]) -> Iterator[_Entry]:
    for name, value in facts.items():
        if not name.startswith(prefix):
            continue
        try:
            yield msgspec.json.decode(value, type=kind)
        except msgspec.DecodeError:  # A newer version's. Nobody is let in by what cannot be read.
            log.warning("guest_unreadable", name=name)
