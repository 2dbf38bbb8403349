"""A job: one accepted message on its way to its answer."""

from collections.abc import Sequence

from msgspec import Struct

from gateway.contract import Inbound
from gateway.spool import InboxRow, InboxState

SUSPECT_AFTER = 2
"""After so many crashes a turn is a suspect. Suspects run one at a time, so that the next crash shows which it was."""


class Job(Struct, frozen=True, kw_only=True):
    """A message with the session in which it will be answered."""

    turn: str
    inbound: Inbound
    agent: str
    scope: str
    session: str
    number: int
    command: str | None = None
    """The name of the command in the message; None for a message to the agent."""
    argument: str = ""
    has_begun: bool = False
    """Its turn started in the commit that accepted it, or in the one that ended the turn before."""
    is_resumed: bool = False
    """Its turn had started before the daemon ended."""
    is_waiting: bool = False
    """Its turn was waiting for an approval when the daemon ended."""
    is_suspect: bool = False
    """Its turn may have crashed the daemon, at least twice."""
    collected: tuple["Job", ...] = ()
    """Later messages that the same turn answers."""

    @classmethod
    def from_row(
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
            is_suspect=row.state is InboxState.RUNNING and row.attempts >= SUSPECT_AFTER,
            collected=tuple(cls.from_row(each) for each in collected),
        )
