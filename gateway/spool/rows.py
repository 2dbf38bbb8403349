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


class ScheduleState(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"
    ENDED = "ended"
    """It has no next time, or the settings have it no more."""
    DELETED = "deleted"


class RunState(StrEnum):
    """How one run of a schedule went."""

    RUNNING = "running"
    DONE = "done"
    DELIVERED = "delivered"
    """A text was put into the outbox, without a model."""
    UNCHANGED = "unchanged"
    """The check has found nothing to do."""
    SKIPPED = "skipped"
    FAILED = "failed"
    STOPPED = "stopped"


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


class Recurrence(Struct, frozen=True, kw_only=True):
    """When something happens: by a cron line, every so many seconds from `start` on, or once `at` a time."""

    cron: str = ""
    every: float = 0.0
    start: datetime | None = None
    at: datetime | None = None
    zone: str = ""
    """The time zone of the cron line. Empty: that of the settings."""


class ScheduleCheck(Struct, frozen=True, kw_only=True):
    """What is looked at before a run: a command in the sandbox, or an address of the web.

    A command that exits with 0 lets the run go on, and one that exits with 1 does not. With `on_change`, its output has
    to differ from that of the last time, as the content of an address always has to.
    """

    command: str = ""
    url: str = ""
    pointer: str = ""
    """Only this part of the JSON at the address counts."""
    on_change: bool = False
    quotes: bool = True
    """Whether the model reads the output."""


class ScheduleContent(Struct, frozen=True, kw_only=True):
    """What a schedule does, in which chat, and for whom."""

    address: Address
    maker: Sender
    """The person or program that has made it. Its rights hold at each run."""
    prompt: str
    when: Recurrence
    created_at: datetime
    guild: str | None = None
    agent: str = ""
    """Empty: the agent of the chat."""
    is_apart: bool = True
    """It has a session of its own. Otherwise it writes into the active session of the chat."""
    is_skipped_if_missed: bool = False
    jitter: float = 0.0
    """Seconds by which a run may be late, so that not all schedules run at the same moment."""
    delivers: bool = False
    """The text, or the output of the check, goes to the chat as it is. No model is asked."""
    check: ScheduleCheck | None = None
    tokens_per_run: int = 0
    tokens_per_day: int = 0
    cost_per_day: float = 0.0


decode_reminder = msgspec.json.Decoder(ReminderContent).decode
decode_schedule = msgspec.json.Decoder(ScheduleContent).decode
decode_inbound = msgspec.json.Decoder(Inbound).decode
decode_outbound = msgspec.json.Decoder(Outbound).decode
decode_receipt = msgspec.json.Decoder(Receipt).decode
decode_draft: Callable[[bytes], Receipt | None] = msgspec.json.Decoder(Receipt | None).decode


def to_micros(at: datetime) -> int:
    """Return the exact microseconds since 1970. Raises `TypeError` for a time without a zone."""
    return (at - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    return _EPOCH + micros * _MICROSECOND


def utc_day(now: datetime) -> str:
    """Return the day to which usage belongs, as YYYY-MM-DD."""
    return now.astimezone(UTC).date().isoformat()


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


CONFIGURED = "config-"
"""Begins the id of a schedule of the settings, before its name."""


def run_event(schedule: str, number: int) -> str:
    """Return the event id of the message, and the outbox key of the text, of one run of a schedule."""
    return f"schedule-{schedule}-{number}"


class ScheduleRow(Struct, frozen=True, kw_only=True):
    """A schedule. People refer to it by its number within the scope."""

    id: str
    scope: str
    number: int
    about: ScheduleContent
    state: ScheduleState = ScheduleState.ACTIVE
    due_at: datetime | None = None
    """When something has to be done."""
    planned_at: datetime | None = None
    """The regular time that `due_at` belongs to, or the next one if it is forced or tried again."""
    ran_for: datetime | None = None
    """The regular time of the last run."""
    is_forced: bool = False
    """A person wants it to run now."""
    runs: int = 0
    failures: int = 0
    """The failed runs in a row."""
    session: str = ""
    """The key of the session of its last run."""
    seen: str = ""
    """What the check has seen last."""
    note: str = ""
    """Why it is paused, or why it fails."""
    spent_day: str = ""
    spent_tokens: int = 0
    spent_micros: int = 0
    last_delivery: OutboxState | None = None
    """The outbox state of the last answer, None if there is none."""
    is_running: bool = False


class ScheduleRun(Struct, frozen=True, kw_only=True):
    """One run of a schedule, or several in a row that did nothing for the same reason."""

    number: int
    state: RunState
    planned_at: datetime
    started_at: datetime
    ended_at: datetime | None
    times: int
    session: str
    note: str
    tokens: int
    cost_micros: int


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


class DailyUsage(Struct, frozen=True, kw_only=True):
    """What a person has used of a model on a day, by an agent."""

    day: str
    person: str
    model: str
    agent: str
    """Empty if it is not known: an earlier version has charged it."""
    total: UsageTotal


class Stats(Struct, frozen=True, kw_only=True):
    """Counts of unfinished rows. `file_bytes` does not include the preallocated WAL."""

    inbox: Mapping[InboxState, int]
    outbox: Mapping[OutboxState, int]
    seen: int
    file_bytes: int
