"""Minutes: what a turn has settled is written down before it goes on, in its transcript and in the spool."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial

from msgspec.structs import replace

from gateway.agent.protocol import Done, Event, PlanMade, StepDone, TextDelta, ToolFinished, ToolStarted
from gateway.aio import whole
from gateway.conversation import ToolCall, ToolOutcome
from gateway.course import Course
from gateway.files.outgoing import enclosure, sent_file
from gateway.job import Job
from gateway.outbound.streaming import Draft
from gateway.preparing import Preparing
from gateway.sessions import Entry, SessionManager, entries, interrupted, said, sent_files, step_at_hand
from gateway.spool import Begin, InboxState, Operation, Settle
from gateway.spool.spool import insist

__all__ = ["Minutes"]


class Minutes:
    """What is in the transcript and what a course knows of it are one: otherwise a `/stop` in between is paid twice."""

    def __init__(self, sessions: SessionManager, preparing: Preparing) -> None:
        self._sessions = sessions
        self._preparing = preparing

    async def begin(self, course: Course) -> None:
        """Write down what was asked; in a turn that goes on after a crash, what has become of the tools that ran."""
        job, *others = course.jobs
        if job.is_resumed:
            session = await self._sessions.load(job.session)
            course.written += said(session.entries, job.turn)
            course.sent += map(enclosure, sent_files(session.entries, job.turn))
            if job.is_waiting:
                course.is_waiting = True
                course.calls, course.approvals = step_at_hand(session.entries, job.turn)
                return
            await self.write(course, interrupted(session.entries, job.turn), also=[Begin(turn=job.turn)])
            return
        await self.write(course, course.opening, also=[Begin(turn=job.turn), *_joined(others, job)])
        course.has_begun = True

    async def join(self, course: Course, others: Sequence[Job]) -> list[entries.User]:
        """Write down what others have said since; the turn answers that as well."""
        messages = [course.message_of(each) for each in others]
        await self.write(course, messages, also=_joined(others, course.jobs[0]))
        return messages

    async def follow_all(self, events: AsyncGenerator[Event, None], course: Course, draft: Draft) -> None:
        async with aclosing(events):
            async for event in events:
                await self._follow(event, course, draft)

    async def _follow(self, event: Event, course: Course, draft: Draft) -> None:
        """Write down what `event` has settled before the loop goes on: a tool call before its tool runs."""
        match event:
            case TextDelta(text=delta):
                course.heard(delta)
                draft.show(course.text)
            case StepDone(tool_calls=calls) if calls:
                await whole(self._note_step(course, event))
            case ToolStarted() if course.is_waiting:
                await self.write(course, [], also=self._going_on(course))
            case ToolFinished(outcome=outcome):
                await whole(self._note_outcome(course, outcome))
            case PlanMade(steps=plan):
                steps = [entries.PlanStep(content=step.content, status=step.status) for step in plan]
                await self.write(course, [entries.Plan(steps=tuple(steps))])
            case Done(text=text):
                course.streaming = text

    async def _note_step(self, course: Course, step: StepDone) -> None:
        """Write down what was said, also where that is nothing, for it says what the step cost; and what was called."""
        said = entries.Assistant(content=step.text, model=course.model, usage=course.usage)
        await self.write(course, [said, *map(_use, step.tool_calls)])
        course.written.append(step.text)
        course.streaming = ""
        course.calls, course.approvals = {call.id: call for call in step.tool_calls}, {}

    async def _note_outcome(self, course: Course, outcome: ToolOutcome) -> None:
        course.tools += 1
        if course.prepared is not None:
            self._preparing.used_tool(course.prepared)
        result = entries.ToolResult(tool_use_id=outcome.id, output=outcome.output, is_error=outcome.is_error)
        files = course.outgoing.taken() if course.outgoing else []
        await self.write(course, [result, *map(sent_file, files)], also=self._going_on(course))
        course.sent += files
        course.calls.pop(outcome.id, None)

    def _going_on(self, course: Course) -> list[Operation]:
        """End the waiting for an approval: from now on something of the step may have been done."""
        if not course.is_waiting:
            return []
        course.is_waiting = False
        return [Begin(turn=course.jobs[0].turn)]

    async def write(
        self,
        course: Course,
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
        await insist(partial(self._sessions.append, job.session, stamped, also=[*also, *due]))
        course.settled(due)


def _use(call: ToolCall) -> entries.ToolUse:
    return entries.ToolUse(tool_use_id=call.id, name=call.name, input=call.input, fault=call.fault)


def _joined(others: Sequence[Job], job: Job) -> list[Operation]:
    """Let the turn of `job` answer the messages of others as well."""
    return [Settle(turn=each.turn, state=InboxState.RUNNING, answered_by=job.turn) for each in others]
