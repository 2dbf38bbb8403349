"""Commands that tell how things are, and what they cost."""

from gateway.commands.command import Answer, Call, Command, Kind
from gateway.commands.models import answering
from gateway.commands.wording import spent_in_words
from gateway.sessions import SessionMeta, plan_at_hand
from gateway.text.clean import count
from gateway.turns.usage import person_of

__all__ = ["STATUS", "USAGE"]

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
    plan = plan_at_hand((await call.desk.sessions.load(session.key)).entries) if session else None
    marks = {"completed": "✓", "in_progress": "▸"}
    return [f"  {marks.get(step.status, '·')} {step.content}" for step in plan.steps] if plan else []


async def _usage(call: Call) -> Answer:
    person = person_of(call.desk.live.settings, call.inbound)
    today = await call.desk.meter.spending.today(person)
    limit = call.desk.live.settings.limits.tokens_per_user_per_day
    left = f"; {max(0, limit - today.tokens):,} of {limit:,} tokens are left" if limit else ""
    session = call.desk.sessions.active(call.routed.scope)
    lines = [f"You, today (UTC): {spent_in_words(today)}{left}."]
    lines += [f"This session: {spent_in_words(session.spent)}."] if session else []
    return Answer(text="\n".join([*lines, *(await _everybody(call) if call.is_owner else [])]))


async def _everybody(call: Call) -> list[str]:
    together, people = await call.desk.meter.spending.everybody(SHOWN_PEOPLE)
    rows = [f"  {person}: {spent_in_words(spent)}" for person, spent in people]
    return [f"Everybody, today: {spent_in_words(together)}{'. Those who used most:' if rows else '.'}", *rows]


STATUS = Command(
    name="status", summary="Show how the gateway and this session are doing", run=_status, kind=Kind.READING
)
USAGE = Command(name="usage", summary="Show what you have used of the models today, and in this session", run=_usage)
