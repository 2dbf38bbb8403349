"""The parts of the running gateway that tell how it is doing."""

from collections.abc import Callable
from dataclasses import dataclass

from gateway.adapters.registry import Channels
from gateway.job import Job
from gateway.lanes import Lanes
from gateway.mcp.registry import McpServers
from gateway.metrics import Tally
from gateway.sessions import SessionManager
from gateway.spool import OutboxRow, Spool
from gateway.turns.agents import Roster
from gateway.watch.at_work import AtWork
from gateway.watch.flushes import Flushes
from gateway.watch.free_space import FreeSpace

__all__ = ["Organs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Organs:
    """`replies` are the lanes of the outbox, one for each chat."""

    channels: Channels
    sessions: SessionManager
    spool: Spool
    flushes: Flushes
    space: FreeSpace
    lanes: Lanes[Job]
    at_work: AtWork
    replies: Lanes[OutboxRow]
    mcp: McpServers
    roster: Callable[[], Roster]
    tally: Tally
    is_stopping: Callable[[], bool]
