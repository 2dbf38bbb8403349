"""Asking: a turn stops before a tool that needs somebody's consent, and waits, over restarts too, for the answer."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial

import structlog
from msgspec import Struct

from gateway.aio import Allowance, whole
from gateway.approvals import Approvals, Decision, Question, new_question_id
from gateway.contract import PeerKind
from gateway.conversation import ToolCall
from gateway.course import Course
from gateway.errors import Refused
from gateway.meanwhile import Meanwhile
from gateway.outbound.delivery import Delivery
from gateway.outbound.streaming import Draft
from gateway.questions import worded
from gateway.sessions import Entry, entries
from gateway.spool import Forgive, InboxState, Operation, Settle
from gateway.spool.spool import insist
from gateway.text.clean import duration

__all__ = ["Asking"]

log = structlog.get_logger()

Write = Callable[[Sequence[Entry], Sequence[Operation]], Awaitable[None]]
"""Appends to the transcript of the turn, with operations in the same commit."""

_DENIED = "The person was asked and said no, so it was not run. Do not try it again unless you are asked to."
_EXPIRED = "Nobody answered within {span} whether this may be run, so it was not run."


class Asking(Struct, frozen=True, kw_only=True):
    """How one turn asks. Meanwhile it keeps its lane, but has no place among those that run, and its time stands still.

    The question, the state `waiting` and the message in the chat are one commit. From then on until the tools run, the
    row is in that state, and nothing of the step has been done.
    """

    course: Course
    allowance: Allowance
    draft: Draft
    approvals: Approvals
    delivery: Delivery
    meanwhile: Meanwhile
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
                await whole(self._pose(question))
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
        text = worded(call, timeout=self.timeout, asker=asker)
        return Question.about(call, job, id=new_question_id(), text=text)

    async def _pose(self, question: Question) -> None:
        """Put the question: from the commit on it is open, and before its message is out somebody can answer it."""
        parts = self.delivery.compose(question.message, key=question.key)
        asked = entries.Approval(approval_id=question.id, tool_use_id=question.call.id, question=question.message.text)
        waits = [] if self.course.is_waiting else [Settle(turn=question.turn, state=InboxState.WAITING)]
        # A turn that has come this far is not what ends the daemon.
        await self.write([asked], [*waits, Forgive(turn=question.turn), *parts])
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
            await whole(self._expire(question))
        decision = question.decision or Decision.EXPIRED  # Nothing could be written down: the session is gone.
        log.info("approval_decided", tool=question.call.name, question=question.id, decision=decision)
        return decision

    async def _expire(self, question: Question) -> None:
        with suppress(Refused):  # An answer came in the last moment.
            await insist(partial(self.approvals.settle, question, Decision.EXPIRED))
