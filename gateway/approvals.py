"""Approvals: the questions that are open, who may answer them, and the one answer that each gets."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from uuid import uuid4

from gateway.access.live import Live
from gateway.access.rules import are_same_person
from gateway.aio import whole
from gateway.contract import Button, Inbound, Outbound, Sender
from gateway.conversation import ToolCall
from gateway.errors import Refused
from gateway.job import Job
from gateway.sessions import SessionManager, entries
from gateway.spool import Operation

__all__ = ["Approvals", "Decision", "Question", "new_question_id", "spoken_decision"]

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


def spoken_decision(text: str) -> Decision | None:
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
        self._ended: dict[str, tuple[str, Decision | None]] = {}
        """The scope and the decision of questions that were open, the oldest first."""

    def open(self, question: Question) -> Question:
        """Take answers to it from now on. Return the one of that id that is open already, if it is."""
        return self._open.setdefault(question.id, question)

    def close(self, name: str) -> None:
        """Take no answer any more to the question of that id, if it is open."""
        question = self._open.pop(name, None)
        if question is not None:
            self._ended[question.id] = question.scope, question.decision
        while len(self._ended) > REMEMBERED:
            del self._ended[next(iter(self._ended))]

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
        await whole(self._settle(question, decision, by, also))

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
