"""A turn: one agent run that answers accepted messages, writes each finished step down and fixes the answer."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial

import msgspec
import structlog
from structlog.contextvars import bound_contextvars

from gateway.agent.events import Done, Event, PlanMade, StepDone, TextDelta, ToolFinished, ToolStarted
from gateway.agent.loop import converse
from gateway.agent.tools import ToolContext
from gateway.agent.using import use
from gateway.allowance import Allowance
from gateway.approvals import Approvals
from gateway.asking import Asking
from gateway.course import Course, as_asked
from gateway.delivery import Delivery
from gateway.dialogue import Message, ToolCall, ToolOutcome
from gateway.drafting import Draft
from gateway.errors import OUR_FAULT, ProviderFailed, Refused
from gateway.files.outgoing import enclosure, sent_file
from gateway.insisting import insist
from gateway.jobs import Job
from gateway.live import Live
from gateway.meanwhile import Meanwhile
from gateway.preparing import Preparing
from gateway.reminders.reminders import Reminders
from gateway.sessions import (
    Entry,
    SessionManager,
    TurnOutcome,
    entries,
    interrupted,
    last_turn,
    said,
    sent_files,
    step_at_hand,
)
from gateway.sessions.at_hand import INTERRUPTED
from gateway.sessions.messages import as_messages
from gateway.spool import Begin, InboxState, Operation, Settle
from gateway.whole import whole

__all__ = ["Turns"]

log = structlog.get_logger()

NOT_RUN = "This was not run: the turn ended while it waited to be allowed."

KNOWN_SESSIONS = 10_000
"""Whose first answer since the start has been given; one that is forgotten is greeted again."""


class Turns:
    """`run` raises nothing but cancellation: whatever goes wrong becomes the visible end of that one turn."""

    def __init__(
        self,
        *,
        live: Live,
        preparing: Preparing,
        sessions: SessionManager,
        delivery: Delivery,
        meanwhile: Meanwhile,
        approvals: Approvals,
        reminders: Reminders,
    ) -> None:
        self._live = live
        self._preparing = preparing
        self._sessions = sessions
        self._delivery = delivery
        self._meanwhile = meanwhile
        self._approvals = approvals
        self._reminders = reminders
        # Waiters are served first come, first served, and each turn asks anew: a long queue delays others by one slot.
        self._slots = asyncio.Semaphore(live.settings.gateway.max_parallel_turns)
        self._suspects = asyncio.Semaphore(1)
        self._started = preparing.now()
        self._known: dict[str, None] = {}
        self._running: set[str] = set()
        self._is_suspending = False

    async def again(self, job: Job) -> list[Entry]:
        """Return what a `/retry` begins with: the last turn undone, and its message again; empty if there is none."""
        session = await self._sessions.load(job.session)
        undo = last_turn(session.entries)
        if undo is None:
            return []
        asked = [entry for entry in session.entries if isinstance(entry, entries.User) and entry.turn == undo.undone]
        return [undo, *asked]

    async def run(self, job: Job, begins_with: Sequence[Entry] = ()) -> Job | None:
        """Answer `job`. What it asks is `begins_with`, or else its own text.

        Return the message that is next in its lane, if its turn has begun with the end of this one.
        """
        address = job.inbound.address
        with bound_contextvars(channel=address.channel, chat=address.peer, session=job.session, turn=job.turn):
            course = Course(
                jobs=[job, *job.collected], asked=list(begins_with), has_begun=job.has_begun or job.is_resumed
            )
            self._running.add(job.turn)
            limit = self._live.settings.gateway.turn_timeout
            try:
                async with Allowance(limit, *self._places(job)) as allowance:
                    self._meanwhile.begun(job)
                    await self._answer(course, allowance)
            except asyncio.CancelledError as stop:
                if not self._is_suspending:
                    self._running.discard(job.turn)
                    course.ended(TurnOutcome.STOPPED, str(stop) or "Stopped.")
                    await whole(self._finish(course))
                raise
            except TimeoutError:
                course.ended(TurnOutcome.FAILED, f"This took longer than {limit:g} seconds and was stopped.")
            except (ProviderFailed, Refused) as failure:
                course.ended(TurnOutcome.FAILED, str(failure))
            except Exception:  # One turn's bug must not end the others, nor leave its sender in silence.
                log.exception("turn_crashed")
                course.ended(TurnOutcome.FAILED, OUR_FAULT)
            finally:
                self._running.discard(job.turn)
                self._meanwhile.begun(job)
                if job.is_waiting:  # It may have been stopped before it came to its question.
                    self._approvals.close_all(job.turn)
            await self._end(course)
            return course.following

    def _places(self, job: Job) -> list[asyncio.Semaphore]:
        return [self._suspects, self._slots] if job.is_suspect else [self._slots]

    @property
    def is_suspending(self) -> bool:
        """Whether what is cancelled now goes on at the next start."""
        return self._is_suspending

    def suspend(self) -> list[str]:
        """Let turns that are cancelled now end without a word, and go on at the next start; return their ids."""
        self._is_suspending = True
        return list(self._running)

    async def _answer(self, course: Course, allowance: Allowance) -> None:
        job = course.jobs[0]
        course.restored = self._restored(job)
        prepared = course.prepared = await self._preparing.prepare(job)
        agent = prepared.agent
        if not course.has_begun:
            course.jobs += self._meanwhile.collected(job)
            await self._receive(course, course.jobs, allowance)
        if not job.has_begun:
            await whole(self._begin(course))
        course.outgoing = self._preparing.files.outgoing(job, course.sent)
        context = ToolContext(
            workspace=agent.workspace,
            notes=prepared.notes,
            now=self._preparing.now,
            send_file=course.outgoing.add,
            remind=partial(self._reminders.make, job),
        )
        async with self._delivery.drafting(course.reply(""), turn=job.turn) as draft:
            permit = self._asking(course, allowance, draft).permit
            if course.calls:
                waiting = use(tuple(course.calls.values()), toolbox=agent.toolbox, context=context, permit=permit)
                await self._follow_all(waiting, course, draft)
            events = converse(
                await self._preparing.brief(job, prepared),
                provider=prepared.provider,
                toolbox=agent.toolbox,
                context=context,
                max_iterations=agent.max_iterations,
                permit=permit,
                listen=lambda: self._listen(course, allowance),
            )
            await self._follow_all(events, course, draft)

    def _asking(self, course: Course, allowance: Allowance, draft: Draft) -> Asking:
        return Asking(
            course=course,
            allowance=allowance,
            draft=draft,
            approvals=self._approvals,
            delivery=self._delivery,
            meanwhile=self._meanwhile,
            write=partial(self._write, course),
            timeout=self._live.settings.gateway.approval_timeout,
        )

    def _restored(self, job: Job) -> int:
        """Return how many turns the session has from before our start, the first time that it is used since."""
        if job.session in self._known:
            return 0
        self._known[job.session] = None
        while len(self._known) > KNOWN_SESSIONS:
            del self._known[next(iter(self._known))]
        session = self._sessions.find(job.session)
        return session.turns if session and session.created_at < self._started else 0

    async def _begin(self, course: Course) -> None:
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
            await self._write(course, interrupted(session.entries, job.turn), also=[Begin(turn=job.turn)])
            return
        await self._write(course, course.opening, also=[Begin(turn=job.turn), *_joined(others, job)])
        course.has_begun = True

    async def _listen(self, course: Course, allowance: Allowance) -> Sequence[Message]:
        """Take into the turn what was said since, in one commit; what comes after the last step waits for its own."""
        job = course.jobs[0]
        others = self._meanwhile.steering(job.session)
        if not others:
            return []
        course.jobs += others
        await self._receive(course, others, allowance)
        said = [course.message_of(each) for each in others]
        await whole(self._write(course, said, also=_joined(others, job)))
        return await self._preparing.files.shown(as_messages(said), sees=course.sees)

    async def _receive(self, course: Course, jobs: Sequence[Job], allowance: Allowance) -> None:
        """Have the files that messages came with, before anything is written down of them."""
        if course.prepared is None or not any(job.inbound.attachments for job in jobs):
            return
        async with allowance.paused():
            for job in jobs:
                workspace = course.prepared.agent.workspace
                course.received[job.turn] = await self._preparing.files.reception.received(job, workspace)

    async def _follow_all(self, events: AsyncGenerator[Event, None], course: Course, draft: Draft) -> None:
        async with aclosing(events):
            async for event in events:
                await self._follow(event, course, draft)

    async def _follow(self, event: Event, course: Course, draft: Draft) -> None:
        """Write down what `event` has settled before the loop goes on: a tool call before its tool runs.

        What is in the transcript and what the turn knows of it are one: otherwise a `/stop` in between is paid twice.
        """
        match event:
            case TextDelta(text=delta):
                course.heard(delta)
                draft.show(course.text)
            case StepDone(tool_calls=calls) if calls:
                await whole(self._note_step(course, event))
            case ToolStarted() if course.is_waiting:
                await self._write(course, [], also=self._going_on(course))
            case ToolFinished(outcome=outcome):
                await whole(self._note_outcome(course, outcome))
            case PlanMade(steps=plan):
                steps = [entries.PlanStep(content=step.content, status=step.status) for step in plan]
                await self._write(course, [entries.Plan(steps=tuple(steps))])
            case Done(text=text):
                course.streaming = text

    async def _note_step(self, course: Course, step: StepDone) -> None:
        """Write down what was said, also where that is nothing, for it says what the step cost; and what was called."""
        said = entries.Assistant(content=step.text, model=course.model, usage=course.usage)
        await self._write(course, [said, *map(_use, step.tool_calls)])
        course.written.append(step.text)
        course.streaming = ""
        course.calls, course.approvals = {call.id: call for call in step.tool_calls}, {}

    async def _note_outcome(self, course: Course, outcome: ToolOutcome) -> None:
        course.tools += 1
        if course.prepared is not None:
            self._preparing.used_tool(course.prepared)
        result = entries.ToolResult(tool_use_id=outcome.id, output=outcome.output, is_error=outcome.is_error)
        files = course.outgoing.taken() if course.outgoing else []
        await self._write(course, [result, *map(sent_file, files)], also=self._going_on(course))
        course.sent += files
        course.calls.pop(outcome.id, None)

    def _going_on(self, course: Course) -> list[Operation]:
        """End the waiting for an approval: from now on something of the step may have been done."""
        if not course.is_waiting:
            return []
        course.is_waiting = False
        return [Begin(turn=course.jobs[0].turn)]

    async def _end(self, course: Course) -> None:
        """Finish a turn. A `/stop` that comes meanwhile is meant for the one that begins with that."""
        try:
            await whole(self._finish(course))
        except asyncio.CancelledError as stop:
            if course.following is not None and not self._is_suspending:
                await self._stop(course.following, str(stop))
            raise

    async def _stop(self, job: Job, reason: str) -> None:
        self._running.discard(job.turn)
        course = Course(jobs=[job], asked=[], has_begun=job.has_begun)
        course.ended(TurnOutcome.STOPPED, reason or "Stopped.")
        await whole(self._finish(course))

    async def _finish(self, course: Course) -> None:
        """Fix the answer, the end of the turn and the fate of its messages in one commit; then let it be delivered."""
        job = course.jobs[0]
        replies = course.replies(course.text)
        parts = self._delivery.compose_all(replies, turn=job.turn, files=course.sent)
        state = InboxState.ABANDONED if course.outcome is TurnOutcome.STOPPED else InboxState.ANSWERED
        settled = [Settle(turn=each.turn, state=state, answered_by=job.turn) for each in course.jobs]
        asked = [] if course.has_begun else course.opening
        answer = entries.Assistant(content=course.unwritten, model=course.model, usage=course.usage)
        unfinished = [
            entries.ToolResult(tool_use_id=call, output=NOT_RUN if course.is_waiting else INTERRUPTED, is_error=True)
            for call in course.calls
        ]
        news = self._preparing.news()
        end = entries.TurnEnd(outcome=course.outcome)
        course.following = self._following(course)
        asked_next, begun = _opening(course.following)
        try:
            await self._write(
                course, [*asked, *unfinished, answer, end], behind=asked_next, also=[*settled, *parts, *news, *begun]
            )
            course.begin_following()
        except Refused as gone:  # Deleted or unreadable by now; its sender gets the answer all the same.
            log.warning("answer_not_in_transcript", reason=str(gone))
            await self._delivery.record(*settled, *parts, *news, *course.due)
        if course.following is None:
            self._meanwhile.answered(job)
        else:
            self._running.add(course.following.turn)
        self._delivery.post(parts)
        await asyncio.sleep(0)  # Let the answer go out first: all that follows can wait.
        self._delivery.tally.turned(course.channel, course.outcome, messages=len(course.jobs), took_ms=course.age_ms)
        log.info(
            "message_handled",
            outcome=course.outcome,
            messages=len(course.jobs),
            tools=course.tools,
            first_token_ms=course.first_token_ms,
            took_ms=course.age_ms,
        )
        if course.prepared is not None:
            await self._preparing.follow_up(job, course.prepared)

    def _following(self, course: Course) -> Job | None:
        """Take what is next in the lane, unless there is nobody to answer it any more."""
        if course.outcome is TurnOutcome.STOPPED or self._is_suspending:
            return None
        return self._meanwhile.following(course.jobs[0])

    async def _write(
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
        stamped = [*(msgspec.structs.replace(step, turn=job.turn) for step in steps), *behind]
        due = course.due
        await insist(partial(self._sessions.append, job.session, stamped, also=[*also, *due]))
        course.settled(due)


def _opening(job: Job | None) -> tuple[list[Entry], list[Operation]]:
    """Return what the turn of `job` begins with: in the transcript and in the spool."""
    return ([], []) if job is None else ([as_asked(job.inbound, turn=job.turn)], [Begin(turn=job.turn)])


def _use(call: ToolCall) -> entries.ToolUse:
    return entries.ToolUse(tool_use_id=call.id, name=call.name, input=call.input, fault=call.fault)


def _joined(others: Sequence[Job], job: Job) -> list[Operation]:
    """Let the turn of `job` answer the messages of others as well."""
    return [Settle(turn=each.turn, state=InboxState.RUNNING, answered_by=job.turn) for each in others]
