"""What the entries of a session add up to: its state. Pure.

Nothing is ever rewritten in a transcript, so clearing, undoing and summing up are entries too, and take effect here
and in what is `counted`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec
from msgspec import Struct

from gateway.sessions import entries as e
from gateway.sessions.entries import Entry
from gateway.sessions.history import is_visible, visible_text
from gateway.sessions.keys import parse_key
from gateway.sessions.state import SessionState, SessionStatus
from gateway.spool import UsageTotal
from gateway.text import excerpt

TITLE_WIDTH = 80

IDLE = "idle"
"""Who completes a session in which nobody has said anything for long."""


def fold(entries: Sequence[Entry]) -> SessionState:
    """Add up all entries; the first has to be the header."""
    header, *rest = entries
    if not isinstance(header, e.Header):
        raise TypeError("a transcript starts with its header")
    state = initial_state(header)
    for entry in rest:
        state = advance(state, entry)
    return state


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
    )


def advance(state: SessionState, entry: Entry) -> SessionState:
    """Add one entry to what all before it add up to."""
    seq = max(state.seq, entry.seq)
    # A clock that was set back must not make a session look old enough to be removed.
    accessed = max(state.last_accessed, entry.ts) if _touches(entry) else state.last_accessed
    return msgspec.structs.replace(state, seq=seq, last_accessed=accessed, **_change(state, entry))


def _touches(entry: Entry) -> bool:
    """Tell whether somebody did something, rather than we ourselves for want of it."""
    return not isinstance(entry, e.Checkpoint) and not (isinstance(entry, e.Status) and entry.by == IDLE)


def _change(state: SessionState, entry: Entry) -> dict[str, object]:  # noqa: PLR0911 - a table of types.
    match entry:
        case e.User() | e.Assistant():
            return _said(state, entry)
        case e.TurnEnd():
            return {"turns": state.turns + 1}
        case e.Clear():
            return {"messages": 0, "turns": 0, "first": 0, "has_summary": False}
        case e.Summary():
            return {"has_summary": True, **_used(state, entry.usage)}
        case e.Checkpoint():
            return {"checkpoint": entry.seq, "checkpoint_at": entry.state.size}
        case e.Undo():
            return {"messages": max(0, state.messages - entry.messages), "turns": max(0, state.turns - 1)}
        case e.Title():
            return {"title": excerpt(entry.value, TITLE_WIDTH)}
        case e.Workspace():
            return {"workspace": entry.value}
        case e.Agent():
            return {"agent": entry.value}
        case e.Model():
            return {"model": entry.value}
        case e.Status():
            return {"status": entry.value}
        case e.Activated():
            return {
                "epoch": max(state.epoch, entry.epoch),
                "highest_number": max(state.highest_number, entry.highest_number),
            }
        case _:
            return {}


def _said(state: SessionState, entry: e.User | e.Assistant) -> dict[str, object]:
    title = state.title
    if not title and isinstance(entry, e.User):
        title = excerpt(entry.content or visible_text(entry), TITLE_WIDTH)
    return {
        "title": title,
        "messages": state.messages + is_visible(entry),
        "updated_at": max(state.updated_at, entry.ts),
        "first": state.first or entry.seq,
        **(_used(state, entry.usage) if isinstance(entry, e.Assistant) else {}),
    }


def _used(state: SessionState, usage: e.Usage | None) -> dict[str, object]:
    if usage is None:
        return {}
    return {
        "input_tokens": state.input_tokens + usage.input_tokens,
        "cached_tokens": state.cached_tokens + usage.cached_tokens,
        "output_tokens": state.output_tokens + usage.output_tokens,
        "cost_micros": state.cost_micros + usage.cost_micros,
    }


class SessionMeta(Struct, frozen=True, kw_only=True):
    """What is known of a session without reading it. `agent` is the one that answers now, after any `/agent`."""

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
    """What the models have used in it."""
    first: int
    """The seq of the first message since the last `clear`; 0 when there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A session with its entries, as they were when it was loaded."""

    key: str
    meta: SessionMeta
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoneTurn:
    """A turn that does not count any more; `said` is the message that had begun it, for one who wants to try again."""

    turn: str
    said: str


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
    )
