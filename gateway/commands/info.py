"""Commands that tell how things are, and what they cost."""

import msgspec

from gateway.commands.agents import answering
from gateway.commands.command import Answer, Call, Command, Kind, spent_in_words
from gateway.contract import Inbound, Outbound
from gateway.errors import Refused
from gateway.job import Job
from gateway.lanes import Lanes
from gateway.sessions import SessionMeta, current_plan
from gateway.spool import InboxState, SetFact, SetInboxState
from gateway.text.plain import count
from gateway.turns.usage import person_of


class Dropped:
    """Messages taken out of the lanes in which they waited; where their end cannot be stored, they wait again."""

    def __init__(self, *places: tuple[Lanes[Job], str]) -> None:
        self._taken = [(lanes, key, lanes.take_waiting(key)) for lanes, key in places]
        self._jobs = [job for _, _, jobs in self._taken for job in jobs]

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def put_back(self) -> None:
        for lanes, key, jobs in self._taken:
            lanes.put_back(key, jobs)

    def told(self, sentence: str, *, asked: Inbound, why: str) -> Answer:
        """Answer with a sentence, and with how many were dropped; those from other chats than this are told there."""
        also = f" {count(len(self._jobs), 'waiting message')} dropped." if self._jobs else ""
        settled = [SetInboxState(turn=job.turn, state=InboxState.ABANDONED, note=why) for job in self._jobs]
        elsewhere = [job for job in self._jobs if job.inbound.address != asked.address]
        return Answer(
            text=f"{sentence}{also}",
            also=tuple(settled),
            notices=tuple(_notice(job, why) for job in elsewhere),
            otherwise=self.put_back,
        )


def _notice(job: Job, why: str) -> Outbound:
    return Outbound(
        address=job.inbound.address,
        text=f"This was not answered: {why}. Send it again if it still matters.",
        reply_to=job.inbound.message_id,
        session=job.number,
        is_failure=True,
    )


SHOWN_PEOPLE = 10


async def _status(call: Call) -> Answer:
    session = call.desk.sessions.active(call.routed.scope)
    here = f"Session {session.number}, {count(session.messages, 'message')}." if session else "No session yet."
    agent = answering(call, session)
    questions = call.desk.approvals.of_scope(call.routed.scope)
    waits = [f"Waiting for an answer: may I use {question.call.name}?" for question in questions]
    lines = [
        f"{here} Agent: {agent.name}. Model: {agent.info.name}.",
        *await _context(call, session),
        *await _plan(call, session),
    ]
    return Answer(text="\n".join([*lines, *waits, call.desk.status()]))


async def _context(call: Call, session: SessionMeta | None) -> list[str]:
    """Tell how full the model's context is, and what the session has used so far."""
    if session is None:
        return []
    agent = answering(call, session)
    size = call.desk.meter.size(agent, await call.desk.sessions.history(session.key))
    room = call.desk.meter.budget(agent)
    fill = f"Context: about {size:,} of {room:,} tokens ({100 * size // room} %)."
    return [fill, f"This session: {spent_in_words(session.spent)}."] if session.spent.tokens else [fill]


async def _plan(call: Call, session: SessionMeta | None) -> list[str]:
    """Show the plan of the turn that is running, if it has told one."""
    plan = current_plan((await call.desk.sessions.load(session.key)).entries) if session else None
    marks = {"completed": "✓", "in_progress": "▸"}
    return [f"  {marks.get(step.status, '·')} {step.content}" for step in plan.steps] if plan else []


async def _usage(call: Call) -> Answer:
    person = person_of(call.desk.live.settings, call.inbound)
    today = await call.desk.meter.daily.today(person)
    limit = call.desk.live.settings.limits.tokens_per_user_per_day
    left = f"; {max(0, limit - today.tokens):,} of {limit:,} tokens are left" if limit else ""
    session = call.desk.sessions.active(call.routed.scope)
    lines = [f"You, today (UTC): {spent_in_words(today)}{left}."]
    lines += [f"This session: {spent_in_words(session.spent)}."] if session else []
    return Answer(text="\n".join([*lines, *(await _everybody(call) if call.is_owner else [])]))


async def _everybody(call: Call) -> list[str]:
    together, people = await call.desk.meter.daily.everybody(SHOWN_PEOPLE)
    rows = [f"  {person}: {spent_in_words(spent)}" for person, spent in people]
    return [f"Everybody, today: {spent_in_words(together)}{'. Those who used most:' if rows else '.'}", *rows]


STATUS = Command(
    name="status", summary="Show how the gateway and this session are doing", run=_status, kind=Kind.READING
)
USAGE = Command(name="usage", summary="Show what you have used of the models today, and in this session", run=_usage)


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
    note = SetFact(name=RESTARTED_BY, value=msgspec.json.encode(call.inbound.address).decode())
    return Answer(text="Restarting. I will tell you here when I am back.", also=(note,), then=call.desk.restart)


HELP = Command(name="help", aliases=("start",), summary="Show this list", run=_help)
STOP = Command(name="stop", summary="Stop the answer that is being written and drop what waits behind it", run=_stop)
RESTART = Command(name="restart", summary="Restart the gateway (owner); nothing is lost", run=_restart)
WHOAMI = Command(name="whoami", summary="Show who you are to the gateway", run=_whoami)
