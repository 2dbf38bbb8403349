"""Converts a conversation of another gateway to a transcript."""

from collections.abc import Iterator
from datetime import datetime
from uuid import NAMESPACE_URL, uuid5

from gateway.importing.destination import Destination
from gateway.importing.parse import ForeignSession, ImportedText, ImportedToolUse
from gateway.sessions import SessionStatus, TurnOutcome
from gateway.sessions import entries as e
from gateway.sessions.keys import session_key
from gateway.sessions.storage.codec import stamp


def session_id(session: ForeignSession) -> str:
    """Return an id made of the session's origin, so that a second import of it is recognized."""
    return str(uuid5(NAMESPACE_URL, f"gatehouse-import:{session.maker}:{session.key}:{session.id}"))


def to_transcript(session: ForeignSession, destination: Destination, number: int, now: datetime) -> Iterator[bytes]:
    """Yield the lines of the transcript, with `number` as the number of the session in its scope."""
    address = destination.address
    origin = None
    if address is not None:
        origin = e.Origin(
            channel=address.channel, account=address.account, chat_id=address.peer, kind=address.kind.value, thread=None
        )
    header = e.Header(
        ts=session.created,
        version=e.FORMAT,
        id=session_id(session),
        key=session_key(destination.scope, number),
        scope=destination.scope,
        number=number,
        created=session.created,
        agent=destination.agent,
        origin=origin,
        # If the scope has other sessions, the active one must stay active: it has the highest epoch.
        epoch=1 if number == 1 else 0,
        highest_number=number,
    )
    # The last entry is dated now. Otherwise pruning would delete an old conversation right after its import.
    status = e.Status(ts=now, value=SessionStatus.ACTIVE, by="import", why=f"Imported from {session.maker}.")
    for seq, entry in enumerate((header, *_entries(session), status), start=1):
        yield stamp(entry, seq=seq, now=now)[1]


def _entries(session: ForeignSession) -> Iterator[e.Entry]:
    """Yield the entries of all turns. A turn starts with a message of a person, and ends before the next one."""
    turn = ""
    open_tools: set[str] = set()
    last = session.created
    for number, step in enumerate(session.steps, start=1):
        if not turn or (isinstance(step, ImportedText) and step.is_user):
            if turn:
                yield e.TurnEnd(ts=last, turn=turn, outcome=TurnOutcome.ANSWERED)
            turn = f"import-{number}"
        last = step.at
        match step:
            case ImportedText(is_user=True):
                yield e.User(ts=step.at, turn=turn, content=step.content)
            case ImportedText():
                yield e.Assistant(ts=step.at, turn=turn, content=step.content)
            case ImportedToolUse():
                open_tools.add(step.id)
                yield e.ToolUse(ts=step.at, turn=turn, tool_use_id=step.id, name=step.name, input=dict(step.input))
            # A result without its call would make providers refuse the whole history.
            case _ if step.id in open_tools:
                open_tools.discard(step.id)
                yield e.ToolResult(ts=step.at, turn=turn, tool_use_id=step.id, output=step.output)
            case _:
                session.left_out["orphaned tool result"] += 1
    if turn:
        yield e.TurnEnd(ts=last, turn=turn, outcome=TurnOutcome.ANSWERED)
