"""Commands that move between the sessions of a chat."""

from gateway.commands.command import Answer, Call, Command, Kind
from gateway.commands.wording import ago, count
from gateway.contract import Button
from gateway.errors import Refused
from gateway.sessions import SessionMeta
from gateway.text import excerpt

__all__ = ["HISTORY", "LIST", "NEW", "RESUME"]

SHOWN_LINES = 10
MAX_SHOWN_LINES = 100
TITLE_WIDTH = 60


async def _new(call: Call) -> Answer:
    title = excerpt(call.argument, TITLE_WIDTH) or None
    session = await call.desk.sessions.start_new(
        call.routed.scope,
        agent=call.routed.agent,
        origin=call.inbound.address,
        title=title,
    )
    named = f": {title}" if title else ""
    return Answer(text=f"Started session {session.number}{named}. What you write now goes there.")


async def _list(call: Call) -> Answer:
    sessions = call.desk.sessions.list(call.routed.scope)
    if not sessions:
        return Answer(text="There are no sessions here yet. Write something to start the first one.")
    active = call.desk.sessions.active(call.routed.scope)
    rows = [_row(session, call, is_active=active is not None and session.key == active.key) for session in sessions]
    return Answer(
        text="\n".join(["Sessions (newest first)", *rows, "/session resume <number> to go back to one"]),
        buttons=tuple(_button(session) for session in sessions),
    )


def _row(session: SessionMeta, call: Call, *, is_active: bool) -> str:
    mark = "▸" if is_active else " "
    if session.messages == 0:
        return f"{mark} {session.number}  {session.title or '(empty)'}"
    when = ago(session.updated_at, call.desk.now())
    return f"{mark} {session.number}  {session.title} · {count(session.messages, 'message')} · {when}"


def _button(session: SessionMeta) -> Button:
    return Button(label=f"{session.number} {session.title or '(empty)'}", command=f"/session resume {session.number}")


async def _resume(call: Call) -> Answer:
    number = _number(call.argument, "/session resume 2")
    session = await call.desk.sessions.resume(call.routed.scope, number)
    title = f": {session.title}" if session.title else ""
    return Answer(text=f"Back in session {session.number}{title} ({count(session.messages, 'message')}).")


async def _history(call: Call) -> Answer:
    wanted = min(_number(call.argument, "/history 20"), MAX_SHOWN_LINES) if call.argument else SHOWN_LINES
    active = call.desk.sessions.active(call.routed.scope)
    lines = await call.desk.sessions.lines(active.key, wanted) if active else []
    if not lines:
        return Answer(text="Nothing has been said in this session yet.")
    return Answer(text="\n\n".join(f"{'You' if line.role == 'user' else 'Agent'}: {line.text}" for line in lines))


def _number(argument: str, example: str) -> int:
    if not (argument.isascii() and argument.isdigit() and 0 < len(argument) < len("1000000000")):
        raise Refused(f"Which one? Send its number, like {example}. /session list shows the numbers.")
    return int(argument)


NEW = Command(
    name="new",
    aliases=("reset",),
    arguments="[title]",
    summary="Start a new session; the old one is kept",
    run=_new,
    kind=Kind.STRUCTURAL,
)
LIST = Command(
    name="session list", aliases=("sessions", "session"), summary="Show the sessions of this chat", run=_list
)
RESUME = Command(
    name="session resume",
    aliases=("switch",),
    arguments="<number>",
    summary="Go back to an earlier session",
    run=_resume,
    kind=Kind.STRUCTURAL,
)
HISTORY = Command(name="history", arguments="[lines]", summary="Show the last lines of this session", run=_history)
