"""The guest book: access requests and approved people. Kept in memory, and as facts in the spool."""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import TypeVar

import msgspec
import structlog
from msgspec import Struct

from gateway.contract import Address, PeerKind, Sender
from gateway.spool import SetFact, TakeFact

log = structlog.get_logger()

FACTS = "guests/"
"""The prefix of all facts of the guest book."""
GUEST = f"{FACTS}in/"
APPLICANT = f"{FACTS}asked/"
REVOKED = f"{FACTS}out/"

CODE_LIFE = timedelta(hours=1)
DENIED_FOR = timedelta(days=1)
"""For so long, a person whose request was denied or whose access was revoked gets no other code."""


class Person(Struct, frozen=True, kw_only=True):
    """A sender as one bot identity sees them. The same id on another account or channel is another person."""

    channel: str
    account: str
    sender: str

    @classmethod
    def of(cls, address: Address, sender: Sender) -> "Person":
        return cls(channel=address.channel, account=address.account, sender=sender.id)

    def direct_chat(self, peer: str) -> Address:
        return Address(channel=self.channel, account=self.account, kind=PeerKind.DIRECT, peer=peer)

    def __str__(self) -> str:
        account = "" if self.account == "default" else f"/{self.account}"
        return f"{self.channel}{account}:{self.sender}"


class Applicant(Struct, frozen=True, kw_only=True):
    """An unknown sender with a code. `peer` is their chat; `tries` counts the wrong codes since they got theirs."""

    person: Person
    name: str
    peer: str
    code: str
    asked_at: datetime
    tries: int = 0
    is_denied: bool = False

    def is_expired(self, now: datetime) -> bool:
        # A request from the future has expired too: the clock was wrong then, or is wrong now.
        life = DENIED_FOR if self.is_denied else CODE_LIFE
        return not timedelta(0) <= now - self.asked_at < life


class Guest(Struct, frozen=True, kw_only=True):
    """A person whose access request was approved."""

    person: Person
    name: str
    peer: str
    since: datetime
    is_owner: bool = False
    role: str = ""
    """The role that they were given. Empty: that of the chat, or `member`. `current_role` tells which they have."""


class Revoked(Struct, frozen=True, kw_only=True):
    """A person whose access was taken away. They have no access, not even in groups, until they are approved again."""

    person: Person
    name: str = ""
    at: datetime

    def is_recent(self, now: datetime) -> bool:
        return timedelta(0) <= now - self.at < DENIED_FOR


_Entry = TypeVar("_Entry", Applicant, Guest, Revoked)


class GuestBook:
    """Each change of the book is committed as a fact, with `save_fact` or `delete_fact`."""

    def __init__(self) -> None:
        self.guests: dict[Person, Guest] = {}
        self.applicants: dict[Person, Applicant] = {}
        self.revoked: dict[Person, Revoked] = {}

    def read(self, facts: Mapping[str, str]) -> None:
        """Load the facts that the spool has kept."""
        self.guests = {guest.person: guest for guest in _entries(facts, GUEST, Guest)}
        self.applicants = {each.person: each for each in _entries(facts, APPLICANT, Applicant)}
        self.revoked = {each.person: each for each in _entries(facts, REVOKED, Revoked)}

    def is_guest(self, address: Address, sender: Sender) -> bool:
        return Person.of(address, sender) in self.guests

    def is_owner(self, address: Address, sender: Sender) -> bool:
        guest = self.guests.get(Person.of(address, sender)) if self.guests else None
        return guest is not None and guest.is_owner

    def is_revoked(self, address: Address, sender: Sender) -> bool:
        return bool(self.revoked) and Person.of(address, sender) in self.revoked

    def waiting(self, now: datetime) -> list[Applicant]:
        """Return the people whose code is valid, the oldest request first."""
        return [each for each in self.applicants.values() if not each.is_denied and not each.is_expired(now)]

    def expired(self, now: datetime) -> list[Applicant]:
        return [each for each in self.applicants.values() if each.is_expired(now)]


_PREFIXES = {Applicant: APPLICANT, Guest: GUEST, Revoked: REVOKED}


def save_fact(entry: Applicant | Guest | Revoked) -> SetFact:
    """Return the operation that stores `entry`."""
    return SetFact(name=f"{_PREFIXES[type(entry)]}{entry.person}", value=msgspec.json.encode(entry).decode())


def delete_fact(entry: Applicant | Guest | Revoked) -> SetFact:
    """Return the operation that deletes `entry`."""
    return SetFact(name=save_fact(entry).name, value=None)


def take_fact(entry: Applicant) -> TakeFact:
    """Return the operation that deletes `entry`, and is refused if another node of the cluster has done so."""
    return TakeFact(name=save_fact(entry).name)


def _entries(facts: Mapping[str, str], prefix: str, kind: type[_Entry]) -> Iterator[_Entry]:
    for name, value in facts.items():
        if not name.startswith(prefix):
            continue
        try:
            yield msgspec.json.decode(value, type=kind)
        except msgspec.DecodeError:  # Written by a newer version. An unreadable entry gives no access.
            log.warning("guest_unreadable", name=name)
