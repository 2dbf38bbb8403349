"""A session as values: its state, folded from its entries, and its public summary `SessionMeta`. Pure.

A transcript is never rewritten, so clearing, undoing and compacting are entries too. They take effect here and in
`history.effective_entries`.
"""

from collections.abc import Sequence
from datetime import datetime
from uuid import uuid4

import msgspec
from msgspec import Struct

from gateway.contract import Address
from gateway.errors import Refused
from gateway.routing import channel_of
from gateway.sessions import entries as e
from gateway.sessions.entries import Entry
from gateway.sessions.history import is_visible, visible_text
from gateway.sessions.keys import derived_id, parse_key, session_key
from gateway.sessions.state import SessionState, SessionStatus
from gateway.spool import UsageTotal
from gateway.text import excerpt

TITLE_WIDTH = 80

# The author of status entries that no person and no program has asked for.
GATEWAY = "gateway"

# The author of the status of a session that comes from another gateway.
IMPORT = "import"

# Why an idle session was completed.
IDLE_TIMEOUT = "idle_timeout"
_IDLE = "idle"  # Older versions wrote this as the author, and a sentence as the reason.

_BILLED = (
    e.Assistant,
    e.Summary,
    e.Title,
    e.ToolResult,
)  # A union in `isinstance` would be built again for each entry.


def fold(entries: Sequence[Entry]) -> SessionState:
    """Return the state after all entries. The first one has to be the header."""
    header, *rest = entries
    if not isinstance(header, e.Header):
        raise TypeError("a transcript starts with its header")
    state = initial_state(header)
    for entry in rest:
        state = advance(state, entry)
    return state


class SessionEnded(Refused):
    """The session takes no more messages. `status` says why."""

    def __init__(self, status: SessionStatus) -> None:
        super().__init__(f"This session is {status.value}, so it takes no more messages.")
        self.status = status


class NewSession(Struct, frozen=True, kw_only=True):
    """What a program decides about the session that it starts. Without an `id`, the session gets a random one."""

    id: str = ""
    repo: str = ""
    created_by: str = ""
    is_apart: bool = False
    """It does not become the active session of its scope, and has never been: it belongs to a schedule."""


APART = -1
"""The epoch of a session that has never been the active one of its scope."""


def new_header(
    scope: str, number: int, now: datetime, *, agent: str, origin: Address, epoch: int, new: NewSession
) -> e.Header:
    """Return the first entry of a new session, which has the highest number of its scope."""
    return e.Header(
        version=e.FORMAT,
        id=new.id or str(uuid4()),
        key=session_key(scope, number),
        scope=scope,
        number=number,
        created=now,
        agent=agent,
        origin=e.Origin(
            channel=origin.channel,
            account=origin.account,
            chat_id=origin.peer,
            kind=origin.kind.value,
            thread=origin.thread,
        ),
        epoch=epoch,
        highest_number=number,
        repo=new.repo,
        created_by=new.created_by,
    )


def initial_state(header: e.Header) -> SessionState:
    return SessionState(
        number=header.number,
        agent=header.agent,
        created_at=header.created,
        updated_at=header.created,
        last_accessed=header.ts,
        seq=header.seq,
        epoch=header.epoch,
        highest_number=max(header.highest_number, header.number),
        id=header.id,
        channel=header.origin.channel if header.origin is not None else channel_of(header.scope),
        repo=header.repo,
        created_by=header.created_by,
    )


def with_identity(key: str, state: SessionState, header: e.Header | None) -> SessionState:
    """Add the facts that only the header has to a state that was stored without them. None: the header is lost."""
    if state.id:
        return state
    if header is None:
        return msgspec.structs.replace(state, id=derived_id(key), channel=channel_of(parse_key(key)[0]))
    first = initial_state(header)
    return msgspec.structs.replace(
        state,
        id=first.id or derived_id(key),
        channel=first.channel,
        repo=first.repo,
        created_by=first.created_by,
    )


def advance(state: SessionState, entry: Entry) -> SessionState:
    """Return the state after one more entry."""
    change: dict[str, object] = {"seq": max(state.seq, entry.seq)}
    # Checkpoints and idle timeouts are no use of a session. `max`: a clock that was set back must not age it.
    is_idle = isinstance(entry, e.Status) and (entry.why == IDLE_TIMEOUT or entry.by == _IDLE)
    if not isinstance(entry, e.Checkpoint) and not is_idle:
        change["last_accessed"] = max(state.last_accessed, entry.ts)
    match entry:
        case e.User() | e.Assistant():
            change["messages"] = state.messages + is_visible(entry)
            change["updated_at"] = max(state.updated_at, entry.ts)
            change["first"] = state.first or entry.seq
            if not state.title and isinstance(entry, e.User):
                change["title"] = excerpt(entry.content or visible_text(entry), TITLE_WIDTH)
        case e.TurnEnd():
            change["turns"] = state.turns + 1
        case e.Clear():
            change.update(messages=0, turns=0, first=0, has_summary=False)
        case e.Summary():
            change["has_summary"] = True
        case e.Checkpoint():
            change.update(checkpoint=entry.seq, checkpoint_at=entry.state.size)
        case e.Undo():
            change["messages"] = max(0, state.messages - entry.messages)
            change["turns"] = max(0, state.turns - 1)
        case e.Title():
            change["title"] = excerpt(entry.value, TITLE_WIDTH)
        case e.Workspace():
            change["workspace"] = entry.value
        case e.Agent():
            change["agent"] = entry.value
        case e.Model():
            change["model"] = entry.value
        case e.Status():
            change.update(status=entry.value, status_by=entry.by, status_why=entry.why)
        case e.Activated():
            change["epoch"] = max(state.epoch, entry.epoch)
            change["highest_number"] = max(state.highest_number, entry.highest_number)
        case _:
            pass
    if isinstance(entry, _BILLED) and entry.usage is not None:
        # Undone and cleared turns stay in the sums: they have been paid for.
        change["input_tokens"] = state.input_tokens + entry.usage.input_tokens
        change["cached_tokens"] = state.cached_tokens + entry.usage.cached_tokens
        change["output_tokens"] = state.output_tokens + entry.usage.output_tokens
        change["cost_micros"] = state.cost_micros + entry.usage.cost_micros
    return msgspec.structs.replace(state, **change)


class SessionMeta(Struct, frozen=True, kw_only=True):
    """The facts about a session that need no reading. `agent` is the one that answers now, after any `/agent`."""

    key: str
    scope: str
    number: int
    title: str
    messages: int
    turns: int
    created_at: datetime
    updated_at: datetime
    last_accessed: datetime
    status: SessionStatus
    agent: str
    model: str | None
    workspace: str | None
    size: int
    spent: UsageTotal
    """Tokens and cost of all its turns."""
    first: int
    """The seq of the first message since the last `clear`; 0: there is no message."""
    seq: int = 0
    """The number of its last entry."""
    id: str = ""
    """Empty if the session was stored by a version without it, until its header is read again."""
    channel: str = ""
    repo: str = ""
    created_by: str = ""
    """The id of the API token that started it; empty for the chats of people."""
    status_by: str = ""
    status_why: str = ""

    @property
    def status_word(self) -> str:
        """The status for people. A session in error for a known reason is not damaged: it can be read."""
        return "failed" if self.status is SessionStatus.ERROR and self.status_why else self.status.word


class Session(Struct, frozen=True, kw_only=True):
    """A session and its last entries at the time of the load."""

    key: str
    meta: SessionMeta
    entries: tuple[Entry, ...]


def meta_of(key: str, state: SessionState) -> SessionMeta:
    scope, number = parse_key(key)
    return SessionMeta(
        key=key,
        scope=scope,
        number=number,
        title=state.title,
        messages=state.messages,
        turns=state.turns,
        created_at=state.created_at,
        updated_at=state.updated_at,
        last_accessed=state.last_accessed,
        status=state.status,
        agent=state.agent,
        model=state.model or None,
        workspace=state.workspace,
        size=state.size,
        spent=UsageTotal(
            input_tokens=state.input_tokens,
            cached_tokens=state.cached_tokens,
            output_tokens=state.output_tokens,
            cost_micros=state.cost_micros,
        ),
        first=state.first,
        seq=state.seq,
        id=state.id,
        channel=state.channel,
        repo=state.repo,
        created_by=state.created_by,
        status_by=state.status_by,
        status_why=state.status_why,
    )
