"""Approvals: the questions that are open, who may answer them, and the one answer that each gets."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from functools import partial
from uuid import uuid4

import structlog
from msgspec import Struct

from gateway.access.live import Live
from gateway.access.rules import are_same_person
from gateway.aio import TurnSlot, finish_before_cancel
from gateway.bounded import BoundedDict
from gateway.contract import Button, Inbound, Outbound, PeerKind, Sender
from gateway.conversation import Json, ToolCall
from gateway.errors import Refused
from gateway.job import Job
from gateway.outbound.delivery import Delivery
from gateway.outbound.streaming import Draft
from gateway.sessions import Entry, SessionManager, entries
from gateway.spool import InboxState, Operation, ResetAttempts, SetInboxState
from gateway.spool.spool import retry_while_full
from gateway.text.plain import duration
from gateway.turns.busy import BusyPolicy
from gateway.turns.state import TurnState

log = structlog.get_logger()

REMEMBERED = 1_000
"""Questions whose end is remembered, so that a late press is told what has become of it."""


class Decision(StrEnum):
    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED = "expired"


_ENDS = {
    Decision.APPROVED: "That was answered already, with yes.",
    Decision.DENIED: "That was answered already, with no.",
    Decision.EXPIRED: "That question is closed: nobody answered in time, so it was not done.",
}
_NOT_OPEN = "That question is not open any more."
_WORDS = {
    "yes": Decision.APPROVED,
    "y": Decision.APPROVED,
    "no": Decision.DENIED,
    "n": Decision.DENIED,
}


def parse_decision(text: str) -> Decision | None:
    """Read a message as a plain yes or no."""
    return _WORDS.get(text.strip().rstrip(".!").lower())


def new_question_id() -> str:
    return uuid4().hex[:12]


def _buttons(question: str) -> tuple[Button, ...]:
    return (Button(label="Yes", command=f"/approve {question}"), Button(label="No", command=f"/deny {question}"))


@dataclass(slots=True, kw_only=True, eq=False)
class Question:
    """Whether `call` may run, put to whoever wrote the message that the turn answers, in the chat it came from."""

    id: str
    call: ToolCall
    turn: str
    scope: str
    session: str
    asker: Sender
    message: Outbound
    """As it is sent, or was before a restart. It names no session: whichever one has on show, this is to be seen."""
    decision: Decision | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    decided: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    def about(cls, call: ToolCall, job: Job, *, id: str, text: str) -> "Question":  # noqa: A002 - as the field is called
        """Return the question that the turn of `job` has about `call`, in the words of `text`."""
        return cls(
            id=id,
            call=call,
            turn=job.turn,
            scope=job.scope,
            session=job.session,
            asker=job.inbound.sender,
            message=Outbound(
                address=job.inbound.address,
                text=text,
                reply_to=job.inbound.message_id,
                buttons=_buttons(id),
                is_question=True,
            ),
        )

    @property
    def key(self) -> str:
        return f"ask-{self.id}"


class Approvals:
    """Answers come at any time and from several sides; the first that is committed counts."""

    def __init__(self, live: Live, sessions: SessionManager) -> None:
        self._live = live
        self._sessions = sessions
        self._open: dict[str, Question] = {}
        self._ended = BoundedDict[str, tuple[str, Decision | None]](REMEMBERED)
        """The scope and the decision of questions that were open, the oldest first."""

    def open(self, question: Question) -> Question:
        """Take answers to it from now on. Return the one of that id that is open already, if it is."""
        return self._open.setdefault(question.id, question)

    def close(self, name: str) -> None:
        """Take no answer any more to the question of that id, if it is open."""
        question = self._open.pop(name, None)
        if question is not None:
            self._ended[question.id] = question.scope, question.decision

    def close_all(self, turn: str) -> None:
        """Take no answer any more to what `turn` has asked: it has ended."""
        for question in [each for each in self._open.values() if each.turn == turn]:
            self.close(question.id)

    def of_scope(self, scope: str) -> Iterator[Question]:
        return (question for question in self._open.values() if question.scope == scope)

    def find(self, scope: str, name: str, session: str | None) -> Question:
        """Return the open question `name` of that scope; without a name, that of the session, or the only one."""
        here = {question.id: question for question in self.of_scope(scope)}
        if name:
            if (named := here.get(name)) is None:
                raise Refused(self._end_of(scope, name))
            return named
        of_session = [question for question in here.values() if question.session == session]
        candidates = of_session or list(here.values())
        if not candidates:
            raise Refused("No question is open here.")
        if len(candidates) > 1:
            raise Refused("Several questions are open here. Use the buttons below the one that you mean.")
        return candidates[0]

    def heard(self, inbound: Inbound, session: str, *, is_owner: bool) -> Question | None:
        """Return the question that a plain yes or no answers: the open one of that session, asked in that chat."""
        for question in self._open.values():
            if question.session == session and question.message.address == inbound.address:
                return question if self.may_answer(question, inbound, is_owner=is_owner) else None
        return None

    def may_answer(self, question: Question, inbound: Inbound, *, is_owner: bool) -> bool:
        """Tell whether this is the person who asked for it, wherever they write from, or an owner."""
        one, other = (question.message.address.channel, question.asker.id), (inbound.address.channel, inbound.sender.id)
        return is_owner or are_same_person(self._live, one, other)

    async def settle(
        self, question: Question, decision: Decision, *, by: str = "", also: Sequence[Operation] = ()
    ) -> None:
        """Write down the decision, in one commit with `also`, and let the turn go on. `Refused` when there is one."""
        await finish_before_cancel(self._settle(question, decision, by, also))

    async def _settle(self, question: Question, decision: Decision, by: str, also: Sequence[Operation]) -> None:
        async with question.lock:
            if question.decision is not None:
                raise Refused(_ENDS[question.decision])
            if question.id not in self._open:
                raise Refused(_NOT_OPEN)
            entry = entries.Approval(
                turn=question.turn,
                approval_id=question.id,
                tool_use_id=question.call.id,
                decision=decision,
                by=by,
            )
            await self._sessions.append(question.session, [entry], also=also)
            question.decision = decision
            question.decided.set()

    def _end_of(self, scope: str, name: str) -> str:
        where, decision = self._ended.get(name, ("", None))
        return _ENDS[decision] if where == scope and decision is not None else _NOT_OPEN


_MAX_VALUE = 800
_MAX_NAME = 60
_MAX_ARGUMENTS = 12


def question_text(call: ToolCall, *, timeout: float, asker: str = "") -> str:
    """Return the question as plain text. `asker` is named in a group, where not everybody may answer."""
    who = f"{_shown(asker, _MAX_NAME)} or an owner, answer" if asker else "Answer"
    return "\n".join(
        [
            f"May I use {_shown(call.name, _MAX_NAME)}?",
            *_arguments(call.input),
            f"{who} yes or no. Without an answer within {duration(timedelta(seconds=timeout))} it is not done.",
        ]
    )


def _arguments(given: dict[str, Json]) -> list[str]:
    lines = [
        f"  {_shown(name, _MAX_NAME)}: {_shown(json.dumps(value, ensure_ascii=False), _MAX_VALUE)}"
        for name, value in list(given.items())[:_MAX_ARGUMENTS]
    ]
    if len(given) > _MAX_ARGUMENTS:
        lines.append(f"  ... and {len(given) - _MAX_ARGUMENTS} more arguments")
    return lines


def _shown(text: str, limit: int) -> str:
    """Shorten in the middle, so that neither end can hide, and write out what would not be seen or changes the order.

    A model may have been talked into a call that looks like another: no line breaks, no text that runs backwards.
    """
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]} [... {len(text) - 2 * half:,} characters ...] {text[-half:]}"
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return f"\\u{ord(char):04x}"


Write = Callable[[Sequence[Entry], Sequence[Operation]], Awaitable[None]]
"""Appends to the transcript of the turn, with operations in the same commit."""

_DENIED = "The person was asked and said no, so it was not run. Do not try it again unless you are asked to."
_EXPIRED = "Nobody answered within {span} whether this may be run, so it was not run."


class ApprovalGate(Struct, frozen=True, kw_only=True):
    """How one turn asks. Meanwhile it keeps its lane, but has no place among those that run, and its time stands still.

    The question, the state `waiting` and the message in the chat are one commit. From then on until the tools run, the
    row is in that state, and nothing of the step has been done.
    """

    course: TurnState
    allowance: TurnSlot
    draft: Draft
    approvals: Approvals
    delivery: Delivery
    meanwhile: BusyPolicy
    write: Write
    timeout: float

    async def permit(self, call: ToolCall) -> str | None:
        """Return why `call` may not run, if so. What was asked or decided before a restart is not asked again."""
        match await self._decision(call):
            case Decision.APPROVED:
                return None
            case Decision.DENIED:
                return _DENIED
            case Decision.EXPIRED:
                return _EXPIRED.format(span=duration(timedelta(seconds=self.timeout)))

    async def _decision(self, call: ToolCall) -> Decision:
        known = self.course.approvals.get(call.id)
        if known is not None and known.decision is not None:
            self.approvals.close(known.approval_id)
            return Decision(known.decision)
        question = self._question(call, known)
        try:
            if known is None:
                await finish_before_cancel(self._pose(question))
            else:
                question = self.approvals.open(question)
            async with self._resting(question.session):
                return await self._answer(question)
        finally:
            self.approvals.close(question.id)

    def _question(self, call: ToolCall, known: entries.Approval | None) -> Question:
        job = self.course.jobs[0]
        if known is not None:
            return Question.about(call, job, id=known.approval_id, text=known.question)
        sender = job.inbound.sender
        asker = "" if job.inbound.address.kind is PeerKind.DIRECT else sender.name or sender.id
        text = question_text(call, timeout=self.timeout, asker=asker)
        return Question.about(call, job, id=new_question_id(), text=text)

    async def _pose(self, question: Question) -> None:
        """Put the question: from the commit on it is open, and before its message is out somebody can answer it."""
        parts = self.delivery.compose(question.message, key=question.key)
        asked = entries.Approval(approval_id=question.id, tool_use_id=question.call.id, question=question.message.text)
        waits = [] if self.course.is_waiting else [SetInboxState(turn=question.turn, state=InboxState.WAITING)]
        # A turn that has come this far is not what ends the daemon.
        await self.write([asked], [*waits, ResetAttempts(turn=question.turn), *parts])
        self.course.is_waiting = True
        self.approvals.open(question)
        self.delivery.post(parts)
        log.info("approval_asked", tool=question.call.name, question=question.id)

    @asynccontextmanager
    async def _resting(self, session: str) -> AsyncIterator[None]:
        self.draft.is_resting = True
        async with self.allowance.paused():
            with self.meanwhile.parked(session):
                yield
        self.draft.is_resting = False

    async def _answer(self, question: Question) -> Decision:
        """Wait, by a clock that does not jump. After a restart the time starts anew."""
        try:
            async with asyncio.timeout(self.timeout):
                await question.decided.wait()
        except TimeoutError:
            await finish_before_cancel(self._expire(question))
        decision = question.decision or Decision.EXPIRED  # Nothing could be written down: the session is gone.
        log.info("approval_decided", tool=question.call.name, question=question.id, decision=decision)
        return decision

    async def _expire(self, question: Question) -> None:
        with suppress(Refused):  # An answer came in the last moment.
            await retry_while_full(partial(self.approvals.settle, question, Decision.EXPIRED))
