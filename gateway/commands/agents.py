"""Commands about who answers in a session: the agent, its model, its tools, and how much of the session it sees."""

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Protocol

from config import WorkspaceMode
from gateway.access.rights import Action, check_right
from gateway.access.role_table import AskerRoles
from gateway.access.roles import role_in, roles_of_all
from gateway.access.rules import Live
from gateway.commands.command import NO_SESSION, Answer, Call, Handlers
from gateway.errors import Refused
from gateway.mcp.server import McpServers
from gateway.repos.repositories import Repositories
from gateway.sessions import SessionManager, SessionMeta, SessionStatus
from gateway.spool import Operation
from gateway.text import excerpt
from gateway.text.plain import count, without_code
from gateway.turns.agents import AgentRegistry, ConfiguredAgent, narrowed
from gateway.turns.compaction import ON_REQUEST, CompactionRequest, Compactor
from gateway.turns.usage import person_of

DEFAULT = "default"
"""Stands for the agent's own model, or its own workspace."""
MAX_NAME = 200
SUMMARY_WIDTH = 80
MAX_LEFT_OUT = 20


class StartSession(Protocol):
    async def __call__(self, call: Call, *, agent: str, named: str) -> Answer:
        """Return the answer that starts a session with an agent, in the repository that is `named`, if one is."""


class AgentCommands:
    def __init__(
        self,
        *,
        live: Live,
        sessions: SessionManager,
        agents: AgentRegistry,
        mcp: McpServers,
        compactor: Compactor,
        repos: Repositories,
        start_session: StartSession,
    ) -> None:
        self._live = live
        self._sessions = sessions
        self._agents = agents
        self._mcp = mcp
        self._compactor = compactor
        self._repos = repos
        self._start_session = start_session

    def handlers(self) -> Handlers:
        return {
            "agent": self.agent,
            "model": self.model,
            "compact": self.compact,
            "tools": self.tools,
            "workspace": self.workspace,
        }

    async def agent(self, call: Call) -> Answer:
        session = self._sessions.find(call.session) if call.session else None
        # Agents differ in what they may do, so only an owner may choose any of them.
        role = role_in(self._live, call.inbound)
        choices = [
            agent.name
            for agent in self._agents
            if role.may_choose_agent(agent.name, is_usual=agent.is_choosable or agent.name == call.routed.agent)
        ]
        wanted, named = split_agent(call.argument)
        mark = "@" in call.argument
        current = agent_of(self._agents, call, session).name
        if mark and not (wanted and named):
            raise Refused("Add both names, like /agent coder @website. /agent and /repos list them.")
        if not wanted:
            return Answer(text="\n".join(["Agents", *_rows(choices, current), "/agent <name> switches"]))
        check_right(self._live, call.inbound, Action.CHOOSE_AGENT, is_owner=call.is_owner)
        if wanted not in choices:
            raise Refused(f"There is no agent {wanted[:MAX_NAME]} that you can use. Available: {', '.join(choices)}.")
        if starts_session(self._repos, call.argument, current):
            is_open = session is not None and session.status is SessionStatus.ACTIVE
            if session is not None and is_open and wanted == current and not named:
                return Answer(text=f"{wanted} already answers in session {session.number}. /new starts another one.")
            if call.is_queued:  # The settings have changed since it was accepted.
                raise Refused(f"{wanted} needs a new session by now. Please send the command again.")
            return await self._start_session(call, agent=wanted, named=named)
        session = await self._session(call)
        return Answer(
            text=f"{wanted} now answers in session {session.number}.",
            commit=lambda operations: self._sessions.set_agent(session.key, wanted, also=operations),
        )

    async def model(self, call: Call) -> Answer:
        session = await self._session(call)
        agent = agent_of(self._agents, call, session)
        own = self._agents[agent.name]
        role = role_in(self._live, call.inbound)
        names = agent.models_for(role)
        wanted = call.argument
        if not wanted:
            if agent.is_coding and not names:
                hint = "An owner can choose one with /model <name>."
                return Answer(text=f"The agent {agent.name} chooses its model itself. {hint}")
            if not names and agent.model is not None:
                return Answer(text=f"The agent {agent.name} has no models that you can use.")
            if not names:
                return Answer(text=f"The agent {agent.name} answers by rules and has no models.")
            rows = _rows(names.values(), names.get(agent.info.name))
            return Answer(text="\n".join([f"Models of {agent.name}", *rows, "/model <name> switches"]))
        check_right(self._live, call.inbound, Action.CHOOSE_AGENT, is_owner=call.is_owner)
        if len(wanted.split()) != 1 or len(wanted) > MAX_NAME:
            raise Refused("The name of a model is one word, like /model gpt-5 or /model local/llama3.3.")
        model = agent.about(wanted)
        configured = {agent.about(name).name for name in agent.models}
        is_own = model.name == own.info.name and model.name not in configured
        configured &= names.keys()
        if wanted.lower() == DEFAULT or is_own:
            wanted = ""
        elif model.name in configured:
            wanted = names[model.name]
        elif not role.may_choose_model(wanted, model.name, is_usual=False):
            choices = ", ".join((*names.values(), DEFAULT))
            raise Refused(f"You can choose one of: {choices}. An owner can choose any other model.")
        elif not agent.is_coding and not model.sums_up and model.name != wanted:
            # An agent that answers by rules has no provider for a bare model name.
            raise Refused(f"The agent {agent.name} has no provider of its own. Name the model as provider/model.")
        named = wanted or ("its own choice" if agent.is_coding and not own.model else "")
        is_own_allowed = own.model is None or role.may_choose_model(own.model, own.info.name, is_usual=True)
        named = named or (
            f"its default model, {own.model or own.info.name}," if is_own_allowed else "the model for you"
        )
        return Answer(
            text=f"{agent.name} now answers with {named} in session {session.number}.",
            commit=lambda operations: self._sessions.set_model(session.key, wanted, also=operations),
        )

    async def compact(self, call: Call) -> Answer:
        session = await self._session(call)
        agent = agent_of(self._agents, call, session)
        if agent.is_coding:
            raise Refused(f"The agent {agent.name} looks after its own context. /clear makes it forget this session.")
        roles = partial(roles_of_all, self._live, [call.inbound])
        done = await self._compactor.compact(
            CompactionRequest(
                session=session.key,
                agent=narrowed(agent, roles),
                person=person_of(self._live.settings, call.inbound),
                limits=lambda: roles().limits(self._live.settings.limits),
                keep=ON_REQUEST,
            )
        )
        if done.failure:
            raise Refused(f"I couldn't summarise this session, and nothing has changed: {without_code(done.failure)}")
        if not done.messages:
            return Answer(text="There is nothing to summarise yet.")
        kept = f"the last {done.kept} stay as they are" if done.kept > 1 else "the last one stays as it is"
        return Answer(text=f"Summarised {count(done.messages, 'message')}; {kept}. The transcript keeps everything.")

    async def tools(self, call: Call) -> Answer:
        session = None if call.session is None else (await self._sessions.load(call.session)).meta
        agent = agent_of(self._agents, call, session)
        if agent.is_coding:
            return Answer(text=f"{agent.name} has tools of its own. They run in a sandbox with the repository.")
        rows = []
        asker = AskerRoles([role_in(self._live, call.inbound)])
        for spec in agent.toolbox.under(lambda: asker).specs():
            summary = excerpt(without_code(spec.description.partition("\n")[0]), SUMMARY_WIDTH)
            rows.append(f"{spec.name} - {summary}" if summary else spec.name)
        # The reason may name programs and addresses, so only an owner sees it.
        unavailable = [
            f"The MCP server {server.name} is unavailable" + (f": {server.trouble}." if call.is_owner else ".")
            for server in self._mcp
            if server.trouble
        ]
        left_out = [
            f"Left out: {each.name} of {server.name}" + (f": {each.reason}." if call.is_owner else ".")
            for server in self._mcp
            for each in server.left_out[:MAX_LEFT_OUT]
        ]
        return Answer(text="\n".join([f"Tools of {agent.name}", *(rows or ["(none)"]), *left_out, *unavailable]))

    async def workspace(self, call: Call) -> Answer:
        session = await self._session(call)
        if session.repo:
            raise Refused(
                f"Session {session.number} works in the repository {session.repo}, for good. "
                "/new @<repository> starts a session with another one, and /repos lists them."
            )
        repos = self._live.settings.repos
        # A folder may come and go while the gateway runs, such as one on another disk.
        troubles = await asyncio.to_thread(lambda: {repo.id: repo.find_trouble() for repo in repos})
        current = session.workspace if session.workspace in troubles else DEFAULT
        role = role_in(self._live, call.inbound)
        troubles = {name: each for name, each in troubles.items() if role.may_use_repo(name, is_usual=True)}
        choices = [DEFAULT, *(name for name, trouble in troubles.items() if not trouble)]
        wanted = call.argument.lower()
        if not wanted:
            rows = _rows(choices if call.is_granted else [current], current)
            agent = agent_of(self._agents, call, session)
            is_private = self._live.settings.agents[agent.name].workspace is WorkspaceMode.PRIVATE
            rows.append(
                "The default workspace belongs to this conversation alone."
                if is_private
                else f"Everyone who talks to {agent.name} shares the default workspace."
            )
            unavailable = [_unavailable(*each) for each in troubles.items() if each[1] and call.is_owner]
            return Answer(text="\n".join(["Workspaces", *rows, *unavailable, "/workspace <name> switches (owner)"]))
        check_right(self._live, call.inbound, Action.CHOOSE_WORKSPACE, is_owner=call.is_granted)
        if trouble := troubles.get(wanted):
            raise Refused(_unavailable(wanted, trouble))
        if wanted not in choices:
            raise Refused(f"There is no workspace {wanted[:MAX_NAME]}. Available: {', '.join(choices)}.")

        async def commit(operations: Sequence[Operation]) -> None:
            name = "" if wanted == DEFAULT else wanted
            await self._sessions.set_workspace(session.key, name, also=operations)

        return Answer(text=f"The tools of session {session.number} now work in {wanted}.", commit=commit)

    async def _session(self, call: Call) -> SessionMeta:
        if call.session is None:
            raise Refused(NO_SESSION)
        return (await self._sessions.load(call.session)).meta


def starts_session(repos: Repositories, argument: str, current: str) -> bool:
    """Return whether `/agent` with this argument starts a session. `current` is the agent that answers now.

    A coding agent has its own memory of the session, and is bound to a repository. So another one, or another
    repository, needs another session.
    """
    wanted, _ = split_agent(argument)
    is_coding = any(map(repos.is_coding_agent, (wanted, current)))
    return "@" in argument or (bool(wanted) and is_coding)


def split_agent(argument: str) -> tuple[str, str]:
    """Return the agent and the repository that `/agent` names."""
    wanted, _, named = argument.lower().partition("@")
    return wanted.strip(), named.strip()


def agent_of(agents: AgentRegistry, call: Call, session: SessionMeta | None) -> ConfiguredAgent:
    """Return the agent that answers in `session` now, with its model."""
    return agents[call.routed.agent] if session is None else agents.chosen(call.routed.agent, session)


def _unavailable(workspace: str, trouble: str) -> str:
    return f"The workspace {workspace} is unavailable: {trouble}."


def _rows(names: Iterable[str], current: str | None) -> list[str]:
    return [f"{'▸' if name == current else ' '} {name}" for name in names]
