"""Commands that move between the sessions of a chat."""

from gateway.commands.command import Answer, Call, Command, Kind
from gateway.commands.numbers import read_number
from gateway.contract import Button
from gateway.sessions import SessionMeta
from gateway.text import excerpt
from gateway.text.clean import ago, count

__all__ = ["LIST", "NEW", "RESUME"]

TITLE_WIDTH = 60


async def _new(call: Call) -> Answer:
    title = excerpt(call.argument, TITLE_WIDTH) or None
    session = await call.desk.sessions.start_new(
        call.routed.scope,
        agent=call.routed.agent,
        origin=call.inbound.address,
        title=title,
        also=lambda session: call.settle(_started(session)),
    )
    return _started(session)


def _started(session: SessionMeta) -> Answer:
    named = f": {session.title}" if session.title else ""
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
    number = read_number(call.argument, "/session resume 2")
    session = await call.desk.sessions.resume(
        call.routed.scope, number, also=lambda session: call.settle(_resumed(session))
    )
    return _resumed(session)


def _resumed(session: SessionMeta) -> Answer:
    title = f": {session.title}" if session.title else ""
    return Answer(text=f"Back in session {session.number}{title} ({count(session.messages, 'message')}).")


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
