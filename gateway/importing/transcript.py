"""Writes a conversation of another gateway as the lines of a transcript."""

from collections.abc import Iterator
from datetime import datetime
from uuid import NAMESPACE_URL, uuid5

from gateway.importing.destination import Destination
from gateway.importing.values import Conversation, ImportedText, ImportedToolUse
from gateway.sessions import SessionStatus, TurnOutcome
from gateway.sessions import entries as e
from gateway.sessions.keys import session_key
from gateway.sessions.session import IMPORT
from gateway.sessions.storage.codec import stamp


def session_id(conversation: Conversation) -> str:
    """Return an id made of the conversation's origin, so that a second import of it is recognized."""
    origin = f"gatehouse-import:{conversation.maker}:{conversation.key}:{conversation.id}"
    return str(uuid5(NAMESPACE_URL, origin))


def to_transcript(
    conversation: Conversation, destination: Destination, number: int, now: datetime, *, epoch: int
) -> Iterator[bytes]:
    """Yield the lines of the transcript, with `number` as the number of the session in its scope.

    The session with the highest epoch of a scope is the active one.
    """
    address = destination.address
    origin = None
    if address is not None:
        origin = e.Origin(
            channel=address.channel,
            account=address.account,
            chat_id=address.peer,
            kind=address.kind.value,
            thread=address.thread,
        )
    header = e.Header(
        ts=conversation.created,
        version=e.FORMAT,
        id=session_id(conversation),
        key=session_key(destination.scope, number),
        scope=destination.scope,
        number=number,
        created=conversation.created,
        agent=destination.agent,
        origin=origin,
        epoch=epoch,
        highest_number=number,
    )
    title = [e.Title(ts=conversation.updated, value=conversation.title)] if conversation.title else []
    # The last entry is dated now. Otherwise pruning would delete an old conversation right after its import.
    status = e.Status(ts=now, value=SessionStatus.ACTIVE, by=IMPORT, why=f"Imported from {conversation.maker}.")
    for seq, entry in enumerate((header, *_entries(conversation), *title, status), start=1):
        yield stamp(entry, seq=seq, now=now)[1]


def _entries(conversation: Conversation) -> Iterator[e.Entry]:
    """Yield the entries of all turns. A turn starts with a message of a person, and ends before the next one."""
    turn = ""
    open_tools: set[str] = set()
    last = conversation.created
    for number, step in enumerate(conversation.steps, start=1):
        if not turn or (isinstance(step, ImportedText) and step.is_user):
            if turn:
                yield e.TurnEnd(ts=last, turn=turn, outcome=TurnOutcome.ANSWERED)
            turn = f"import-{number}"
            open_tools.clear()
        last = step.at
        match step:
            case ImportedText(is_user=True):
                yield e.User(
                    ts=step.at, turn=turn, content=step.content, sender=step.sender, sender_name=step.sender_name
                )
            case ImportedText():
                yield e.Assistant(ts=step.at, turn=turn, content=step.content)
            case ImportedToolUse():
                open_tools.add(step.id)
                yield e.ToolUse(ts=step.at, turn=turn, tool_use_id=step.id, name=step.name, input=dict(step.input))
            # A result without its call would make providers refuse the whole history.
            case _ if step.id in open_tools:
                open_tools.discard(step.id)
                yield e.ToolResult(
                    ts=step.at, turn=turn, tool_use_id=step.id, output=step.output, is_error=step.is_error
                )
            case _:
                conversation.left_out["orphaned tool result"] += 1
    if turn:
        yield e.TurnEnd(ts=last, turn=turn, outcome=TurnOutcome.ANSWERED)
