"""What can be committed to the spool: plain values, applied in the writer's thread."""

from datetime import datetime

from msgspec import Struct

from gateway.contract import Inbound, Outbound, Receipt
from gateway.spool.rows import InboxState, ReminderContent

__all__ = [
    "AddReminder",
    "AddToInbox",
    "AddToOutbox",
    "AddUsage",
    "AppendEntries",
    "CancelReminder",
    "DeleteDraft",
    "MarkDead",
    "MarkDelivered",
    "MarkSeen",
    "MarkSending",
    "Operation",
    "ReplaceInbound",
    "RescheduleReminder",
    "ResetAttempts",
    "RetryDead",
    "RetryLater",
    "SaveDraft",
    "SetFact",
    "SetInboxState",
    "StartTurn",
]


class MarkSeen(Struct, frozen=True, kw_only=True):
    """Mark an event as seen. `Duplicate` when it was seen before."""

    channel: str
    account: str
    event_id: str
    at: datetime


class AddToInbox(Struct, frozen=True, kw_only=True):
    """Put a message into the inbox. `Duplicate` when the turn is there already.

    `is_started` spares the `StartTurn` of a turn that nothing stands before.
    """

    turn: str
    inbound: Inbound
    scope: str
    session: str
    number: int
    agent: str
    at: datetime
    is_started: bool = False


class StartTurn(Struct, frozen=True, kw_only=True):
    """The turn starts, or goes on after a crash; each time counts as an attempt."""

    turn: str


class ResetAttempts(Struct, frozen=True, kw_only=True):
    """Forget the attempts of an unfinished turn: it was not the turn that ended the daemon."""

    turn: str


class SetInboxState(Struct, frozen=True, kw_only=True):
    """Move a message to another state. `answered_by` is the turn that answered it, when it is not its own."""

    turn: str
    state: InboxState
    answered_by: str | None = None
    note: str = ""


class ReplaceInbound(Struct, frozen=True, kw_only=True):
    """The message was edited before its turn has started; afterwards `WrongState`."""

    turn: str
    inbound: Inbound


class AppendEntries(Struct, frozen=True, kw_only=True):
    """Entries of a transcript. The same again does nothing; other bytes under the same seq are a `Conflict`."""

    session: str
    first_seq: int
    lines: tuple[bytes, ...]


class AddToOutbox(Struct, frozen=True, kw_only=True):
    """Put one part of a reply into the outbox, behind all that is there. `Duplicate` when the key is there already.

    `is_sending` spares the `MarkSending` of a part that nothing stands before.
    """

    key: str
    turn: str | None
    message: Outbound
    at: datetime
    is_sending: bool = False


class MarkSending(Struct, frozen=True, kw_only=True):
    key: str
    at: datetime


class MarkDelivered(Struct, frozen=True, kw_only=True):
    key: str
    receipt: Receipt
    at: datetime


class RetryLater(Struct, frozen=True, kw_only=True):
    """The send is known to have failed, and will be tried again."""

    key: str
    reason: str


class MarkDead(Struct, frozen=True, kw_only=True):
    key: str
    reason: str


class RetryDead(Struct, frozen=True, kw_only=True):
    key: str


class SaveDraft(Struct, frozen=True, kw_only=True):
    """The platform's id of a half-streamed answer, in place of what was known before.

    None: it is about to be sent. Found so after a crash, it may be in the chat, and nobody can name it.
    """

    turn: str
    receipt: Receipt | None
    at: datetime


class DeleteDraft(Struct, frozen=True, kw_only=True):
    turn: str


class SetFact(Struct, frozen=True, kw_only=True):
    """A small named fact; None removes it."""

    name: str
    value: str | None


class AddUsage(Struct, frozen=True, kw_only=True):
    """Add to what a person has used of a model on a day (UTC, YYYY-MM-DD). `cached_tokens` are among the input."""

    day: str
    person: str
    model: str
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost_micros: int = 0


class AddReminder(Struct, frozen=True, kw_only=True):
    """Keep a reminder under the next number of its scope. `TooMany` when the scope, or everybody, has enough."""

    id: str
    scope: str
    due_at: datetime
    cron: str | None
    about: ReminderContent
    most_per_scope: int
    most_in_all: int


class RescheduleReminder(Struct, frozen=True, kw_only=True):
    """Move a reminder that is due at `due_at` to its next time, if it has one; `WrongState` when it has moved before.

    `has_rung`: its message is in the same commit.
    """

    id: str
    due_at: datetime
    next_at: datetime | None
    at: datetime
    has_rung: bool = False
    failures: int = 0


class CancelReminder(Struct, frozen=True, kw_only=True):
    """End a reminder; `WrongState` when it is over."""

    id: str
    at: datetime


Operation = (
    MarkSeen
    | AddToInbox
    | StartTurn
    | ResetAttempts
    | SetInboxState
    | ReplaceInbound
    | AppendEntries
    | AddToOutbox
    | MarkSending
    | MarkDelivered
    | RetryLater
    | MarkDead
    | RetryDead
    | SaveDraft
    | DeleteDraft
    | SetFact
    | AddUsage
    | AddReminder
    | RescheduleReminder
    | CancelReminder
)
