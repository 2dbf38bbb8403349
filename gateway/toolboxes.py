"""Which tools an agent has, and before which of them somebody has to be asked."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase

from config import AgentSettings, Settings
from gateway.agent.toolbox import ON_REQUEST, built_in
from gateway.agent.tools import Tool, Toolbox
from gateway.errors import CannotStart
from gateway.mcp.server import server_of

__all__ = ["MoreTools", "open_toolbox"]

MoreTools = Callable[[], Iterable[Tool]]
"""Returns tools that come and go: those of MCP servers."""

_OFF_UNTIL_ENABLED = "shell"


def open_toolbox(name: str, agent: AgentSettings, settings: Settings, mcp_tools: MoreTools = tuple) -> Toolbox:
    usual = {tool.spec.name: tool for tool in built_in(settings.tools)}
    known = usual | {tool.spec.name: tool for tool in ON_REQUEST}
    own = list(usual.values()) if agent.tools is None else _named(name, agent.tools, settings, known)
    # A slip here would let something run that was to be asked about.
    if unknown := [each for each in agent.ask if not _names_a_tool(each, known) and not _may_name(each, settings.mcp)]:
        raise CannotStart(f"agents.{name}.ask: there is no tool {', '.join(unknown)}. There are: {', '.join(known)}.")
    return Toolbox(_marked(own, agent), more=lambda: _marked(_chosen(mcp_tools(), agent), agent))


def _named(name: str, tools: Iterable[str], settings: Settings, known: Mapping[str, Tool]) -> list[Tool]:
    """Return the built-in ones among the tools that an agent lists."""
    wanted = [each for each in tools if server_of(each) not in settings.mcp]
    if unknown := [each for each in wanted if each not in known]:
        hint = " To have a shell, set tools.shell.enabled." if _OFF_UNTIL_ENABLED in unknown else ""
        raise CannotStart(
            f"agents.{name}.tools: there is no tool {', '.join(unknown)}. There are: {', '.join(known)}.{hint}",
        )
    return [known[each] for each in wanted]


def _chosen(tools: Iterable[Tool], agent: AgentSettings) -> Iterator[Tool]:
    for tool in tools:
        if agent.tools is None or any(fnmatchcase(tool.spec.name, pattern) for pattern in agent.tools):
            yield tool


def _marked(tools: Iterable[Tool], agent: AgentSettings) -> Iterator[Tool]:
    """Have them ask where the agent's settings say so."""
    for tool in tools:
        is_asked_about = any(fnmatchcase(tool.spec.name, pattern) for pattern in agent.ask)
        yield replace(tool, asks=True) if is_asked_about else tool


def _names_a_tool(pattern: str, known: Mapping[str, Tool]) -> bool:
    return pattern == _OFF_UNTIL_ENABLED or any(fnmatchcase(tool, pattern) for tool in known)


def _may_name(pattern: str, servers: Iterable[str]) -> bool:
    """Tell whether it can mean a tool of one of the servers, whose tools are not known yet."""
    has_wildcard = any(sign in pattern for sign in "*?[")
    return any(has_wildcard or server_of(pattern) == server for server in servers)
