"""The agent registry: every configured agent with its provider, prompt, tools and workspace."""

import os
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from config import AgentSettings, Backend, Settings, WorkspaceMode
from config.files import make_private_directory
from config.types import resolve_links
from gateway.access.role_table import AskerRoles, Role
from gateway.acp.presets import TOOL_KINDS, effective, environment
from gateway.acp.programs import ProgramMissing, find_program
from gateway.agent.models import ModelInfo, family_info
from gateway.agent.protocol import Chunk, Prompt, Provider, TextDelta
from gateway.agent.providers.registry import ProviderRegistry
from gateway.agent.providers.retry_and_fallback import ResilientProvider
from gateway.agent.toolbox import ON_REQUEST, built_in
from gateway.agent.toolbox.skills import make_use_skill
from gateway.agent.tools import Tool, Toolbox
from gateway.distribution import Installation
from gateway.errors import CannotStart, ProviderFailed, Refused
from gateway.files.workspaces import AgentWorkspace, private_folders, shared_folder, workspace_of
from gateway.mcp.server import McpServers, server_of
from gateway.sessions import SessionMeta
from gateway.skills.library import NO_SKILLS, AgentSkills, SkillLibrary

MoreTools = Callable[[], Iterable[Tool]]
"""Returns the tools of MCP servers, which come and go."""

_USE_SKILL = "use_skill"
_SWITCHES = {
    "shell": "To use the shell, set tools.shell.enabled.",
    "web_search": "To search, set tools.search.engine.",
    "generate_image": "To have pictures made, set tools.images.provider.",
    "speak": "To speak, set tools.speech.provider.",
    _USE_SKILL: "To use skills, set skills.folders.",
}
"""The built-in tools that exist only once the settings enable them."""


def open_toolbox(
    name: str,
    agent: AgentSettings,
    settings: Settings,
    mcp_tools: MoreTools = tuple,
    skills: Callable[[], AgentSkills] = lambda: NO_SKILLS,
) -> Toolbox:
    """Return the tools that the settings give to an agent. Raises `CannotStart` for a name that no tool can have."""
    if agent.backend is Backend.ACP:
        return Toolbox(())  # The program has its own.
    usual = {tool.spec.name: tool for tool in built_in(settings)}
    known = usual | {tool.spec.name: tool for tool in ON_REQUEST}
    has_shell = "shell" in (usual if agent.tools is None else agent.tools)
    use_skill = make_use_skill(settings.tools.shell if has_shell else None)
    if settings.skills.folders:
        known[use_skill.spec.name] = use_skill
    own = list(usual.values())
    if agent.tools is not None:
        wanted = [each for each in agent.tools if server_of(each) not in settings.mcp]
        if unknown := [each for each in wanted if each not in known]:
            hints = "".join(f" {hint}" for each, hint in _SWITCHES.items() if each in unknown)
            raise CannotStart(f"agents.{name}.tools: {_unknown_tools(unknown, known)}{hints}")
        own = [known[each] for each in wanted if known[each] is not use_skill]
    if agent.skills and not may_use_skills(agent, settings):
        hint = "Add use_skill to its tools" if settings.skills.folders else "Set skills.folders"
        raise CannotStart(f"agents.{name}.skills: the agent has no skills to choose from. {hint}, or remove the key.")
    # A typo here would let a tool run without asking, or never offer to allow one for good.
    for key, patterns in (("ask", agent.ask), ("always_allow", agent.always_allow)):
        unknown = [each for each in patterns if each not in _SWITCHES and not _may_match(each, known, settings)]
        if unknown:
            raise CannotStart(f"agents.{name}.{key}: {_unknown_tools(unknown, known)}")

    # Evaluated for each request, since MCP servers connect, disconnect and change their tools at any time, and so do
    # the folders of skills.
    def more() -> Iterator[Tool]:
        chosen = [
            tool
            for tool in mcp_tools()
            if agent.tools is None or any(fnmatchcase(tool.spec.name, pattern) for pattern in agent.tools)
        ]
        return _with_asks([*chosen, *([use_skill] if skills().skills else [])], agent)

    return Toolbox(_with_asks(own, agent), more=more if settings.mcp or settings.skills.folders else None)


def may_use_skills(agent: AgentSettings, settings: Settings) -> bool:
    """Return whether the settings give skills to an agent. A list of tools is complete, so it names `use_skill` too."""
    is_listed = agent.tools is None or _USE_SKILL in agent.tools
    return agent.backend is Backend.LLM and is_listed and bool(settings.skills.folders)


def _unknown_tools(unknown: Iterable[str], known: Iterable[str]) -> str:
    return f"unknown tool {', '.join(unknown)}. Available: {', '.join(known)}."


def _with_asks(tools: Iterable[Tool], agent: AgentSettings) -> Iterator[Tool]:
    """Mark the tools that need an approval, according to the agent's settings."""
    for tool in tools:
        needs_approval = any(fnmatchcase(tool.spec.name, pattern) for pattern in agent.ask)
        yield replace(tool, needs_approval=True) if needs_approval else tool


DEFAULT_PROMPT = """\
You are {name}, an assistant that people chat with through Gatehouse.
Answer plainly and briefly, in the person's language. Use tools when they help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredAgent:
    name: str
    provider: Provider
    model: str | None
    info: ModelInfo
    """Facts about that model."""
    chosen_model: str | None = None
    """The model that was chosen for the session instead of the agent's own."""
    models: tuple[str, ...] = ()
    """The configured models of the agent, which everyone may choose."""
    excluded_models: Callable[[], frozenset[str]] = frozenset
    """Returns the full names of those that are not for the people whom a turn answers, by their roles of now."""
    is_choosable: bool = False
    """Whether everyone may choose the agent, and not only owners."""
    about: Callable[[str], ModelInfo]
    """Returns facts about a model by its name: one of this agent's provider, or `provider/model`."""
    system: str
    toolbox: Toolbox
    workspace: AgentWorkspace
    """The workspace of the session that `AgentRegistry.chosen` was called for."""
    skills: Callable[[], AgentSkills] = lambda: NO_SKILLS
    """Returns the skills that the agent had when `AgentRegistry.chosen` was called, as far as those people have any."""
    max_iterations: int
    is_coding: bool = False
    """Whether it is a program that speaks ACP. Then it has no provider and no tools of ours."""

    def models_for(self, role: Role) -> dict[str, str]:
        """Return the models that people with a role may choose, by their full names.

        A model has two names, `model` and `provider/model`. The full one tells whether two names are the same model.
        """
        names: dict[str, str] = {}
        for name in (*self.models, *([self.model] if self.model else [])):
            if role.may_choose_model(name, full := self.about(name).name, is_usual=True):
                names.setdefault(full, name)
        return names


class NoProvider:
    """Stands for the provider of a coding agent, whose program calls its model itself."""

    def __init__(self, agent: str) -> None:
        self._agent = agent

    async def stream(self, _prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        raise ProviderFailed(f"The agent {self._agent} works in sessions with a repository only.")
        yield TextDelta(text="")  # Makes this a generator.


class AgentRegistry:
    """All configured agents. They are opened at once, so that a mistake shows at the start."""

    def __init__(self, settings: Settings, mcp: McpServers | None = None) -> None:
        if faults := agent_faults(settings):
            raise CannotStart("\n".join(faults))
        mcp = mcp or McpServers()
        self._providers = ProviderRegistry(settings.providers)
        self._repos = {repo.id: AgentWorkspace(path=repo.path, name=repo.path.name) for repo in settings.repos}
        self._root = settings.gateway.workspace_root
        self._modes = {name: agent.workspace for name, agent in settings.agents.items()}
        self._shared: dict[str, AgentWorkspace] = {}
        self._used_providers: set[str] = set()
        self._archiving: ResilientProvider | None = None
        self._agents: dict[str, ConfiguredAgent] = {}
        self._skills = library = SkillLibrary(settings.skills.folders)
        self._skill_patterns = {
            name: agent.skills if may_use_skills(agent, settings) else () for name, agent in settings.agents.items()
        }
        for name, agent in settings.agents.items():
            is_shared = agent.workspace is WorkspaceMode.SHARED
            folder = (shared_folder if is_shared else private_folders)(self._root, name)
            _make_folder(folder)
            if is_shared:
                # An owner may have replaced the folder by a link. An agent must not, so it is resolved only here.
                self._shared[name] = AgentWorkspace(path=resolve_links(folder), name=name)
            if agent.backend is Backend.ACP:
                self._agents[name] = self._open_coding_agent(name, agent, settings)
                continue
            self._used_providers |= {agent.provider, *(each.partition("/")[0] for each in agent.fallbacks)}
            lineup = self._providers.for_agent(agent.provider, agent.model, agent.fallbacks)
            # Each once, the agent's own model first: `/model` lists them in this order.
            own_model = (agent.model,) if agent.model else ()
            models = dict.fromkeys((*own_model, *settings.providers[agent.provider].models, *agent.fallbacks))
            self._agents[name] = ConfiguredAgent(
                name=name,
                provider=lineup,
                model=agent.model,
                info=lineup.own.info,
                models=tuple(models),
                is_choosable=agent.choosable,
                about=lineup.about,
                system=_read_prompt(name, agent, settings),
                toolbox=open_toolbox(
                    name, agent, settings, mcp.tools, partial(library.choose, self._skill_patterns[name])
                ),
                # Without a session there is no scope. No message has this one, so the folder stays unused.
                workspace=self._workspace(name, f"agent:{name}"),
                max_iterations=agent.max_iterations,
            )
        if settings.memory.model is not None:
            provider, _, model = settings.memory.model.partition("/")
            self._used_providers.add(provider)
            self._archiving = self._providers.for_agent(provider, model, ())

    def _open_coding_agent(self, name: str, agent: AgentSettings, settings: Settings) -> ConfiguredAgent:
        about = partial(family_info, name)
        return ConfiguredAgent(
            name=name,
            provider=NoProvider(name),
            model=agent.model,
            info=about(agent.model or effective(agent).name),
            models=(agent.model,) if agent.model else (),
            is_choosable=agent.choosable,
            about=about,
            system=_read_prompt(name, agent, settings) if agent.system_prompt or agent.prompt_file else "",
            toolbox=Toolbox([]),
            workspace=self._workspace(name, f"agent:{name}"),
            max_iterations=agent.max_iterations,
            is_coding=True,
        )

    def __getitem__(self, name: str) -> ConfiguredAgent:
        return self._agents[name]

    def __iter__(self) -> Iterator[ConfiguredAgent]:
        return iter(self._agents.values())

    def chosen(self, bound: str, session: SessionMeta) -> ConfiguredAgent:
        """Return the agent of a session, with the model and workspace that were chosen for it.

        A choice that has been removed from the settings is ignored. `bound` is the agent without any choice.
        """
        agent = self._agents.get(session.agent) or self._agents.get(bound)
        if agent is None:
            raise Refused(f"The agent {bound} no longer exists. Resend your message, and another agent will answer.")
        agent = self.in_scope(agent.name, session.scope, repo=session.workspace)
        # A model is chosen for one agent. It does not carry over to another.
        if session.model is None or session.agent != agent.name:
            return agent
        return replace(agent, model=session.model, chosen_model=session.model, info=agent.about(session.model))

    @property
    def archives(self) -> bool:
        """Whether any agent has a model that archives sessions into memory."""
        return any(self.for_memory(name) is not None for name in self._agents)

    def for_memory(self, name: str) -> ConfiguredAgent | None:
        """Return an agent with the model that archives the sessions of the agent `name`; None: there is no model."""
        agent = self._agents.get(name) or next(iter(self._agents.values()))
        if (model := self._archiving) is not None:
            info, about = model.own.info, model.about
            agent = replace(agent, provider=model, model=model.own.model, info=info, about=about, toolbox=Toolbox([]))
        return agent if agent.info.sums_up else None

    def in_scope(self, name: str, scope: str, *, repo: str | None = None) -> ConfiguredAgent:
        """Return an agent with the workspace that it has in `scope`, or with the repository `repo`."""
        workspace = self._repos.get(repo or "") or self._workspace(name, scope)
        skills = self._skills.choose(self._skill_patterns.get(name, ()))
        return replace(self._agents[name], workspace=workspace, skills=lambda: skills)

    async def refresh_skills(self) -> None:
        """Notice changed skills. Call this before a turn chooses its agent."""
        await self._skills.refresh()

    def _workspace(self, agent: str, scope: str) -> AgentWorkspace:
        return self._shared.get(agent) or workspace_of(self._root, agent, self._modes[agent], scope)

    def replace(self, name: str, change: Callable[[ConfiguredAgent], ConfiguredAgent]) -> None:
        """Replace the agent `name` from its next turn on, for programs that embed the gateway."""
        self._agents[name] = change(self._agents[name])

    def swap(self, other: "AgentRegistry") -> None:
        """Exchange all agents with `other`: a reload prepares the new ones there, and then closes the old ones."""
        self.__dict__, other.__dict__ = other.__dict__, self.__dict__

    def skipped_models(self) -> list[str]:
        """Return the models that have failed recently and are replaced by fallbacks."""
        return self._providers.skipped_models()

    async def warm_up(self) -> None:
        """Read the CA certificates, off the event loop, so that the first message does not wait for that."""
        await self._providers.warm_up(sorted(self._used_providers))

    async def aclose(self) -> None:
        """Close the providers' connections, each as soon as no request uses it."""
        await self._providers.aclose()


def narrowed(agent: ConfiguredAgent, roles: Callable[[], AskerRoles]) -> ConfiguredAgent:
    """Return the agent with the tools, skills and models that people with these roles may use.

    If its model is not for them, its first model that is answers. Raises `Refused` if there is none.
    """

    def excluded() -> frozenset[str]:
        asker = roles()
        if not asker.limits_models or agent.model is None:
            return frozenset()
        return frozenset(info.name for name, info in names().items() if not asker.allows_model(name, info.name))

    def names() -> dict[str, ModelInfo]:
        return {name: agent.about(name) for name in filter(None, (agent.model, *agent.models))}

    def skills() -> AgentSkills:
        return agent.skills() if roles().allows_tool(_USE_SKILL) else NO_SKILLS

    asker = roles()
    narrow = replace(agent, toolbox=agent.toolbox.under(roles), excluded_models=excluded, skills=skills)
    # A coding agent that chooses its model itself, and one that answers by rules, have no model to compare.
    if not asker.limits_models or agent.model is None:
        return narrow
    allowed = [name for name, info in names().items() if asker.allows_model(name, info.name)]
    if not allowed:
        raise Refused(f"No model of the agent {agent.name} is for you. An owner can change your role.")
    if agent.model in allowed:
        return narrow
    return replace(narrow, model=allowed[0], chosen_model=allowed[0], info=agent.about(allowed[0]))


def agent_faults(settings: Settings) -> list[str]:
    """Return everything that keeps the agents from being opened. Changes nothing on disk."""
    faults = [
        f"mcp.{name} needs an extra that is not installed. Install it: {Installation.present().extra_command('mcp')}"
        for name in settings.mcp
        if find_spec("mcp") is None
    ]
    for name, agent in settings.agents.items():
        if agent.backend is Backend.ACP:
            faults += _program_faults(name, agent, settings)
        for part in (_read_prompt, open_toolbox):
            try:
                part(name, agent, settings)
            except CannotStart as fault:
                faults.append(str(fault))
    faults += _role_faults(settings)
    return list(dict.fromkeys(faults))  # Agents that share a provider share its faults.


def _role_faults(settings: Settings) -> Iterator[str]:
    """Yield the tools of roles that no agent can have. A typo would take a tool away, or let it run unasked."""
    known = {tool.spec.name for tool in (*built_in(settings), *ON_REQUEST)} | _SWITCHES.keys() | {*TOOL_KINDS}
    for name, role in settings.roles.items():
        for key, patterns in (("tools", role.tools or ()), ("ask", role.ask)):
            if unknown := [each for each in patterns if not _may_match(each, known, settings)]:
                yield f"roles.{name}.{key}: {_unknown_tools(unknown, sorted(known))}"


def _may_match(pattern: str, known: Iterable[str], settings: Settings) -> bool:
    """Return whether a pattern matches a built-in tool, or can match one of an MCP server, which is not known yet."""
    may_be_remote = bool(settings.mcp) and any(sign in pattern for sign in "*?[")
    return may_be_remote or server_of(pattern) in settings.mcp or any(fnmatchcase(tool, pattern) for tool in known)


def _program_faults(name: str, agent: AgentSettings, settings: Settings) -> Iterator[str]:
    if find_spec("acp") is None:
        command = Installation.present().extra_command("acp")
        yield f"agents.{name} needs an extra that is not installed. Install it: {command}"
    try:
        private = (settings.gateway.data_dir, settings.gateway.workspace_root)
        find_program(agent, os.environ.get("PATH", os.defpath), private=private)
    except ProgramMissing as missing:
        yield f"agents.{name}: {missing}"
    preset = effective(agent)
    if preset.needs_model_with in agent.env and not {preset.model_env} & environment(agent).keys():
        yield f"agents.{name}.model is required by {preset.name} with {preset.needs_model_with}. Set it."
    if unknown := [each for each in agent.always_allow if not any(fnmatchcase(kind, each) for kind in TOOL_KINDS)]:
        yield f"agents.{name}.always_allow: unknown kind {', '.join(unknown)}. Available: {', '.join(TOOL_KINDS)}."


def _make_folder(path: Path) -> None:
    try:
        make_private_directory(path)
    except OSError as error:
        raise CannotStart(
            f"Can't create the folder of workspaces {path}: {error.strerror}. "
            "Set gateway.workspace_root to a folder that this user may write to."
        ) from error


def _read_prompt(name: str, agent: AgentSettings, _settings: Settings) -> str:
    if agent.prompt_file is None:
        return agent.system_prompt or DEFAULT_PROMPT.format(name=name)
    try:
        return agent.prompt_file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CannotStart(
            f"agents.{name}.prompt_file: can't read {agent.prompt_file} as text ({error}). "
            f"Fix the file, or use agents.{name}.system_prompt."
        ) from error
