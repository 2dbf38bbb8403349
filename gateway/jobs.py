"""A job: one accepted message on its way to its answer."""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.contract import Inbound
from gateway.spool import InboxRow, InboxState

__all__ = ["Job"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Bound to the session it will be answered in.

    `is_resumed`: its turn had begun when the daemon ended; `is_waiting`: and waited for an approval. `collected`: later
    messages that the same turn answers.
    """

    turn: str
    inbound: Inbound
    agent: str
    scope: str
    session: str
    number: int
    is_resumed: bool = False
    is_waiting: bool = False
    collected: tuple["Job", ...] = ()

    @classmethod
    def found(cls, row: InboxRow, collected: Sequence[InboxRow] = ()) -> "Job":
        """Make the job anew from what the spool has of it."""
        return cls(
            turn=row.turn,
            inbound=row.inbound,
            agent=row.agent,
            scope=row.scope,
            session=row.session,
            number=row.number,
            is_resumed=row.state is not InboxState.RECEIVED,
            is_waiting=row.state is InboxState.WAITING,
            collected=tuple(cls.found(each) for each in collected),
        )
