"""A job: one accepted message on its way to its answer."""

from collections.abc import Sequence

from msgspec import Struct

from gateway.contract import Inbound
from gateway.spool import InboxRow, InboxState

__all__ = ["Job"]

SUSPECTED_AFTER = 2
"""Crashes during a turn after which it runs beside no other suspect, so that the next one tells which it was."""


class Job(Struct, frozen=True, kw_only=True):
    """Bound to the session it will be answered in.

    `has_begun`: its turn began when it was accepted, or with the end of the one before, and the transcript has it;
    `is_resumed`: its turn had begun when the daemon ended; `is_waiting`: and waited for an approval; `is_suspect`: and
    may be what ended it, for the second time. `collected`: later messages that the same turn answers.
    """

    turn: str
    inbound: Inbound
    agent: str
    scope: str
    session: str
    number: int
    command: str | None = None
    """The command that it asks for, by its first name; None for a message to the agent."""
    argument: str = ""
    has_begun: bool = False
    is_resumed: bool = False
    is_waiting: bool = False
    is_suspect: bool = False
    collected: tuple["Job", ...] = ()

    @classmethod
    def found(
        cls, row: InboxRow, collected: Sequence[InboxRow] = (), *, command: str | None = None, argument: str = ""
    ) -> "Job":
        """Restore a job from its row in the spool."""
        return cls(
            turn=row.turn,
            inbound=row.inbound,
            agent=row.agent,
            scope=row.scope,
            session=row.session,
            number=row.number,
            command=command,
            argument=argument,
            is_resumed=row.state is not InboxState.RECEIVED,
            is_waiting=row.state is InboxState.WAITING,
            is_suspect=row.state is InboxState.RUNNING and row.attempts >= SUSPECTED_AFTER,
            collected=tuple(cls.found(each) for each in collected),
        )
