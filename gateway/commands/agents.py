"""Commands about who answers in a session: the agent, its model, and how much of the conversation it is shown."""

from collections.abc import Iterable

from gateway.agent.protocol import ToolSpec
from gateway.commands.command import NO_SESSION, Answer, Call, Command, Kind
from gateway.contract import PeerKind
from gateway.errors import Refused
from gateway.sessions import SessionMeta
from gateway.text import excerpt
from gateway.text.plain import count
from gateway.turns.agents import Agent
from gateway.turns.compaction import ON_REQUEST, CompactionRequest
from gateway.turns.usage import person_of

OWN = "default"
MAX_NAME = 200


def answering(call: Call, session: SessionMeta | None) -> Agent:
    """Return the agent that answers in `session` now, with its model."""
    agents = call.desk.agents
    return agents[call.routed.agent] if session is None else agents.chosen(call.routed.agent, session)


async def own_session(call: Call) -> SessionMeta:
    """Return the session that the command is about; `Refused` where there is none."""
    if call.session is None:
        raise Refused(NO_SESSION)
    return (await call.desk.sessions.load(call.session)).meta


def _insist_on_owner(call: Call) -> None:
    if call.inbound.address.kind is not PeerKind.DIRECT and not call.is_owner:
        raise Refused("Only the owner may change who answers where others talk too.")


async def _agent(call: Call) -> Answer:
    session = await own_session(call)
    choice = [each for each in call.desk.agents if _may_choose(call, each)]
    current = answering(call, session).name
    wanted = call.argument.lower()
    if not wanted:
        rows = _rows((each.name for each in choice), current)
        return Answer(text="\n".join(["Agents", *rows, "/agent <name> to let another one answer"]))
    _insist_on_owner(call)
    if wanted not in {each.name for each in choice}:
        raise Refused(f"There is no agent {wanted[:MAX_NAME]} for you. There are: {_listed(choice)}.")
    answer = Answer(text=f"From now on {wanted} answers in session {session.number}.")
    await call.desk.sessions.set_agent(session.key, wanted, also=call.settle(answer))
    return answer


def _may_choose(call: Call, agent: Agent) -> bool:
    """Agents differ in what they may do, so others than the owner choose only what the owner has opened to them."""
    return call.is_owner or agent.is_choosable or agent.name == call.routed.agent


def _listed(agents: Iterable[Agent]) -> str:
    return ", ".join(each.name for each in agents)


def _rows(names: Iterable[str], current: str | None) -> list[str]:
    return [f"{'▸' if name == current else ' '} {name}" for name in names]


async def _model(call: Call) -> Answer:
    session = await own_session(call)
    agent = answering(call, session)
    if not call.argument:
        names = dict.fromkeys((*agent.models, *([agent.model] if agent.model else [])))
        if not names:
            return Answer(text=f"The agent {agent.name} answers by rules and has no models.")
        rows = _rows(names, agent.model)
        return Answer(text="\n".join([f"Models of {agent.name}", *rows, "/model <name> to let another one answer"]))
    _insist_on_owner(call)
    wanted = "" if call.argument.lower() == OWN else _model_name(call, agent)
    named = wanted or f"its own model, {call.desk.agents[agent.name].model or 'none'}"
    answer = Answer(text=f"From now on {agent.name} answers with {named} in session {session.number}.")
    await call.desk.sessions.set_model(session.key, wanted, also=call.settle(answer))
    return answer


def _model_name(call: Call, agent: Agent) -> str:
    wanted = call.argument
    if wanted in agent.models:
        return wanted
    if not call.is_owner:
        there = ", ".join((*agent.models, OWN))
        raise Refused(f"You can choose one of: {there}. The owner can choose any other.")
    if len(wanted.split()) != 1 or len(wanted) > MAX_NAME:
        raise Refused("The name of a model is one word, like /model gpt-5 or /model local/llama3.3.")
    if not agent.about(wanted).sums_up:
        raise Refused(f"The agent {agent.name} has no models of its own. Name one as provider/model.")
    return wanted


async def _compact(call: Call) -> Answer:
    session = await own_session(call)
    agent = answering(call, session)
    person = person_of(call.desk.live.settings, call.inbound)
    done = await call.desk.compactions.compact(
        CompactionRequest(session=session.key, agent=agent, person=person, keep=ON_REQUEST)
    )
    if done.failure:
        raise Refused(f"The conversation could not be summed up, and nothing has changed: {done.failure}")
    if not done.messages:
        return Answer(text="There is nothing to sum up yet.")
    kept = (
        f"the last {count(done.kept, 'message')} stay as they are" if done.kept > 1 else "the last one stays as it is"
    )
    return Answer(
        text=f"Summed up {count(done.messages, 'message')}; {kept}. The transcript keeps everything that was said."
    )


AGENT = Command(
    name="agent", arguments="[name]", summary="Show the agents, or let another one answer", run=_agent, kind=Kind.QUEUED
)
MODEL = Command(
    name="model", arguments="[name]", summary="Show the models, or let another one answer", run=_model, kind=Kind.QUEUED
)
COMPACT = Command(
    name="compact",
    summary="Have the older part of this session summed up",
    run=_compact,
    kind=Kind.QUEUED,
    is_long=True,
)


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


async def _workspace(call: Call) -> Answer:
    session = await own_session(call)
    folders = {repo.name: repo.path for repo in call.desk.live.settings.repos}
    current = session.workspace if session.workspace in folders else OWN
    wanted = call.argument.lower()
    if not wanted:
        names = [OWN, *folders] if call.is_owner else [current]
        rows = [f"{'▸' if name == current else ' '} {name}" for name in names]
        return Answer(text="\n".join(["Workspaces", *rows, "/workspace <name> to work in another one (owner)"]))
    if not call.is_owner:  # They are folders of the owner's, and not everybody's to look into.
        raise Refused("Only the owner may choose the workspace.")
    if wanted != OWN and wanted not in folders:
        raise Refused(f"There is no workspace {wanted[:MAX_NAME]}. There are: {', '.join([OWN, *folders])}.")
    answer = Answer(text=f"From now on the tools of session {session.number} work in {wanted}.")
    await call.desk.sessions.set_workspace(session.key, "" if wanted == OWN else wanted, also=call.settle(answer))
    return answer


WORKSPACE = Command(
    name="workspace",
    arguments="[name]",
    summary="Show the workspaces, or let the tools work in another one",
    run=_workspace,
    kind=Kind.QUEUED,
)
