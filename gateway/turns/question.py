"""A question to a person about a tool call, and its texts: short in the chat, and in full on request."""

import asyncio
import json
from collections.abc import Collection
from datetime import timedelta
from enum import StrEnum

from msgspec import Struct, field
from msgspec.structs import replace

from gateway.access.guests import Person
from gateway.contract import Button, Outbound, PeerKind, Sender
from gateway.conversation import Json, ToolCall
from gateway.job import Job
from gateway.sessions import entries
from gateway.text.plain import count, duration

_MAX_VALUE = 800
_MAX_NAME = 60
_MAX_ARGUMENTS = 12
_MAX_FILES = 5


class Decision(StrEnum):
    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED = "expired"


class Question(Struct, kw_only=True, eq=False):
    """Asks the sender of the message that a turn answers, in the same chat, whether `call` may run."""

    id: str
    call: ToolCall
    turn: str
    scope: str
    session: str
    asker: Sender
    person: Person
    """The asker. The chat of `message` may be on another channel than this person."""
    message: Outbound
    """The message to the chat. It has no session number, so that it is shown in whichever session is open there."""
    asked: entries.Approval
    """The question in the transcript."""
    is_elsewhere: bool = False
    """Whether it is asked in a chat of another channel, where only an owner may answer."""
    decision: Decision | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    decided: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    def about(cls, call: ToolCall, job: Job, asked: entries.Approval) -> "Question":
        """Return the question of the turn of `job` about `call`. `asked` is its entry in the transcript."""
        name = asked.approval_id
        buttons = [Button(label="Yes", command=f"/approve {name}"), Button(label="No", command=f"/deny {name}")]
        if is_shortened(call):
            buttons.append(Button(label="Show all", command=f"/approvals show {name}", is_answer=False))
        if asked.may_always:
            buttons.append(Button(label="Always in this session", command=f"/approve {name} session"))
            is_direct = job.inbound.address.kind is PeerKind.DIRECT
            who = "me" if is_direct else job.inbound.sender.name or job.inbound.sender.id
            buttons.append(Button(label=f"Always for {_visible(who, _MAX_NAME)}", command=f"/approve {name} always"))
        return cls(
            id=name,
            call=call,
            turn=job.turn,
            scope=job.scope,
            session=job.session,
            asker=job.inbound.sender,
            person=Person.of(job.inbound.address, job.inbound.sender),
            is_elsewhere=job.inbound.is_answered_elsewhere,
            message=replace(
                job.inbound.reply(asked.question), buttons=tuple(buttons), is_question=True, recipient=None, guild=None
            ),
            asked=asked,
        )

    @property
    def message_key(self) -> str:
        return f"ask-{self.id}"


def question_text(
    call: ToolCall,
    *,
    timeout: float,
    agent: str = "the agent",
    asker: str = "",
    files: Collection[str] = (),
    may_always: bool = False,
    elsewhere: str = "",
    is_for_others: bool = False,
) -> str:
    """Return the question as plain text. `asker` is named in a group, where not everyone may answer.

    `agent` is the coding agent, for calls that have a title.

    `elsewhere` is its id if it is asked in a chat of another channel. A plain yes there may be about something else.
    `is_for_others`: the role of the asker does not let them answer.
    """
    named = f" {elsewhere}" if elsewhere else ""
    # A coding agent describes its calls in a few words of its own. They are quoted, since they may say anything.
    lines = [
        f"May {_visible(agent, _MAX_NAME)} do this ({_visible(call.name, _MAX_NAME)})?"
        if call.title
        else f"May I use {_visible(call.name, _MAX_NAME)}?"
    ]
    if call.title and call.title not in (value for value in call.input.values() if isinstance(value, str)):
        lines.append(f"  “{_visible(call.title, _MAX_VALUE)}”")
    for name, value in list(call.input.items())[:_MAX_ARGUMENTS]:
        lines.append(f"  {_visible(name, _MAX_NAME)}: {_visible(_as_json(value), _MAX_VALUE)}")
    if len(call.input) > _MAX_ARGUMENTS:
        lines.append(f"  ... and {len(call.input) - _MAX_ARGUMENTS} more arguments")
    if is_shortened(call):
        lines.append(f"This is shortened. /approvals show{named} shows all of it.")
    if files:
        names = ", ".join(_visible(name, _MAX_NAME) for name in list(files)[:_MAX_FILES])
        more = f" and {len(files) - _MAX_FILES} more" if len(files) > _MAX_FILES else ""
        changes = "it changes" if len(files) == 1 else "one of them changes"
        lines.append(f"It names {count(len(files), 'file')}: {names}{more}. If {changes}, I won't run this.")
    if may_always:
        lines.append(f"To allow exactly this from now on: /approve{named} session, or /approve{named} always.")
    who = f"{_visible(asker, _MAX_NAME)} or an owner, reply" if asker else "Reply"
    if is_for_others:
        who = "An owner, reply"
    span = duration(timedelta(seconds=timeout))
    if elsewhere:
        who = "An owner, press a button or send"
    answer = f"/approve{named} or /deny{named}" if elsewhere else "yes or no"
    lines.append(f"{who} {answer}. If you don't reply within {span}, it's denied.")
    return "\n".join(lines)


def full_text(call: ToolCall) -> str:
    """Return the whole call as plain text. A bar before each line of an argument keeps it from looking like ours.

    Everything that is not printable is escaped, except the line breaks of texts.
    """
    lines = [f"All of {_escaped(call.name)}:"]
    for name, value in call.input.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
        lines += [f"{_escaped(name)}:", *(f"  | {_escaped(line)}" for line in text.split("\n"))]
    return "\n".join(lines)


def is_shortened(call: ToolCall) -> bool:
    """Return whether the question does not show the whole call."""
    values = (len(name) > _MAX_NAME or len(_as_json(value)) > _MAX_VALUE for name, value in call.input.items())
    return len(call.input) > _MAX_ARGUMENTS or len(call.name) > _MAX_NAME or any(values)


def shown_value(value: Json) -> str:
    """Return one argument as in a question."""
    return _visible(_as_json(value), _MAX_VALUE)


def _as_json(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)


def _visible(text: str, limit: int) -> str:
    """Shorten a text in its middle, so that neither end can hide, and escape it."""
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]} [... {len(text) - 2 * half:,} characters ...] {text[-half:]}"
    return _escaped(text)


def _escaped(text: str) -> str:
    """Escape every character that is not printable.

    A model may have been tricked into a call that looks like another: no line breaks, no text that runs backwards.
    """
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text)
