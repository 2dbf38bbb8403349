"""Writes a conversation of another gateway as a transcript of ours."""

from collections.abc import Iterator
from datetime import datetime
from uuid import NAMESPACE_URL, uuid5

from gateway.importing.placing import Place
from gateway.importing.reading import Foreign, Said, ToolAsked
from gateway.sessions import SessionStatus, TurnOutcome
from gateway.sessions import entries as e
from gateway.sessions.encoding import seal
from gateway.sessions.names import session_key

__all__ = ["session_id", "transcript"]


def session_id(foreign: Foreign) -> str:
    """Name the session by where it is from, so that it is known again when it is imported a second time."""
    return str(uuid5(NAMESPACE_URL, f"gatehouse-import:{foreign.maker}:{foreign.key}:{foreign.id}"))


def transcript(foreign: Foreign, place: Place, number: int, now: datetime) -> Iterator[bytes]:
    """Yield the lines. The last one is of `now`, so that an old conversation is not swept away for its age at once."""
    for seq, entry in enumerate(_entries(foreign, place, number, now), start=1):
        yield seal(entry, seq=seq, now=now)[1]


def _entries(foreign: Foreign, place: Place, number: int, now: datetime) -> Iterator[e.Entry]:
    is_first = number == 1
    yield e.Header(
        ts=foreign.created,
        version=e.FORMAT,
        id=session_id(foreign),
        key=session_key(place.scope, number),
        scope=place.scope,
        number=number,
        created=foreign.created,
        agent=place.agent,
        origin=_origin(place),
        # Where there are others, none of them may lose its place as the active one to this.
        epoch=1 if is_first else 0,
        highest_number=number,
    )
    yield from _turns(foreign)
    why = f"Imported from {foreign.maker}."
    yield e.Status(ts=now, value=SessionStatus.ACTIVE, by="import", why=why)


def _origin(place: Place) -> e.Origin | None:
    if place.address is None:
        return None
    address = place.address
    return e.Origin(
        channel=address.channel, account=address.account, chat_id=address.peer, kind=address.kind.value, thread=None
    )


def _turns(foreign: Foreign) -> Iterator[e.Entry]:
    """Let a turn begin with each message of a person, and end before the next."""
    turn = ""
    asked: set[str] = set()
    last = foreign.created
    for number, step in enumerate(foreign.steps, start=1):
        if not turn or (isinstance(step, Said) and step.is_user):
            if turn:
                yield _end(turn, last)
            turn = f"import-{number}"
        last = step.at
        match step:
            case Said(is_user=True):
                yield e.User(ts=step.at, turn=turn, content=step.content)
            case Said():
                yield e.Assistant(ts=step.at, turn=turn, content=step.content)
            case ToolAsked():
                asked.add(step.id)
                yield e.ToolUse(ts=step.at, turn=turn, tool_use_id=step.id, name=step.name, input=dict(step.input))
            case _ if step.id in asked:
                asked.discard(step.id)
                yield e.ToolResult(ts=step.at, turn=turn, tool_use_id=step.id, output=step.output)
            case _:
                foreign.left_out["orphaned tool result"] += 1
    if turn:
        yield _end(turn, last)


def _end(turn: str, at: datetime) -> e.Entry:
    return e.TurnEnd(ts=at, turn=turn, outcome=TurnOutcome.ANSWERED)
