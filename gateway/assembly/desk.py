"""The desk: all that the chat commands may use."""

from collections.abc import Callable

from gateway.access.pairing import Pairing
from gateway.assembly.agents import Agents
from gateway.assembly.chats import Chats
from gateway.assembly.ground import Ground
from gateway.commands import COMMANDS, Desk
from gateway.job import Job
from gateway.lanes import Lanes
from gateway.reminders import Reminders

__all__ = ["open_desk"]


def open_desk(
    ground: Ground,
    chats: Chats,
    agents: Agents,
    lanes: Lanes[Job],
    readings: Lanes[Job],
    *,
    status: Callable[[], str],
    restart: Callable[[], None],
) -> Desk:
    return Desk(
        sessions=ground.sessions,
        lanes=lanes,
        readings=readings,
        approvals=chats.approvals,
        pairing=Pairing(ground.live.book, ground.spool, now=ground.now, post=chats.delivery.post),
        live=ground.live,
        roster=agents.current,
        mcp=agents.mcp,
        meter=agents.meter,
        reminders=Reminders(ground.live, ground.spool, now=ground.now),
        compactions=agents.compactions,
        commands=COMMANDS,
        status=status,
        restart=restart,
        now=ground.now,
    )
