"""What can be committed to the spool: plain values, applied in the writer's thread."""

from datetime import datetime

from msgspec import Struct

from gateway.contract import Inbound, Outbound, Receipt
from gateway.spool.rows import About, InboxState

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


class Take(Struct, frozen=True, kw_only=True):
    """Mark an event as seen. `Duplicate` when it was seen before."""

    channel: str
    account: str
    event_id: str
    at: datetime


class Accept(Struct, frozen=True, kw_only=True):
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


class Begin(Struct, frozen=True, kw_only=True):
    """The turn starts, or goes on after a crash; each time counts as an attempt."""

    turn: str


class Forgive(Struct, frozen=True, kw_only=True):
    """Forget the attempts of an unfinished turn: it was not the turn that ended the daemon."""

    turn: str


class Settle(Struct, frozen=True, kw_only=True):
    """Move a message to another state. `answered_by` is the turn that answered it, when it is not its own."""

    turn: str
    state: InboxState
    answered_by: str | None = None
    note: str = ""


class Replace(Struct, frozen=True, kw_only=True):
    """The message was edited before its turn has started; afterwards `WrongState`."""

    turn: str
    inbound: Inbound


class Note(Struct, frozen=True, kw_only=True):
    """Entries of a transcript. The same again does nothing; other bytes under the same seq are a `Conflict`."""

    session: str
    first_seq: int
    lines: tuple[bytes, ...]


class Send(Struct, frozen=True, kw_only=True):
    """Put one part of a reply into the outbox, behind all that is there. `Duplicate` when the key is there already.

    `is_sent_at_once` spares the `Sending` of a part that nothing stands before.
    """

    key: str
    turn: str | None
    message: Outbound
    at: datetime
    is_sent_at_once: bool = False


class Sending(Struct, frozen=True, kw_only=True):
    key: str
    at: datetime


class Delivered(Struct, frozen=True, kw_only=True):
    key: str
    receipt: Receipt
    at: datetime


class Postpone(Struct, frozen=True, kw_only=True):
    """The send is known to have failed, and will be tried again."""

    key: str
    reason: str


class Bury(Struct, frozen=True, kw_only=True):
    key: str
    reason: str


class Revive(Struct, frozen=True, kw_only=True):
    key: str


class KeepDraft(Struct, frozen=True, kw_only=True):
    """The platform's id of a half-streamed answer, in place of what was known before.

    None: it is about to be sent. Found so after a crash, it may be in the chat, and nobody can name it.
    """

    turn: str
    receipt: Receipt | None
    at: datetime


class DropDraft(Struct, frozen=True, kw_only=True):
    turn: str


class Remember(Struct, frozen=True, kw_only=True):
    """A small named fact; None removes it."""

    name: str
    value: str | None


class Spend(Struct, frozen=True, kw_only=True):
    """Add to what a person has used of a model on a day (UTC, YYYY-MM-DD). `cached_tokens` are among the input."""

    day: str
    person: str
    model: str
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost_micros: int = 0


class Appoint(Struct, frozen=True, kw_only=True):
    """Keep a reminder under the next number of its scope. `TooMany` when the scope, or everybody, has enough."""

    id: str
    scope: str
    due_at: datetime
    cron: str | None
    about: About
    most_per_scope: int
    most_in_all: int


class Reschedule(Struct, frozen=True, kw_only=True):
    """Move a reminder that is due at `due_at` to its next time, if it has one; `WrongState` when it has moved before.

    `has_rung`: its message is in the same commit.
    """

    id: str
    due_at: datetime
    next_at: datetime | None
    at: datetime
    has_rung: bool = False
    failures: int = 0


class Cancel(Struct, frozen=True, kw_only=True):
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
