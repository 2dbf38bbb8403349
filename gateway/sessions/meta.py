"""A session as the rest of the gateway sees it."""

from dataclasses import dataclass
from datetime import datetime

from msgspec import Struct

from gateway.sessions.entries import Entry
from gateway.sessions.names import parse_key
from gateway.sessions.state import SessionState, SessionStatus
from gateway.spool import Spent

__all__ = ["Session", "SessionMeta", "Undone", "meta_of"]


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
    spent: Spent
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
class Undone:
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
        spent=Spent(
            input_tokens=state.input_tokens,
            cached_tokens=state.cached_tokens,
            output_tokens=state.output_tokens,
            cost_micros=state.cost_micros,
        ),
        first=state.first,
    )
