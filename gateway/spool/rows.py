"""Rows of the spool: their states, and how messages and times are stored in them."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from gateway.contract import Address, Inbound, Outbound, Receipt, Sender


class InboxState(StrEnum):
    """The progress of an accepted message."""

    RECEIVED = "received"
    RUNNING = "running"
    WAITING = "waiting"
    """Waiting for an approval."""
    ANSWERED = "answered"
    ABANDONED = "abandoned"
    """Not answered. Its sender was told."""
    DEAD = "dead"
    """Set aside for the operator: it crashed the daemon too often, or cannot be read."""


class OutboxState(StrEnum):
    """The progress of one part of a reply."""

    PENDING = "pending"
    SENDING = "sending"
    """After a crash, a part in this state may or may not have arrived."""
    DELIVERED = "delivered"
    DEAD = "dead"
    """Given up. `gatehouse spool retry` makes it pending again."""


INBOX_MOVES: Mapping[InboxState, frozenset[InboxState]] = {
    InboxState.RECEIVED: frozenset(
        {InboxState.RUNNING, InboxState.ANSWERED, InboxState.ABANDONED, InboxState.DEAD},
    ),
    # Running to running: a crash interrupted the turn, and it resumes.
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
    # Pending to delivered: if the platform drops repeats, a send does not need to be marked first.
    OutboxState.PENDING: frozenset({OutboxState.SENDING, OutboxState.DELIVERED, OutboxState.DEAD}),
    # Sending to sending: it is sent again, because it may not have arrived.
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
    """Return the states from which a row may move to `target`."""
    return tuple(state for state, targets in moves.items() if target in targets)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

encode = msgspec.json.Encoder().encode


class ReminderContent(Struct, frozen=True, kw_only=True):
    """A reminder's text, its chat, the person who asked for it, and the server (guild) if there is one."""

    address: Address
    maker: Sender
    text: str
    guild: str | None = None


decode_reminder = msgspec.json.Decoder(ReminderContent).decode
decode_inbound = msgspec.json.Decoder(Inbound).decode
decode_outbound = msgspec.json.Decoder(Outbound).decode
decode_receipt = msgspec.json.Decoder(Receipt).decode
decode_draft: Callable[[bytes], Receipt | None] = msgspec.json.Decoder(Receipt | None).decode


def to_micros(at: datetime) -> int:
    """Return the exact microseconds since 1970. Raises `TypeError` for a time without a zone."""
    return (at - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    return _EPOCH + micros * _MICROSECOND


class InboxRow(Struct, frozen=True, kw_only=True):
    """An accepted message. `attempts` counts the starts of its turn since they were last reset."""

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
    """One part of a reply. `attempts` counts the sends that failed for certain."""

    key: str
    turn: str | None
    state: OutboxState
    message: Outbound
    created_at: datetime
    sending_at: datetime | None
    attempts: int
    reason: str
    scope: str = ""
    """In a cluster, whose owner sends it."""


class ArrivalRow(Struct, frozen=True, kw_only=True):
    """A message that another node has accepted. None instead of an `inbound` that cannot be read."""

    shard: int
    position: int
    scope: str
    inbound: Inbound | None


class ReminderRow(Struct, frozen=True, kw_only=True):
    """An active reminder. People refer to it by its number within the scope.

    `last_sent_for` is the due time of its last message. `last_delivery` is the outbox state of that message, None if
    the row is gone. `failures` counts the undeliverable messages in a row before it.
    """

    id: str
    scope: str
    number: int
    due_at: datetime
    cron: str | None
    last_sent_for: datetime | None
    times_sent: int
    failures: int
    last_delivery: OutboxState | None
    about: ReminderContent

    @property
    def next_key(self) -> str:
        """The outbox key of its next message. It is the same for every attempt."""
        return f"remind-{self.id}-{self.times_sent + 1}"


class RecoveredWork(Struct, frozen=True, kw_only=True):
    """The unfinished work at a start, in the order in which it was accepted.

    `unreadable` names turns and keys that this version cannot read. They are dead now, with their content kept.
    `damaged_file` is the old spool if it was damaged. A new one was created, and the old content is lost.
    """

    inbox: tuple[InboxRow, ...]
    outbox: tuple[OutboxRow, ...]
    drafts: Mapping[str, Receipt | None]
    unreadable: tuple[str, ...] = ()
    damaged_file: Path | None = None


class SpoolListing(Struct, frozen=True, kw_only=True):
    """Rows for the operator, oldest first. `unreadable` names rows that only another version can show."""

    inbox: tuple[InboxRow, ...]
    outbox: tuple[OutboxRow, ...]
    unreadable: tuple[str, ...] = ()


class UsageTotal(Struct, frozen=True, kw_only=True):
    """Usage of models. The cost is in millionths of the currency of the configured prices."""

    input_tokens: int = 0
    cached_tokens: int = 0
    """Input tokens that came from the provider's cache."""
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


class Stats(Struct, frozen=True, kw_only=True):
    """Counts of unfinished rows. `file_bytes` does not include the preallocated WAL."""

    inbox: Mapping[InboxState, int]
    outbox: Mapping[OutboxState, int]
    seen: int
    file_bytes: int
