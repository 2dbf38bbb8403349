"""Who answers, and at what price: the agents, their MCP servers, the meter and the summing up."""

from dataclasses import dataclass

from gateway.assembly.ground import Ground
from gateway.mcp.registry import McpServers
from gateway.turns.agents import Roster
from gateway.turns.compaction import Compactions
from gateway.turns.metering import Meter

__all__ = ["Agents", "open_agents"]


@dataclass(slots=True, kw_only=True)
class Agents:
    mcp: McpServers
    meter: Meter
    compactions: Compactions
    roster: Roster
    """A reload puts another in its place, so others ask for it by `current` whenever they need it."""

    def current(self) -> Roster:
        return self.roster


def open_agents(ground: Ground) -> Agents:
    mcp = McpServers()
    meter = Meter(ground.live, ground.spool, now=ground.now, tally=ground.tally)
    return Agents(
        mcp=mcp,
        meter=meter,
        compactions=Compactions(sessions=ground.sessions, meter=meter, spool=ground.spool),
        roster=Roster(ground.live.settings, mcp),
    )
