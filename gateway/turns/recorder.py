"""Minutes: what a turn has settled is written down before it goes on, in its transcript and in the spool."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial

import structlog
from msgspec.structs import replace

from gateway.agent.protocol import Done, Event, PlanUpdated, StepDone, TextDelta, ToolFinished, ToolStarted
from gateway.aio import finish_before_cancel
from gateway.conversation import ToolCall, ToolOutcome
from gateway.errors import Refused
from gateway.files.outgoing import enclosure, sent_file
from gateway.job import Job
from gateway.outbound.delivery import Delivery
from gateway.outbound.streaming import Draft
from gateway.sessions import (
    Entry,
    SessionManager,
    TurnOutcome,
    assistant_texts,
    entries,
    interrupted_results,
    open_tool_calls,
    sent_files,
)
from gateway.sessions.turn_progress import INTERRUPTED
from gateway.spool import AddToOutbox, InboxState, Operation, SetInboxState, StartTurn
from gateway.spool.spool import retry_while_full
from gateway.turns.busy import BusyPolicy
from gateway.turns.context import TurnContext
from gateway.turns.state import TurnState, user_entry

log = structlog.get_logger()


class TurnRecorder:
    """What is in the transcript and what a course knows of it are one: otherwise a `/stop` in between is paid twice."""

    def __init__(self, sessions: SessionManager, preparing: TurnContext) -> None:
        self._sessions = sessions
        self._preparing = preparing

    async def begin(self, course: TurnState) -> None:
        """Write down what was asked; in a turn that goes on after a crash, what has become of the tools that ran."""
        job, *others = course.jobs
        if job.is_resumed:
            session = await self._sessions.load(job.session)
            course.written += assistant_texts(session.entries, job.turn)
            course.sent += map(enclosure, sent_files(session.entries, job.turn))
            if job.is_waiting:
                course.is_waiting = True
                course.calls, course.approvals = open_tool_calls(session.entries, job.turn)
                return
            await self.write(course, interrupted_results(session.entries, job.turn), also=[StartTurn(turn=job.turn)])
            return
        await self.write(course, course.opening, also=[StartTurn(turn=job.turn), *_joined(others, job)])
        course.has_begun = True

    async def join(self, course: TurnState, others: Sequence[Job]) -> list[entries.User]:
        """Write down what others have said since; the turn answers that as well."""
        messages = [course.message_of(each) for each in others]
        await self.write(course, messages, also=_joined(others, course.jobs[0]))
        return messages

    async def follow_all(self, events: AsyncGenerator[Event, None], course: TurnState, draft: Draft) -> None:
        async with aclosing(events):
            async for event in events:
                await self._follow(event, course, draft)

    async def _follow(self, event: Event, course: TurnState, draft: Draft) -> None:
        """Write down what `event` has settled before the loop goes on: a tool call before its tool runs."""
        match event:
            case TextDelta(text=delta):
                course.heard(delta)
                draft.show(course.text)
            case StepDone(tool_calls=calls) if calls:
                await finish_before_cancel(self._note_step(course, event))
            case ToolStarted() if course.is_waiting:
                await self.write(course, [], also=self._going_on(course))
            case ToolFinished(outcome=outcome):
                await finish_before_cancel(self._note_outcome(course, outcome))
            case PlanUpdated(steps=plan):
                steps = [entries.PlanStep(content=step.content, status=step.status) for step in plan]
                await self.write(course, [entries.Plan(steps=tuple(steps))])
            case Done(text=text):
                course.streaming = text

    async def _note_step(self, course: TurnState, step: StepDone) -> None:
        """Write down what was said, also where that is nothing, for it says what the step cost; and what was called."""
        said = entries.Assistant(content=step.text, model=course.model, usage=course.usage)
        await self.write(course, [said, *map(_use, step.tool_calls)])
        course.written.append(step.text)
        course.streaming = ""
        course.calls, course.approvals = {call.id: call for call in step.tool_calls}, {}

    async def _note_outcome(self, course: TurnState, outcome: ToolOutcome) -> None:
        course.tools += 1
        if course.prepared is not None:
            self._preparing.used_tool(course.prepared)
        result = entries.ToolResult(tool_use_id=outcome.id, output=outcome.output, is_error=outcome.is_error)
        files = course.outgoing.take_new() if course.outgoing else []
        await self.write(course, [result, *map(sent_file, files)], also=self._going_on(course))
        course.sent += files
        course.calls.pop(outcome.id, None)

    def _going_on(self, course: TurnState) -> list[Operation]:
        """End the waiting for an approval: from now on something of the step may have been done."""
        if not course.is_waiting:
            return []
        course.is_waiting = False
        return [StartTurn(turn=course.jobs[0].turn)]

    async def write(
        self,
        course: TurnState,
        steps: Sequence[Entry],
        also: Sequence[Operation] = (),
        behind: Sequence[Entry] = (),
    ) -> None:
        """Append to the transcript, with `also` in the same commit; `behind` are entries of the turn that follows.

        On a full disk, wait: the turn cannot go on.
        """
        job = course.jobs[0]
        stamped = [*(replace(step, turn=job.turn) for step in steps), *behind]
        due = course.due
        await retry_while_full(partial(self._sessions.append, job.session, stamped, also=[*also, *due]))
        course.settled(due)


def _use(call: ToolCall) -> entries.ToolUse:
    return entries.ToolUse(tool_use_id=call.id, name=call.name, input=call.input, fault=call.fault)


def _joined(others: Sequence[Job], job: Job) -> list[Operation]:
    """Let the turn of `job` answer the messages of others as well."""
    return [SetInboxState(turn=each.turn, state=InboxState.RUNNING, answered_by=job.turn) for each in others]


NOT_RUN = "This was not run: the turn ended while it waited to be allowed."


class Ending:
    def __init__(
        self, *, preparing: TurnContext, delivery: Delivery, meanwhile: BusyPolicy, minutes: TurnRecorder
    ) -> None:
        self._preparing = preparing
        self._delivery = delivery
        self._meanwhile = meanwhile
        self._minutes = minutes

    async def finish(self, course: TurnState, *, may_go_on: bool) -> None:
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

    async def _fix(self, course: TurnState, parts: list[AddToOutbox]) -> None:
        settled = [*_settled(course), *parts, *self._preparing.news()]
        asked_next, begun = _opening(course.following)
        try:
            await self._minutes.write(course, _end(course), behind=asked_next, also=[*settled, *begun])
        except Refused as gone:  # Deleted or unreadable by now; its sender gets the answer all the same.
            log.warning("answer_not_in_transcript", reason=str(gone))
            await self._delivery.record(*settled, *course.due)
        else:
            course.begin_following()

    def _tell(self, course: TurnState) -> None:
        took_ms = course.age_ms
        self._delivery.metrics.turn_finished(course.channel, course.outcome, messages=len(course.jobs), took_ms=took_ms)
        log.info(
            "message_handled",
            outcome=course.outcome,
            messages=len(course.jobs),
            tools=course.tools,
            first_token_ms=course.first_token_ms,
            took_ms=took_ms,
        )


def _settled(course: TurnState) -> list[SetInboxState]:
    state = InboxState.ABANDONED if course.outcome is TurnOutcome.STOPPED else InboxState.ANSWERED
    return [SetInboxState(turn=each.turn, state=state, answered_by=course.jobs[0].turn) for each in course.jobs]


def _end(course: TurnState) -> list[Entry]:
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
    return ([], []) if job is None else ([user_entry(job.inbound, turn=job.turn)], [StartTurn(turn=job.turn)])
