"""What the spool gives back: the rows of inbox and outbox, and how messages and times are stored in them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from gateway.contract import Address, Inbound, Outbound, Receipt, Sender


class InboxState(StrEnum):
    """What has become of an accepted message."""

    RECEIVED = "received"
    RUNNING = "running"
    WAITING = "waiting"
    """For an approval."""
    ANSWERED = "answered"
    ABANDONED = "abandoned"
    """Not answered, and its sender was told."""
    DEAD = "dead"
    """Set aside for a person to look at: it crashed the daemon too often, or cannot be read."""


class OutboxState(StrEnum):
    """What has become of a part of a reply."""

    PENDING = "pending"
    SENDING = "sending"
    """Found so after a crash: nobody knows whether it has arrived."""
    DELIVERED = "delivered"
    DEAD = "dead"
    """Given up; `gatehouse spool retry` makes it pending again."""


INBOX_MOVES: Mapping[InboxState, frozenset[InboxState]] = {
    InboxState.RECEIVED: frozenset(
        {InboxState.RUNNING, InboxState.ANSWERED, InboxState.ABANDONED, InboxState.DEAD},
    ),
    # From running to running: the turn was cut by a crash and goes on.
    InboxState.RUNNING: frozenset(
        {InboxState.RUNNING, InboxState.WAITING, InboxState.ANSWERED, InboxState.ABANDONED, InboxState.DEAD},
    ),
    InboxState.WAITING: frozenset(
        {InboxState.RUNNING, InboxState.ANSWERED, InboxState.ABANDONED, InboxState.DEAD},
    ),
    InboxState.ANSWERED: frozenset(),
    InboxState.ABANDONED: frozenset(),
    InboxState.DEAD: frozenset(),
}

OUTBOX_MOVES: Mapping[OutboxState, frozenset[OutboxState]] = {
    # From pending to delivered: where the platform drops repeats, a send needs no mark of its own.
    OutboxState.PENDING: frozenset({OutboxState.SENDING, OutboxState.DELIVERED, OutboxState.DEAD}),
    # From sending to sending: it is sent again, since nobody knows whether it has arrived.
    OutboxState.SENDING: frozenset(
        {OutboxState.SENDING, OutboxState.PENDING, OutboxState.DELIVERED, OutboxState.DEAD},
    ),
    OutboxState.DELIVERED: frozenset(),
    OutboxState.DEAD: frozenset({OutboxState.PENDING}),
}

INBOX_OPEN = frozenset({InboxState.RECEIVED, InboxState.RUNNING, InboxState.WAITING})
OUTBOX_OPEN = frozenset({OutboxState.PENDING, OutboxState.SENDING})

_State = TypeVar("_State", InboxState, OutboxState)


def sources(moves: Mapping[_State, frozenset[_State]], target: _State) -> tuple[_State, ...]:
    """Return the states from which `target` may be reached."""
    return tuple(state for state, targets in moves.items() if target in targets)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class ReminderContent:
    """What a reminder says and where, and who has asked for it, in which server if any."""

    address: Address
    maker: Sender
    text: str
    guild: str | None = None


about_of = msgspec.json.Decoder(ReminderContent).decode
inbound_of = msgspec.json.Decoder(Inbound).decode
outbound_of = msgspec.json.Decoder(Outbound).decode
receipt_of = msgspec.json.Decoder(Receipt).decode
draft_of: Callable[[bytes], Receipt | None] = msgspec.json.Decoder(Receipt | None).decode


def to_micros(at: datetime) -> int:
    """Return the microseconds since 1970, exactly; a time without a zone raises `TypeError`."""
    return (at - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    return _EPOCH + micros * _MICROSECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxRow:
    """An accepted message. `attempts` is how often its turn was begun since it was last forgiven."""

    turn: str
    state: InboxState
    inbound: Inbound
    scope: str
    session: str
    number: int
    agent: str
    accepted_at: datetime
    attempts: int
    answered_by: str | None
    note: str


class OutboxRow(Struct, frozen=True, kw_only=True):
    """One part of a reply. `attempts` is how many sends of it are known to have failed."""

    key: str
    turn: str | None
    state: OutboxState
    message: Outbound
    created_at: datetime
    sending_at: datetime | None
    attempts: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReminderRow:
    """A reminder that is to ring at `due_at`. The number is what the people of its scope call it by.

    `rung_for` is the time that it has rung for last, and `fate` what has become of the message of then, if that is
    still known; so many rings before were `failures`, one after the other.
    """

    id: str
    scope: str
    number: int
    due_at: datetime
    cron: str | None
    rung_for: datetime | None
    rings: int
    failures: int
    fate: OutboxState | None
    about: ReminderContent

    @property
    def next_key(self) -> str:
        """What the message of its next ring is called in the outbox: the same, however often that is tried."""
        return f"remind-{self.id}-{self.rings + 1}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredWork:
    """What a start has to go on with, in the order in which it was accepted.

    `unreadable` names the turns and keys of rows that this version cannot read. They were set to dead, and what they
    hold was kept. `set_aside` is the damaged file in whose place a new spool was made; what it held is lost.
    """

    inbox: tuple[InboxRow, ...]
    outbox: tuple[OutboxRow, ...]
    drafts: Mapping[str, Receipt | None]
    facts: Mapping[str, str]
    unreadable: tuple[str, ...] = ()
    set_aside: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolListing:
    """What a person may want to see, oldest first. `unreadable` names rows that only another version can show."""

    inbox: tuple[InboxRow, ...]
    outbox: tuple[OutboxRow, ...]
    unreadable: tuple[str, ...] = ()


class UsageTotal(Struct, frozen=True, kw_only=True):
    """What was used of models. Cost is in millionths of the currency that prices are given in."""

    input_tokens: int = 0
    cached_tokens: int = 0
    """Those of the input that were read from the provider's cache."""
    output_tokens: int = 0
    cost_micros: int = 0

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "UsageTotal") -> "UsageTotal":
        return UsageTotal(
            input_tokens=self.input_tokens + other.input_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cost_micros=self.cost_micros + other.cost_micros,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """How full the spool is. Finished rows are not counted; `file_bytes` leaves out the room its log has anyway."""

    inbox: Mapping[InboxState, int]
    outbox: Mapping[OutboxState, int]
    seen: int
    file_bytes: int
