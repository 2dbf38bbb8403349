"""Commands about who answers in a session: the agent, its model, its tools, and how much of the session it sees."""

import asyncio
from collections.abc import Iterable, Sequence

from config import WorkspaceMode
from gateway.access.rights import Action, check_right
from gateway.access.rules import Live
from gateway.commands.command import NO_SESSION, Answer, Call, Handlers
from gateway.errors import Refused
from gateway.mcp.server import McpServers
from gateway.sessions import SessionManager, SessionMeta
from gateway.spool import Operation
from gateway.text import excerpt
from gateway.text.plain import count, without_code
from gateway.turns.agents import AgentRegistry, ConfiguredAgent
from gateway.turns.compaction import ON_REQUEST, CompactionRequest, Compactor
from gateway.turns.usage import person_of

DEFAULT = "default"
"""Stands for the agent's own model, or its own workspace."""
MAX_NAME = 200
SUMMARY_WIDTH = 80
MAX_LEFT_OUT = 20


class AgentCommands:
    def __init__(
        self,
        *,
        live: Live,
        sessions: SessionManager,
        agents: AgentRegistry,
        mcp: McpServers,
        compactor: Compactor,
    ) -> None:
        self._live = live
        self._sessions = sessions
        self._agents = agents
        self._mcp = mcp
        self._compactor = compactor

    def handlers(self) -> Handlers:
        return {
            "agent": self.agent,
            "model": self.model,
            "compact": self.compact,
            "tools": self.tools,
            "workspace": self.workspace,
        }

    async def agent(self, call: Call) -> Answer:
        session = await self._session(call)
        # Agents differ in what they may do, so only an owner may choose any of them.
        choices = [
            agent.name
            for agent in self._agents
            if call.is_owner or agent.is_choosable or agent.name == call.routed.agent
        ]
        wanted = call.argument.lower()
        if not wanted:
            current = agent_of(self._agents, call, session).name
            return Answer(text="\n".join(["Agents", *_rows(choices, current), "/agent <name> switches"]))
        check_right(self._live, call.inbound, Action.CHOOSE_AGENT, is_owner=call.is_owner)
        if wanted not in choices:
            raise Refused(f"There is no agent {wanted[:MAX_NAME]} that you can use. Available: {', '.join(choices)}.")
        return Answer(
            text=f"{wanted} now answers in session {session.number}.",
            commit=lambda operations: self._sessions.set_agent(session.key, wanted, also=operations),
        )

    async def model(self, call: Call) -> Answer:
        session = await self._session(call)
        agent = agent_of(self._agents, call, session)
        own = self._agents[agent.name]
        # A model has two names, `model` and `provider/model`. The full one tells whether two names are the same model.
        names: dict[str, str] = {}
        for name in (*agent.models, *([agent.model] if agent.model else [])):
            names.setdefault(agent.about(name).name, name)
        wanted = call.argument
        if not wanted:
            if not names:
                return Answer(text=f"The agent {agent.name} answers by rules and has no models.")
            rows = _rows(names.values(), names.get(agent.info.name))
            return Answer(text="\n".join([f"Models of {agent.name}", *rows, "/model <name> switches"]))
        check_right(self._live, call.inbound, Action.CHOOSE_AGENT, is_owner=call.is_owner)
        if len(wanted.split()) != 1 or len(wanted) > MAX_NAME:
            raise Refused("The name of a model is one word, like /model gpt-5 or /model local/llama3.3.")
        model = agent.about(wanted)
        configured = {agent.about(name).name for name in agent.models}
        if wanted.lower() == DEFAULT or (model.name == own.info.name and model.name not in configured):
            wanted = ""
        elif model.name in configured:
            wanted = names[model.name]
        elif not call.is_owner:
            choices = ", ".join((*agent.models, DEFAULT))
            raise Refused(f"You can choose one of: {choices}. An owner can choose any other model.")
        elif not model.sums_up and model.name != wanted:
            # An agent that answers by rules has no provider for a bare model name.
            raise Refused(f"The agent {agent.name} has no provider of its own. Name the model as provider/model.")
        named = wanted or f"its default model, {own.model or own.info.name},"
        return Answer(
            text=f"{agent.name} now answers with {named} in session {session.number}.",
            commit=lambda operations: self._sessions.set_model(session.key, wanted, also=operations),
        )

    async def compact(self, call: Call) -> Answer:
        session = await self._session(call)
        done = await self._compactor.compact(
            CompactionRequest(
                session=session.key,
                agent=agent_of(self._agents, call, session),
                person=person_of(self._live.settings, call.inbound),
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
        rows = []
        for spec in agent.toolbox.specs():
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
        repos = self._live.settings.repos
        # A folder may come and go while the gateway runs, such as one on another disk.
        troubles = await asyncio.to_thread(lambda: {repo.name: repo.find_trouble() for repo in repos})
        current = session.workspace if session.workspace in troubles else DEFAULT
        choices = [DEFAULT, *(name for name, trouble in troubles.items() if not trouble)]
        wanted = call.argument.lower()
        if not wanted:
            rows = _rows(choices if call.is_owner else [current], current)
            agent = agent_of(self._agents, call, session)
            is_private = self._live.settings.agents[agent.name].workspace is WorkspaceMode.PRIVATE
            rows.append(
                "The default workspace belongs to this conversation alone."
                if is_private
                else f"Everyone who talks to {agent.name} shares the default workspace."
            )
            unavailable = [_unavailable(*each) for each in troubles.items() if each[1] and call.is_owner]
            return Answer(text="\n".join(["Workspaces", *rows, *unavailable, "/workspace <name> switches (owner)"]))
        check_right(self._live, call.inbound, Action.CHOOSE_WORKSPACE, is_owner=call.is_owner)
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


def agent_of(agents: AgentRegistry, call: Call, session: SessionMeta | None) -> ConfiguredAgent:
    """Return the agent that answers in `session` now, with its model."""
    return agents[call.routed.agent] if session is None else agents.chosen(call.routed.agent, session)


def _unavailable(workspace: str, trouble: str) -> str:
    return f"The workspace {workspace} is unavailable: {trouble}."


def _rows(names: Iterable[str], current: str | None) -> list[str]:
    return [f"{'▸' if name == current else ' '} {name}" for name in names]
