"""A turn: one agent run that answers accepted messages, within its limits, and comes to an end whatever happens."""

import asyncio
from collections.abc import Sequence
from functools import partial

import structlog
from structlog.contextvars import bind_contextvars, reset_contextvars

from gateway.access.live import Live
from gateway.access.rules import check_still_welcome
from gateway.agent.loop import run_agent, run_tools
from gateway.agent.tools import ToolContext
from gateway.aio import TurnSlot, finish_before_cancel
from gateway.bounded import BoundedDict
from gateway.conversation import Message
from gateway.errors import OUR_FAULT, ProviderFailed, Refused
from gateway.job import Job
from gateway.outbound.delivery import Delivery
from gateway.outbound.streaming import Draft
from gateway.reminders.reminders import Reminders
from gateway.sessions import Entry, SessionManager, TurnOutcome, entries, undo_last_turn
from gateway.sessions.history import to_messages
from gateway.turns.approvals import ApprovalGate, Approvals
from gateway.turns.busy import BusyPolicy
from gateway.turns.context import TurnContext
from gateway.turns.recorder import Ending, TurnRecorder
from gateway.turns.state import TurnState

__all__ = ["TurnRunner"]

log = structlog.get_logger()

KNOWN_SESSIONS = 10_000
"""Whose first answer since the start has been given; one that is forgotten is greeted again."""


class TurnRunner:
    """`run` raises nothing but cancellation: whatever goes wrong becomes the visible end of that one turn."""

    def __init__(
        self,
        *,
        live: Live,
        preparing: TurnContext,
        sessions: SessionManager,
        delivery: Delivery,
        meanwhile: BusyPolicy,
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
        self._minutes = TurnRecorder(sessions, preparing)
        self._ending = Ending(preparing=preparing, delivery=delivery, meanwhile=meanwhile, minutes=self._minutes)
        # Waiters are served first come, first served, and each turn asks anew: a long queue delays others by one slot.
        self._slots = asyncio.Semaphore(live.settings.gateway.max_parallel_turns)
        self._suspects = asyncio.Semaphore(1)
        self._started = preparing.now()
        self._known = BoundedDict[str, None](KNOWN_SESSIONS)
        self._running: set[str] = set()
        self._finishing: dict[str, TurnState] = {}
        self._is_suspending = False

    async def again(self, job: Job) -> list[Entry]:
        """Return what a `/retry` begins with: the last turn undone, and its message again; empty if there is none."""
        check_still_welcome(self._live, job.inbound)
        session = await self._sessions.load(job.session)
        undo = undo_last_turn(session.entries)
        if undo is None:
            return []
        asked = [entry for entry in session.entries if isinstance(entry, entries.User) and entry.turn == undo.undone]
        return [undo, *asked]

    async def run(self, job: Job, begins_with: Sequence[Entry] = ()) -> Job | None:
        """Answer `job`. What it asks is `begins_with`, or else its own text.

        Return the message that is next in its lane, if its turn has begun with the end of this one.
        """
        address = job.inbound.address
        bound = bind_contextvars(channel=address.channel, chat=address.peer, session=job.session, turn=job.turn)
        try:
            return await self._run(TurnState.of(job, begins_with))
        finally:
            reset_contextvars(**bound)

    async def _run(self, course: TurnState) -> Job | None:
        job = course.jobs[0]
        self._running.add(job.turn)
        limit = self._live.settings.gateway.turn_timeout
        try:
            async with TurnSlot(limit, *self._places(job)) as allowance:
                self._meanwhile.begun(job)
                await self._answer(course, allowance)
        except asyncio.CancelledError as stop:
            if not self._is_suspending:
                self._running.discard(job.turn)
                course.ended(TurnOutcome.STOPPED, str(stop) or "Stopped.")
                await finish_before_cancel(self._ending.finish(course, may_go_on=False))
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
        following = (course.following for course in self._finishing.values())
        return [*self._running, *(job.turn for job in following if job is not None and job.has_begun)]

    async def _answer(self, course: TurnState, allowance: TurnSlot) -> None:
        job = course.jobs[0]
        check_still_welcome(self._live, job.inbound)
        course.restored = self._restored(job)
        prepared = course.prepared = await self._preparing.prepare(job)
        agent = prepared.agent
        if not course.has_begun:
            course.jobs += self._meanwhile.collected(job)
            await self._receive(course, course.jobs, allowance)
        if not job.has_begun:
            await finish_before_cancel(self._minutes.begin(course))
        course.outgoing = self._preparing.files.outgoing(job, course.sent)
        context = ToolContext(
            workspace=agent.workspace,
            notes=prepared.notes,
            now=self._preparing.now,
            send_file=course.outgoing.add,
            remind=partial(self._reminders.make, job),
        )
        async with self._delivery.drafting(course.reply(""), turn=job.turn) as draft:
            approve = self._asking(course, allowance, draft).permit
            if course.calls:
                waiting = run_tools(
                    tuple(course.calls.values()), toolbox=agent.toolbox, context=context, approve=approve
                )
                await self._minutes.follow_all(waiting, course, draft)
            events = run_agent(
                await self._preparing.brief(job, prepared),
                provider=prepared.provider,
                toolbox=agent.toolbox,
                context=context,
                max_iterations=agent.max_iterations,
                approve=approve,
                new_messages=lambda: self._listen(course, allowance),
            )
            await self._minutes.follow_all(events, course, draft)

    def _asking(self, course: TurnState, allowance: TurnSlot, draft: Draft) -> ApprovalGate:
        return ApprovalGate(
            course=course,
            allowance=allowance,
            draft=draft,
            approvals=self._approvals,
            delivery=self._delivery,
            meanwhile=self._meanwhile,
            write=partial(self._minutes.write, course),
            timeout=self._live.settings.gateway.approval_timeout,
        )

    def _restored(self, job: Job) -> int:
        """Return how many turns the session has from before our start, the first time that it is used since."""
        if job.session in self._known:
            return 0
        self._known[job.session] = None
        session = self._sessions.find(job.session)
        return session.turns if session and session.created_at < self._started else 0

    async def _listen(self, course: TurnState, allowance: TurnSlot) -> Sequence[Message]:
        """Take into the turn what was said since, in one commit; what comes after the last step waits for its own."""
        job = course.jobs[0]
        others = self._meanwhile.steering(job.session)
        if not others:
            return []
        course.jobs += others
        await self._receive(course, others, allowance)
        said = await finish_before_cancel(self._minutes.join(course, others))
        return await self._preparing.files.with_pictures(to_messages(said), sees=course.sees)

    async def _receive(self, course: TurnState, jobs: Sequence[Job], allowance: TurnSlot) -> None:
        """Have the files that messages came with, before anything is written down of them."""
        if course.prepared is None or not any(job.inbound.attachments for job in jobs):
            return
        async with allowance.paused():
            for job in jobs:
                workspace = course.prepared.agent.workspace
                course.received[job.turn] = await self._preparing.files.downloads.collect(job, workspace)

    async def _end(self, course: TurnState) -> None:
        """Finish a turn. A `/stop` that comes meanwhile is meant for the one that begins with that."""
        turn = course.jobs[0].turn
        self._finishing[turn] = course
        try:
            await finish_before_cancel(self._ending.finish(course, may_go_on=not self._is_suspending))
        except asyncio.CancelledError as stop:
            if course.following is not None and not self._is_suspending:
                await self._stop(course.following, str(stop))
            raise
        finally:
            del self._finishing[turn]

    async def _stop(self, job: Job, reason: str) -> None:
        course = TurnState.of(job)
        course.ended(TurnOutcome.STOPPED, reason or "Stopped.")
        await finish_before_cancel(self._ending.finish(course, may_go_on=False))
