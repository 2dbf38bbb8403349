"""What a transcript is made of: one entry is one JSON object on one line, and is never changed once written.

Callers make entries without `seq` and `ts`; `SessionManager` gives both. A field may be added later, with a default:
readers skip fields and types they do not know. What is written today stays readable for ever.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import msgspec

from gateway.sessions.state import SessionState, SessionStatus, UtcTime

__all__ = [
    "FORMAT",
    "UNSTAMPED",
    "Activated",
    "Agent",
    "Approval",
    "Assistant",
    "Attached",
    "Checkpoint",
    "Clear",
    "Edit",
    "Entry",
    "Header",
    "Model",
    "Origin",
    "Plan",
    "PlanStep",
    "SentFile",
    "Status",
    "Summary",
    "Title",
    "ToolResult",
    "ToolUse",
    "TurnEnd",
    "TurnOutcome",
    "Undo",
    "Unknown",
    "Usage",
    "User",
    "Workspace",
]

FORMAT = 1
"""The `version` in the header of the transcripts we write, and the newest that we read."""

UNSTAMPED = datetime.min.replace(tzinfo=UTC)
"""The `ts` of an entry that has not been given its time yet."""


class TurnOutcome(StrEnum):
    ANSWERED = "answered"
    FAILED = "failed"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"


class Origin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The chat in which a session was started."""

    channel: str
    account: str
    chat_id: str
    kind: str
    thread: str | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens, as the provider counted them. `input_tokens` are all that the model read, cached or not."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Of `input_tokens`, those read from the provider's cache."""
    cache_write_tokens: int = 0
    """Of `input_tokens`, those put into it."""
    cost_micros: int = 0
    """What that cost, by the prices of the day, in millionths of their currency; 0 where they are not known."""


class PlanStep(msgspec.Struct, frozen=True, kw_only=True):
    content: str
    status: str


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", gc=False):
    """Values without cycles, and many: the garbage collector need not look at them (`gc=False`)."""

    seq: int = 0
    ts: UtcTime = UNSTAMPED
    turn: str | None = None


class Header(Entry, frozen=True, kw_only=True, tag="session"):
    """The first line. `id` never changes, even where the session is exported and imported elsewhere."""

    version: int
    id: str
    key: str
    scope: str
    number: int
    created: UtcTime
    agent: str
    origin: Origin | None
    epoch: int
    highest_number: int


class Attached(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A file that came with a message. `note` is what the model reads of it: a sentence, or the whole file."""

    name: str
    kind: str
    media_type: str = ""
    """What its bytes show."""
    size: int = 0
    ref: str = ""
    """Where it is in the store, as long as it is kept; empty when it never was."""
    note: str = ""
    said: str = ""
    """What is heard in a recording."""


class User(Entry, frozen=True, kw_only=True, tag="user"):
    content: str
    sender: str = ""
    sender_name: str = ""
    event_id: str | None = None
    attachments: tuple[Attached, ...] = ()


class Assistant(Entry, frozen=True, kw_only=True, tag="assistant"):
    content: str
    model: str = ""
    usage: Usage | None = None


class ToolUse(Entry, frozen=True, kw_only=True, tag="tool_use"):
    tool_use_id: str
    name: str
    input: dict[str, Any]  # JSON of a shape that only the tool knows.
    fault: str = ""
    """Why it cannot be run, as the model is told."""


class ToolResult(Entry, frozen=True, kw_only=True, tag="tool_result"):
    tool_use_id: str
    output: str
    is_error: bool = False


class SentFile(Entry, frozen=True, kw_only=True, tag="file"):
    """A file that goes with the answer of its turn; `ref` is where it is in the store, as long as it is kept."""

    name: str
    media_type: str
    size: int
    ref: str


class Plan(Entry, frozen=True, kw_only=True, tag="plan"):
    steps: tuple[PlanStep, ...]


class Approval(Entry, frozen=True, kw_only=True, tag="approval"):
    """A question put to a person about a tool call, and later, in an entry of its own, the decision."""

    approval_id: str
    tool_use_id: str | None = None
    question: str = ""
    decision: str | None = None
    by: str = ""


class Edit(Entry, frozen=True, kw_only=True, tag="edit"):
    """A message was changed on its platform after its turn had started."""

    event_id: str
    content: str
    sender_name: str = ""


class Summary(Entry, frozen=True, kw_only=True, tag="summary", rename={"from_seq": "from"}):
    """Stands for the entries `from_seq` to `covers`, both included; `covers` is the last entry of a turn."""

    content: str
    from_seq: int
    covers: int
    model: str = ""
    usage: Usage | None = None


class Clear(Entry, frozen=True, kw_only=True, tag="clear"):
    """History starts after this."""


class Undo(Entry, frozen=True, kw_only=True, tag="undo"):
    """The turn `undone` does not count. The numbers spare readers of the tail a look at the turn itself."""

    undone: str
    first: int
    """The seq of the turn's first entry."""
    messages: int
    """How many messages of the count it takes away."""


class Title(Entry, frozen=True, kw_only=True, tag="title"):
    value: str


class Workspace(Entry, frozen=True, kw_only=True, tag="workspace"):
    value: str


class Agent(Entry, frozen=True, kw_only=True, tag="agent"):
    value: str


class Model(Entry, frozen=True, kw_only=True, tag="model"):
    value: str


class Status(Entry, frozen=True, kw_only=True, tag="status"):
    value: SessionStatus
    by: str = ""
    why: str = ""


class Activated(Entry, frozen=True, kw_only=True, tag="activated"):
    """This session became the active one. The key is repeated, so that a damaged header does not cost the session."""

    key: str
    epoch: int
    highest_number: int


class TurnEnd(Entry, frozen=True, kw_only=True, tag="turn_end"):
    outcome: TurnOutcome
    reason: str = ""


class Checkpoint(Entry, frozen=True, kw_only=True, tag="checkpoint"):
    """What all entries before this one add up to; whoever has read back to it need not read further.

    The key is repeated for the reason given at `Activated`. `summary` is the one that stands at this point.
    """

    key: str
    state: SessionState
    summary: Summary | None = None


class Unknown(Entry, frozen=True, kw_only=True, tag="unknown"):
    """An entry of a type that only a newer version knows. It stays in its file; `kind` is its type."""

    kind: str
