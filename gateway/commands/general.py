"""Commands about the gateway itself and about the turn that is running."""

import msgspec

from gateway.commands.command import Answer, Call, Command
from gateway.commands.dropping import Dropped
from gateway.errors import Refused
from gateway.job import Job
from gateway.lanes import Lanes
from gateway.spool import Remember

__all__ = ["HELP", "RESTART", "RESTARTED_BY", "STOP", "WHOAMI"]

RESTARTED_BY = "restarted_by"
"""The fact in the spool that says which chat is to be told of the next start."""


async def _help(call: Call) -> Answer:
    rows = [f"/{command.name} {command.arguments}".rstrip() + f" - {command.summary}" for command in call.desk.commands]
    return Answer(text="\n".join([*rows, "Anything else goes to the agent; //text sends it /text."]))


async def _stop(call: Call) -> Answer:
    """Also what runs in a session that was left by `/new`: it answers into this chat too."""
    dropped = Dropped(*_lanes(call))
    stopped = [key for lanes, key in _lanes(call) if lanes.stop(key)]
    if not stopped and not dropped:
        return Answer(text="Nothing is running here.")
    return dropped.told("Stopped.", asked=call.inbound, why="somebody sent /stop")


def _lanes(call: Call) -> list[tuple[Lanes[Job], str]]:
    """Return where something of this chat may run or wait."""
    desk, scope = call.desk, call.routed.scope
    return [*((desk.lanes, session.key) for session in desk.sessions.list(scope)), (desk.readings, scope)]


async def _whoami(call: Call) -> Answer:
    sender = call.inbound.sender
    role = "owner" if call.is_owner else "user"
    return Answer(
        text=f"You are {sender.name or sender.id} (id {sender.id} on {call.inbound.address.channel}), {role}."
    )


async def _restart(call: Call) -> Answer:
    if not call.is_owner:
        raise Refused("Only the owner may restart the gateway.")
    note = Remember(name=RESTARTED_BY, value=msgspec.json.encode(call.inbound.address).decode())
    return Answer(text="Restarting. I will tell you here when I am back.", also=(note,), then=call.desk.restart)


HELP = Command(name="help", aliases=("start",), summary="Show this list", run=_help)
STOP = Command(name="stop", summary="Stop the answer that is being written and drop what waits behind it", run=_stop)
RESTART = Command(name="restart", summary="Restart the gateway (owner); nothing is lost", run=_restart)
WHOAMI = Command(name="whoami", summary="Show who you are to the gateway", run=_whoami)
