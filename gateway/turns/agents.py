"""The roster: which agents there are, each with its provider, prompt, tools and workspace."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path

from config import AgentSettings, Backend, Settings
from gateway.agent.models import ModelInfo
from gateway.agent.protocol import Provider
from gateway.agent.providers.registry import ProviderRegistry
from gateway.agent.toolbox import ON_REQUEST, built_in
from gateway.agent.tools import Tool, Toolbox
from gateway.errors import CannotStart, Refused
from gateway.mcp.registry import McpServers
from gateway.mcp.server import server_of
from gateway.sessions import SessionMeta

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
        yield replace(tool, needs_approval=True) if is_asked_about else tool


def _names_a_tool(pattern: str, known: Mapping[str, Tool]) -> bool:
    return pattern == _OFF_UNTIL_ENABLED or any(fnmatchcase(tool, pattern) for tool in known)


def _may_name(pattern: str, servers: Iterable[str]) -> bool:
    """Tell whether it can mean a tool of one of the servers, whose tools are not known yet."""
    has_wildcard = any(sign in pattern for sign in "*?[")
    return any(has_wildcard or server_of(pattern) == server for server in servers)


DEFAULT_PROMPT = """\
You are {name}, an assistant that people reach through Gatehouse, a gateway between chat platforms and you.
Answer in the language you are written to, plainly and briefly. Use your tools when they help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    name: str
    provider: Provider
    model: str | None
    info: ModelInfo
    """What is known about that model."""
    chosen_model: str | None = None
    """The model that people have chosen for their session, instead of the agent's own."""
    models: tuple[str, ...] = ()
    """The names of the models that are configured for it: those that everybody may choose."""
    is_choosable: bool = False
    """Whether everybody may choose it, and not only owners."""
    about: Callable[[str], ModelInfo]
    """Tells what is known about any model by its name: one of this agent's provider, or `provider/model`."""
    system: str
    toolbox: Toolbox
    workspace: Path
    max_iterations: int


class AgentRegistry:
    """Opens every agent at once, so that a mistake shows at the start and not at the first message."""

    def __init__(self, settings: Settings, mcp: McpServers | None = None) -> None:
        if faults := agent_faults(settings):
            raise CannotStart("\n".join(faults))
        self._mcp = mcp or McpServers()
        self._providers = ProviderRegistry(settings.providers)
        self._repos = {repo.name: repo.path for repo in settings.repos}
        self._used = {provider for agent in settings.agents.values() for provider in _used(agent)}
        self._agents = {
            name: _open(name, agent, settings, self._providers, self._mcp.tools)
            for name, agent in settings.agents.items()
        }

    def __getitem__(self, name: str) -> Agent:
        return self._agents[name]

    def __iter__(self) -> Iterator[Agent]:
        return iter(self._agents.values())

    def chosen(self, bound: str, session: SessionMeta) -> Agent:
        """Return the agent that answers in a session, with model and workspace: as people have chosen, or as bound.

        What was removed from the settings since is as if it had not been chosen.
        """
        agent = self._agents.get(session.agent) or self._agents.get(bound)
        if agent is None:
            raise Refused(f"The agent {bound} is not configured any more. Send it again, and another one will answer.")
        if folder := self._repos.get(session.workspace or ""):
            agent = replace(agent, workspace=folder)
        if session.model is None or (session.agent != agent.name):
            return agent
        return replace(agent, model=session.model, chosen_model=session.model, info=agent.about(session.model))

    async def tools_known(self) -> None:
        """Wait, not for long, for servers that have just been started: a turn may go on with one of their tools."""
        await self._mcp.wait_ready()

    def replace(self, name: str, change: Callable[[Agent], Agent]) -> None:
        """Put another agent in place of `name`, from its next turn on: for programs that embed the gateway."""
        self._agents[name] = change(self._agents[name])

    def passed_over(self) -> list[str]:
        """Name the models that have failed lately, in whose place others are asked."""
        return self._providers.skipped_models()

    async def warm_up(self) -> None:
        """Do beforehand, off the event loop, what would make the first message wait: loading the SDKs in use."""
        await self._providers.warm_up(sorted(self._used))

    async def aclose(self) -> None:
        """Close the providers' connections, each as soon as no step runs on it."""
        await self._providers.aclose()


def agent_faults(settings: Settings) -> list[str]:
    """Return everything that keeps the agents from being opened, without leaving a trace anywhere."""
    faults = list(_missing_parts(settings))
    for name, agent in settings.agents.items():
        for part in (_prompt, open_toolbox):
            try:
                part(name, agent, settings)
            except CannotStart as fault:
                faults.append(str(fault))
    return list(dict.fromkeys(faults))  # Agents that share a provider share its faults.


def _open(
    name: str, agent: AgentSettings, settings: Settings, providers: ProviderRegistry, mcp_tools: MoreTools
) -> Agent:
    lineup = providers.for_agent(agent.provider, agent.model, agent.fallbacks)
    return Agent(
        name=name,
        provider=lineup,
        model=agent.model,
        info=lineup.own.info,
        models=_models(agent, settings),
        is_choosable=agent.choosable,
        about=lineup.about,
        system=_prompt(name, agent, settings),
        toolbox=open_toolbox(name, agent, settings, mcp_tools),
        workspace=_workspace(name, settings),
        max_iterations=agent.max_iterations,
    )


def _used(agent: AgentSettings) -> Iterator[str]:
    if agent.backend is Backend.LLM:
        yield agent.provider
        yield from (each.partition("/")[0] for each in agent.fallbacks)


def _models(agent: AgentSettings, settings: Settings) -> tuple[str, ...]:
    own = (agent.model,) if agent.model else ()
    return tuple(dict.fromkeys((*own, *settings.providers[agent.provider].models, *agent.fallbacks)))


def _workspace(name: str, settings: Settings) -> Path:
    workspace = settings.gateway.workspace_root / name
    try:
        workspace.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as trouble:
        raise CannotStart(
            f"The workspace {workspace} cannot be made: {trouble.strerror}. "
            "Set gateway.workspace_root to a folder that this user may write to.",
        ) from trouble
    return workspace


def _prompt(name: str, agent: AgentSettings, _settings: Settings) -> str:
    if agent.prompt_file is None:
        return agent.system_prompt or DEFAULT_PROMPT.format(name=name)
    try:
        return agent.prompt_file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as trouble:
        raise CannotStart(
            f"agents.{name}.prompt_file: {agent.prompt_file} cannot be read as text ({trouble}). "
            f"Mend the file, or use agents.{name}.system_prompt.",
        ) from trouble


def _missing_parts(settings: Settings) -> Iterator[str]:
    """Name the extras that configured but rare parts need."""
    for name in settings.mcp:
        if find_spec("mcp") is None:
            yield f"mcp.{name} needs an extra that is not installed: pip install 'gatehouse[mcp]'"
    for name, agent in settings.agents.items():
        if agent.backend is Backend.ACP:
            yield _no_acp(f"agents.{name}.backend")


def _no_acp(key: str) -> str:
    if find_spec("acp") is None:
        return f"{key} needs an extra that is not installed: pip install 'gatehouse[acp]'"
    return f"{key}: this version of Gatehouse cannot use it yet. Remove it from the configuration."
