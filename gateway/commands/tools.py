"""The command that shows what an agent can use."""

from gateway.agent.protocol import ToolSpec
from gateway.commands.command import Answer, Call, Command, Kind
from gateway.commands.models import answering
from gateway.text import excerpt

__all__ = ["TOOLS"]

_WIDTH = 80


async def _tools(call: Call) -> Answer:
    session = None if call.session is None else (await call.desk.sessions.load(call.session)).meta
    agent = answering(call, session)
    rows = [_row(spec) for spec in agent.toolbox.specs()] or ["(none)"]
    return Answer(text="\n".join([f"Tools of {agent.name}", *rows, *_away(call)]))


def _row(spec: ToolSpec) -> str:
    summary = excerpt(spec.description.partition("\n")[0], _WIDTH)
    return f"`{spec.name}` - {summary}" if summary else f"`{spec.name}`"


def _away(call: Call) -> list[str]:
    """Say which servers cannot be used now; why is for the owner only, for it may name programs and addresses."""
    away = [server for server in call.desk.mcp if server.trouble]
    if call.is_owner:
        return [f"The MCP server {server.name} is away: {server.trouble}." for server in away]
    return [f"The MCP server {server.name} is away." for server in away]


TOOLS = Command(name="tools", summary="Show the tools that the agent has here", run=_tools, kind=Kind.READING)
