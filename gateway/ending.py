"""Ending: the answer of a turn is fixed, and the next one begun, in one commit; then it may be delivered."""

import asyncio

import structlog

from gateway.course import Course, as_asked
from gateway.errors import Refused
from gateway.job import Job
from gateway.meanwhile import Meanwhile
from gateway.minutes import Minutes
from gateway.outbound.delivery import Delivery
from gateway.preparing import Preparing
from gateway.sessions import Entry, TurnOutcome, entries
from gateway.sessions.turn_progress import INTERRUPTED
from gateway.spool import Begin, InboxState, Operation, Send, Settle

__all__ = ["Ending"]

log = structlog.get_logger()

NOT_RUN = "This was not run: the turn ended while it waited to be allowed."


class Ending:
    def __init__(self, *, preparing: Preparing, delivery: Delivery, meanwhile: Meanwhile, minutes: Minutes) -> None:
        self._preparing = preparing
        self._delivery = delivery
        self._meanwhile = meanwhile
        self._minutes = minutes

    async def finish(self, course: Course, *, may_go_on: bool) -> None:
        """Fix the answer, the end of the turn and the fate of its messages in one commit; then let it be delivered.

        Where it `may_go_on`, the message that is next in the lane begins in that commit.
        """
        job = course.jobs[0]
        parts = self._delivery.compose_all(course.replies(course.text), turn=job.turn, files=course.sent)
        course.following = self._meanwhile.following(job) if may_go_on else None
        await self._fix(course, parts)
        if course.following is None:
            self._meanwhile.answered(job)
        self._delivery.post(parts)
        await asyncio.sleep(0)  # Let the answer go out first: all that follows can wait.
        self._tell(course)
        if course.prepared is not None:
            await self._preparing.follow_up(job, course.prepared)

    async def _fix(self, course: Course, parts: list[Send]) -> None:
        settled = [*_settled(course), *parts, *self._preparing.news()]
        asked_next, begun = _opening(course.following)
        try:
            await self._minutes.write(course, _end(course), behind=asked_next, also=[*settled, *begun])
        except Refused as gone:  # Deleted or unreadable by now; its sender gets the answer all the same.
            log.warning("answer_not_in_transcript", reason=str(gone))
            await self._delivery.record(*settled, *course.due)
        else:
            course.begin_following()

    def _tell(self, course: Course) -> None:
        took_ms = course.age_ms
        self._delivery.tally.turned(course.channel, course.outcome, messages=len(course.jobs), took_ms=took_ms)
        log.info(
            "message_handled",
            outcome=course.outcome,
            messages=len(course.jobs),
            tools=course.tools,
            first_token_ms=course.first_token_ms,
            took_ms=took_ms,
        )


def _settled(course: Course) -> list[Settle]:
    state = InboxState.ABANDONED if course.outcome is TurnOutcome.STOPPED else InboxState.ANSWERED
    return [Settle(turn=each.turn, state=state, answered_by=course.jobs[0].turn) for each in course.jobs]


def _end(course: Course) -> list[Entry]:
    """Return what is missing in the transcript; a call without a result gets one that says why."""
    why = NOT_RUN if course.is_waiting else INTERRUPTED
    return [
        *([] if course.has_begun else course.opening),
        *(entries.ToolResult(tool_use_id=call, output=why, is_error=True) for call in course.calls),
        entries.Assistant(content=course.unwritten, model=course.model, usage=course.usage),
        entries.TurnEnd(outcome=course.outcome),
    ]


def _opening(job: Job | None) -> tuple[list[Entry], list[Operation]]:
    """Return what the turn of `job` begins with: in the transcript and in the spool."""
    return ([], []) if job is None else ([as_asked(job.inbound, turn=job.turn)], [Begin(turn=job.turn)])
