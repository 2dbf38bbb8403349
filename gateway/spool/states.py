"""The states of accepted messages and of replies, and the only ways from one to another."""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

__all__ = ["INBOX_MOVES", "INBOX_OPEN", "OUTBOX_MOVES", "OUTBOX_OPEN", "InboxState", "OutboxState", "sources"]


class InboxState(StrEnum):
    """What has become of an accepted message."""

    RECEIVED = "received"
    RUNNING = "running"
    WAITING = "waiting"
    """For an approval."""
    ANSWERED = "answered"
    ABANDONED = "abandoned"
    """Not answered, and its sender was told."""
    DEAD = "dead"
    """Set aside for a person to look at: it crashed the daemon too often, or cannot be read."""


class OutboxState(StrEnum):
    """What has become of a part of a reply."""

    PENDING = "pending"
    SENDING = "sending"
    """Found so after a crash: nobody knows whether it has arrived."""
    DELIVERED = "delivered"
    DEAD = "dead"
    """Given up; `gatehouse spool retry` makes it pending again."""


INBOX_MOVES: Mapping[InboxState, frozenset[InboxState]] = {
    InboxState.RECEIVED: frozenset(
        {InboxState.RUNNING, InboxState.ANSWERED, InboxState.ABANDONED, InboxState.DEAD},
    ),
    # From running to running: the turn was cut by a crash and goes on.
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
    # From pending to delivered: where the platform drops repeats, a send needs no mark of its own.
    OutboxState.PENDING: frozenset({OutboxState.SENDING, OutboxState.DELIVERED, OutboxState.DEAD}),
    # From sending to sending: it is sent again, since nobody knows whether it has arrived.
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
    """Return the states from which `target` may be reached."""
    return tuple(state for state, targets in moves.items() if target in targets)
