"""The entries of a transcript. Each one is a line with a JSON object, and is never changed once written.

Callers create entries without `seq` and `ts`; the session store sets both. A field may be added later, with a default:
readers skip fields and types that they do not know. Everything that was ever written has to stay readable.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import msgspec

from gateway.sessions.state import SessionState, SessionStatus, UtcTime

# The format version in the headers that we write, and the newest that we read.
FORMAT = 1

# The `ts` of an entry that was not appended yet.
UNSTAMPED = datetime.min.replace(tzinfo=UTC)


class TurnOutcome(StrEnum):
    ANSWERED = "answered"
    FAILED = "failed"
    STOPPED = "stopped"
    INTERRUPTED = "interrupted"


class FailureCause(StrEnum):
    """Why a turn has failed, for programs. People read the sentence of the `System` entry before its end."""

    MODEL = "model"
    LIMIT = "limit"
    """The turn, or the person, has used up the tokens that the settings allow."""
    TIMEOUT = "timeout"
    REFUSED = "refused"
    """The gateway has refused to run it."""
    AGENT = "agent"
    """The program of a coding agent has died or broken its protocol."""
    BUG = "bug"


class Origin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The chat in which a session was started."""

    channel: str
    account: str
    chat_id: str
    kind: str
    thread: str | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens as counted by the provider. `input_tokens` includes cached ones."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Of `input_tokens`, those read from the provider's cache."""
    cache_write_tokens: int = 0
    """Of `input_tokens`, those written to the provider's cache."""
    cost_micros: int = 0
    """The cost by the prices of that day, in millionths of their currency; 0: the prices are unknown."""


class PlanStep(msgspec.Struct, frozen=True, kw_only=True):
    content: str
    status: str


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", gc=False):
    """The base of all entries. They form no cycles, so the garbage collector can skip them (`gc=False`)."""

    seq: int = 0
    ts: UtcTime = UNSTAMPED
    turn: str | None = None


class Header(Entry, frozen=True, kw_only=True, tag="session"):
    """The first line of a transcript. `id` never changes, even by export and import."""

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
    repo: str = ""
    """The repository that the session is bound to, for good."""
    created_by: str = ""
    """The id of the API token that started it; empty for the chats of people."""


class Attached(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A file attached to a message. `note` is the text about it for the model: a sentence, or the whole file."""

    name: str
    kind: str
    media_type: str = ""
    """Detected from its content."""
    size: int = 0
    ref: str = ""
    """Its reference in the file store, which may have deleted it since; empty if it was never stored."""
    note: str = ""
    said: str = ""
    """The transcription of a recording."""


class User(Entry, frozen=True, kw_only=True, tag="user"):
    content: str
    sender: str = ""
    sender_name: str = ""
    schedule: str = ""
    """The name of the schedule that this message comes from. Then no person has written it: the sender has made it."""
    event_id: str | None = None
    attachments: tuple[Attached, ...] = ()


class Assistant(Entry, frozen=True, kw_only=True, tag="assistant"):
    content: str
    model: str = ""
    usage: Usage | None = None


class System(Entry, frozen=True, kw_only=True, tag="system"):
    """A sentence of the gateway about a turn: why it failed or was stopped. People see it, the model does not."""

    content: str
    is_failure: bool = False
    details: str = ""
    """The cause in technical words, for owners."""
    about: str = ""
    """The event id of the message that it is about, if that message got no turn."""


class ToolUse(Entry, frozen=True, kw_only=True, tag="tool_use"):
    tool_use_id: str
    name: str
    input: dict[str, Any]  # JSON of a shape that only the tool knows.
    fault: str = ""
    """Why the call is invalid, as a text for the model."""
    title: str = ""
    """A few words of a coding agent about the call. Then `name` is only its kind."""


class ToolUpdate(Entry, frozen=True, kw_only=True, tag="tool_update"):
    """A coding agent has completed the title or the input of a call after it was recorded."""

    tool_use_id: str
    name: str
    input: dict[str, Any]  # As in `ToolUse`.
    title: str = ""


class FileDiff(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The change of one file as a unified diff."""

    path: str
    diff: str


class ToolResult(Entry, frozen=True, kw_only=True, tag="tool_result"):
    tool_use_id: str
    output: str
    is_error: bool = False
    diffs: tuple[FileDiff, ...] = ()
    """Files that a coding agent has changed with the call."""
    usage: Usage | None = None
    """The cost of a call that is paid for."""


class SentFile(Entry, frozen=True, kw_only=True, tag="file"):
    """A file that is part of the answer of its turn. `ref` is its reference in the file store."""

    name: str
    media_type: str
    size: int
    ref: str


class Plan(Entry, frozen=True, kw_only=True, tag="plan"):
    steps: tuple[PlanStep, ...]


class Approval(Entry, frozen=True, kw_only=True, tag="approval"):
    """A question to a person about a tool call. The decision is a second entry."""

    approval_id: str
    tool_use_id: str | None = None
    question: str = ""
    decision: str | None = None
    by: str = ""
    files: dict[str, str] | None = None
    """The digests of the files that the call names, by path, when it was asked about."""
    agent: str = ""
    workspace: str = ""
    may_always: bool = False
    """Whether the person may allow such calls of the agent in the workspace for good."""


class Edit(Entry, frozen=True, kw_only=True, tag="edit"):
    """A message was edited on its platform after its turn had started."""

    event_id: str
    content: str
    sender_name: str = ""


class Summary(Entry, frozen=True, kw_only=True, tag="summary", rename={"from_seq": "from"}):
    """Replaces the entries `from_seq` to `covers`, both included, for the model. `covers` is the end of a turn."""

    content: str
    from_seq: int
    covers: int
    model: str = ""
    usage: Usage | None = None


class Clear(Entry, frozen=True, kw_only=True, tag="clear"):
    """The history starts after this entry."""


class Undo(Entry, frozen=True, kw_only=True, tag="undo"):
    """The turn `undone` does not count. With the numbers, a reader of the tail need not read that turn."""

    undone: str
    first: int
    """The seq of the turn's first entry."""
    messages: int
    """How many visible messages the turn has."""


class Title(Entry, frozen=True, kw_only=True, tag="title"):
    value: str
    model: str = ""
    """The model that has written it; empty if a person or a program has."""
    usage: Usage | None = None


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
    """This session became the active one. The key is repeated, in case the header gets damaged."""

    key: str
    epoch: int
    highest_number: int


class TurnEnd(Entry, frozen=True, kw_only=True, tag="turn_end"):
    outcome: TurnOutcome
    reason: str = ""
    """A `FailureCause`, if it is known why the turn has failed."""


class Checkpoint(Entry, frozen=True, kw_only=True, tag="checkpoint"):
    """The state after all entries before this one, so that a reader of the state can stop here.

    The key is repeated as in `Activated`. `summary` is the current one at this point.
    """

    key: str
    state: SessionState
    summary: Summary | None = None


class Unknown(Entry, frozen=True, kw_only=True, tag="unknown"):
    """An entry of a type from a newer version. It stays in its file. `kind` is its type."""

    kind: str
