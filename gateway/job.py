"""A job: one accepted message on its way to its answer, and the slots that limit how many jobs run at once."""

from asyncio import Semaphore
from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct

from gateway.contract import Inbound
from gateway.spool import InboxRow, InboxState

SUSPECT_AFTER = 2
"""After so many crashes a turn is a suspect. Suspects run alone, so that the next crash shows which job caused it."""
MAX_COMMANDS = 64
"""Commands that read transcripts or summarise, and run at the same time."""


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
    accepted_at: datetime | None = None
    """When it was accepted, if a process before this one has done that."""
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
            accepted_at=row.accepted_at,
            collected=tuple(cls.from_row(each) for each in collected),
        )


class ApartSession(Struct, frozen=True, kw_only=True):
    """The session that a schedule has for itself. It never becomes the active one of its chat by itself."""

    key: str
    """The session of the last run. If it takes no more messages, or is empty, a new one is started."""
    agent: str
    title: str


class JobSlots:
    """Semaphores for jobs that could crash the daemon. A suspect takes all of them, so no other job runs beside it.

    The semaphores serve first come, first served. Everyone acquires them in the same order.
    """

    def __init__(self, max_turns: int) -> None:
        self.turn = (Semaphore(max_turns),)
        """A turn holds these while it runs."""
        self.command = (Semaphore(MAX_COMMANDS),)
        """For commands that read transcripts or summarise."""
        self.suspect = (Semaphore(1), *self.turn * max_turns, *self.command * MAX_COMMANDS)
