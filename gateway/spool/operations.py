"""What can be committed to the spool: plain values, applied in the writer's thread."""

from dataclasses import dataclass
from datetime import datetime

from gateway.contract import Inbound, Outbound, Receipt
from gateway.spool.rows import About
from gateway.spool.states import InboxState

__all__ = [
    "Accept",
    "Appoint",
    "Begin",
    "Bury",
    "Cancel",
    "Delivered",
    "DropDraft",
    "Forgive",
    "KeepDraft",
    "Note",
    "Operation",
    "Postpone",
    "Remember",
    "Replace",
    "Reschedule",
    "Revive",
    "Send",
    "Sending",
    "Settle",
    "Spend",
    "Take",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Take:
    """Mark an event as seen. `Duplicate` when it was seen before."""

    channel: str
    account: str
    event_id: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Accept:
    """Put a message into the inbox. `Duplicate` when the turn is there already.

    `is_begun` spares the `Begin` of a turn that nothing stands before.
    """

    turn: str
    inbound: Inbound
    scope: str
    session: str
    number: int
    agent: str
    at: datetime
    is_begun: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """The turn starts, or goes on after a crash; each time counts as an attempt."""

    turn: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgive:
    """Forget the attempts of an unfinished turn: it was not the turn that ended the daemon."""

    turn: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settle:
    """Move a message to another state. `answered_by` is the turn that answered it, when it is not its own."""

    turn: str
    state: InboxState
    answered_by: str | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replace:
    """The message was edited before its turn has started; afterwards `WrongState`."""

    turn: str
    inbound: Inbound


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Entries of a transcript. The same again does nothing; other bytes under the same seq are a `Conflict`."""

    session: str
    first_seq: int
    lines: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Put one part of a reply into the outbox, behind all that is there. `Duplicate` when the key is there already.

    `is_sent_at_once` spares the `Sending` of a part that nothing stands before.
    """

    key: str
    turn: str | None
    message: Outbound
    at: datetime
    is_sent_at_once: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    key: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    key: str
    receipt: Receipt
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Postpone:
    """The send is known to have failed, and will be tried again."""

    key: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bury:
    key: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Revive:
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepDraft:
    """The platform's id of a half-streamed answer, in place of what was known before.

    None: it is about to be sent. Found so after a crash, it may be in the chat, and nobody can name it.
    """

    turn: str
    receipt: Receipt | None
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class DropDraft:
    turn: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Remember:
    """A small named fact; None removes it."""

    name: str
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spend:
    """Add to what a person has used of a model on a day (UTC, YYYY-MM-DD). `cached_tokens` are among the input."""

    day: str
    person: str
    model: str
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost_micros: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Appoint:
    """Keep a reminder under the next number of its scope. `TooMany` when the scope, or everybody, has enough."""

    id: str
    scope: str
    due_at: datetime
    cron: str | None
    about: About
    most_per_scope: int
    most_in_all: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reschedule:
    """Move a reminder that is due at `due_at` to its next time, if it has one; `WrongState` when it has moved before.

    `has_rung`: its message is in the same commit.
    """

    id: str
    due_at: datetime
    next_at: datetime | None
    at: datetime
    has_rung: bool = False
    failures: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """End a reminder; `WrongState` when it is over."""

    id: str
    at: datetime


Operation = (
    Take
    | Accept
    | Begin
    | Forgive
    | Settle
    | Replace
    | Note
    | Send
    | Sending
    | Delivered
    | Postpone
    | Bury
    | Revive
    | KeepDraft
    | DropDraft
    | Remember
    | Spend
    | Appoint
    | Reschedule
    | Cancel
)
