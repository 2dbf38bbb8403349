"""Records a turn: every step is committed to the transcript and the spool before the next one starts."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import structlog
from msgspec.structs import replace

from config.types import API_CHANNEL
from gateway.access.rules import Live, has_access
from gateway.agent.protocol import (
    Event,
    PlanUpdated,
    StepDone,
    ToolChanged,
    ToolFinished,
    ToolReported,
    ToolStarted,
)
from gateway.errors import Refused
from gateway.files.outgoing import enclosure, sent_file
from gateway.job import Job
from gateway.lanes import Lanes
from gateway.metrics import Metrics
from gateway.outbound.delivery import Delivery
from gateway.outbound.draft_stream import join_paragraphs
from gateway.outbound.long_replies import LongReplies
from gateway.schedules import RunOutcomes
from gateway.sessions import (
    Entry,
    SessionManager,
    SessionStatus,
    TurnOutcome,
    assistant_texts,
    entries,
    interrupted_results,
    open_tool_calls,
    sent_files,
)
from gateway.sessions.turn_progress import INTERRUPTED
from gateway.spool import AddRunUsage, AddUsage, InboxState, Operation, SetInboxState, Spool, StartTurn
from gateway.spool.deletion import SESSION_DELETED
from gateway.spool.spool import retry_while_unavailable
from gateway.tracing import current_trace, open_span
from gateway.turns.busy import BusyPolicy
from gateway.turns.state import TurnState, user_entry
from gateway.turns.usage import Meter

log = structlog.get_logger()

NOT_RUN = "This was not run: the turn ended while it waited for approval."
MODEL_UNAVAILABLE = "model_unavailable"
"""Why the session of a program is in error."""
AGENT_FAILED = "agent_failed"
"""Why the session of a coding agent is in error."""


class TurnRecorder:
    """Writes a turn to the transcript and the spool, and keeps its `TurnState` in step with them.

    Callers run these methods with `finish_before_cancel`, so that they complete even if the turn is cancelled.
    Otherwise a `/stop` between a commit and the change of the state would let the end of the turn record, and charge,
    the same step again.
    """

    def __init__(
        self,
        *,
        live: Live,
        sessions: SessionManager,
        spool: Spool,
        delivery: Delivery,
        lanes: Lanes[Job],
        busy: BusyPolicy,
        meter: Meter,
        metrics: Metrics,
        long_replies: LongReplies,
        run_outcomes: RunOutcomes,
    ) -> None:
        self._live = live
        self._sessions = sessions
        self._spool = spool
        self._delivery = delivery
        self._lanes = lanes
        self._busy = busy
        self._meter = meter
        self._metrics = metrics
        self._long_replies = long_replies
        self._run_outcomes = run_outcomes

    async def start(self, state: TurnState) -> None:
        """Record the messages of a turn that begins. For one that is resumed, restore the state that it had."""
        job, *others = state.jobs
        if not job.is_resumed:
            await self.write(state, state.opening_entries(), also=[StartTurn(turn=job.turn), *_joined(others, job)])
            state.has_begun = True
            return
        session = await self._sessions.load(job.session)
        state.written += assistant_texts(session.entries, job.turn)
        state.sent += map(enclosure, sent_files(session.entries, job.turn))
        if job.is_waiting:
            state.is_waiting = True
            state.calls, state.approvals = open_tool_calls(session.entries, job.turn)
        else:
            await self.write(state, interrupted_results(session.entries, job.turn), also=[StartTurn(turn=job.turn)])

    async def join(self, state: TurnState, others: Sequence[Job]) -> list[entries.User]:
        """Record messages that the running turn answers as well."""
        messages = [user_entry(other.inbound, state.received.get(other.turn)) for other in others]
        await self.write(state, messages, also=_joined(others, state.jobs[0]))
        return messages

    async def record(self, state: TurnState, event: Event) -> None:
        """Record a step of the agent loop: a tool call before its tool runs, a result before the next request."""
        resume: list[Operation] = []
        if state.is_waiting and isinstance(event, ToolStarted | ToolFinished):
            # The approval is decided. From this commit on, a tool of the step may have run.
            state.is_waiting = False
            resume = [StartTurn(turn=state.jobs[0].turn)]
        match event:
            case StepDone(text=text, tool_calls=calls) if calls:
                uses = [
                    entries.ToolUse(tool_use_id=call.id, name=call.name, input=call.input, fault=call.fault)
                    for call in calls
                ]

                def mark_written() -> None:
                    state.written.append(text)
                    state.streaming.clear()

                # Also if the text is empty: the entry has the usage of the step. The mark is set with the commit, so
                # that no one can take the text for one that is still being written.
                await self.write(state, [_assistant_entry(state, text), *uses], then=mark_written)
                state.calls, state.approvals = {call.id: call for call in calls}, {}
            case ToolReported(text=text, call=call):
                # A coding agent reports its calls one by one, and may have others under way.
                use = entries.ToolUse(tool_use_id=call.id, name=call.name, input=call.input, title=call.title)

                def mark_reported() -> None:
                    if text:
                        state.written.append(text)
                    state.streaming.clear()

                said = [_assistant_entry(state, text)] if text else []
                await self.write(state, [*said, use], then=mark_reported)
                state.calls[call.id] = call
            case ToolChanged(call=call):
                change = entries.ToolUpdate(tool_use_id=call.id, name=call.name, input=call.input, title=call.title)
                await self.write(state, [change])
                state.calls[call.id] = call
            case ToolStarted() if resume:
                await self.write(state, [], also=resume)
            case ToolFinished(outcome=outcome):
                state.tools += 1
                result = entries.ToolResult(
                    tool_use_id=outcome.id,
                    output=outcome.output,
                    is_error=outcome.is_error,
                    diffs=tuple(entries.FileDiff(path=each.path, diff=each.diff) for each in outcome.diffs),
                    usage=state.usage.entry() if state.usage is not None else None,
                )
                files = state.outgoing.take_new() if state.outgoing else []
                await self.write(state, [result, *map(sent_file, files)], also=resume)
                state.sent += files
                state.calls.pop(outcome.id, None)
            case PlanUpdated(steps=plan):
                steps = [entries.PlanStep(content=step.content, status=step.status) for step in plan]
                await self.write(state, [entries.Plan(steps=tuple(steps))])
            case _:
                pass

    async def finish(self, state: TurnState, *, may_continue: bool = False) -> None:
        """End a turn: commit its answer, its end and the state of its messages at once, then send the answer.

        If it `may_continue`, the turn of the next message in the lane begins in the same commit.
        """
        job, outcome = state.jobs[0], state.outcome or TurnOutcome.ANSWERED
        unwritten = "".join(state.streaming)
        # People who have lost access get nothing more. Others, whose messages the turn has received, are told.
        entitled = [each for each in state.jobs if has_access(self._live, each.inbound)]
        is_scheduled = job.inbound.scheduled is not None
        if is_scheduled and outcome is not TurnOutcome.ANSWERED:  # `RunOutcomes` tells once that a schedule fails.
            entitled = []
        ending = f"*{state.note}*" if state.note else ""
        written = join_paragraphs([*state.written, unwritten])
        replies = state.replies(join_paragraphs([written, ending]), entitled)
        if state.is_stop_told:
            # Only what it has written so far goes to the chat of the `/stop`.
            here = job.inbound.address
            replies = [replace(each, text=written) if each.address == here else each for each in replies]
            replies = [each for each in replies if each.text or state.sent]
        if not all(map(self._delivery.fits, replies)):
            replies = await self._long_replies.shorten(replies, turn=job.turn, session=job.session, note=ending)
        parts = self._delivery.compose_all(replies, turn=job.turn, scope=job.scope, files=state.sent)
        ended_runs: list[Operation] = []
        if is_scheduled:
            ended_runs, notices = await self._run_outcomes.end_runs([job.inbound], outcome, state.note)
            parts = [*notices, *parts]
        # A coding agent may have other calls under way while it waits for one. They have run.
        is_coding = state.agent is not None and state.agent.is_coding
        not_run = {state.asked} if is_coding else state.calls.keys()
        reasons = {call: NOT_RUN if state.is_waiting and call in not_run else INTERRUPTED for call in state.calls}
        end: list[Entry] = [
            *([] if state.has_begun else state.opening_entries()),
            *(entries.ToolResult(tool_use_id=call, output=reason, is_error=True) for call, reason in reasons.items()),
            *_last_entries(state, unwritten),
            entries.TurnEnd(outcome=outcome, reason=state.cause or ""),
        ]
        session = self._sessions.find(job.session) if state.ends_session else None
        ends_session = session is not None and session.status is SessionStatus.ACTIVE
        if session is not None and state.ends_session == MODEL_UNAVAILABLE and session.channel != API_CHANNEL:
            # A program that gets no answer must not wait for one. People in a chat can ask again.
            ends_session = False
        if ends_session:
            end.append(entries.Status(value=SessionStatus.ERROR, by="agent", why=state.ends_session))
            may_continue = False
        ended = InboxState.ABANDONED if outcome is TurnOutcome.STOPPED else InboxState.ANSWERED
        settled = [SetInboxState(turn=each.turn, state=ended, answered_by=job.turn) for each in state.jobs]
        unused_drafts = self._delivery.forget_drafts(job.turn, parts)
        operations = [*settled, *ended_runs, *parts, *unused_drafts, *self._meter.learned()]
        # Where one turn ends and the next begins:
        # 1. The next message is taken out of the lane before the commit. Nothing can overtake it after that.
        # 2. One commit ends this turn and begins the next. After a crash, both have happened or neither.
        # 3. A `/stop` during the commit belongs to the next turn. `TurnRunner.run` ends that one then.
        # 4. If no message follows, the lane is freed as soon as the commit is done, so that a message that comes now
        #    starts at once, although this task still has to send the answer.
        # 5. Only then is the answer posted, so that a chat never shows an answer that is not in the spool.
        following = state.following = self._busy.take_following(job.session) if may_continue else None
        next_messages, begin_next = [], []
        if following is not None:
            next_messages = [user_entry(following.inbound, turn=following.turn)]
            begin_next = [StartTurn(turn=following.turn)]
        try:
            await self.write(state, end, also=[*operations, *begin_next], next_turn=next_messages)
        except Refused as refusal:  # The session was deleted, or cannot be read. The sender gets an answer anyway.
            log.warning("answer_not_in_transcript", reason=str(refusal))
            if self._sessions.was_deleted(job.session):  # Nothing that was said in it may be stored again.
                note = state.replies(f"*{state.note or SESSION_DELETED}*", entitled if not is_scheduled else [])
                parts = self._delivery.compose_all(note, turn=job.turn, scope=job.scope)
            spends = state.usage.uncommitted if state.usage is not None else []
            sent = [*parts, *unused_drafts, *self._delivery.forget_drafts(job.turn, parts)]
            operations = [*settled, *ended_runs, *sent, *self._meter.learned(), *_charges(job, spends)]
            await retry_while_unavailable(partial(self._spool.commit, *operations, scope=job.scope))
        else:
            state.following = replace(following, has_begun=True) if following is not None else None
        if following is None:
            self._lanes.detach(job.session)
        self._delivery.post(parts)
        if is_scheduled:
            self._run_outcomes.runs_ended()
        # Lets the answer be sent first: its task starts in the next iteration of the loop, and writes in the one after.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if ends_session and session is not None and session.channel == API_CHANNEL:
            active = await self._sessions.directory.count(API_CHANNEL, SessionStatus.ACTIVE)
            log.info("api_session_ended", status=SessionStatus.ERROR, reason=state.ends_session, active=active)
        took_ms, messages = state.elapsed_ms, len(state.jobs)
        self._metrics.turn_finished(job.inbound.address.channel, outcome, messages=messages, took_ms=took_ms)
        if (trace := current_trace()) is not None:
            is_failure = outcome is TurnOutcome.FAILED
            trace.settle(state.jobs, outcome, is_failure=is_failure, tools=state.tools, cause=state.cause or "")
        log.info(
            "message_handled",
            outcome=outcome,
            messages=messages,
            tools=state.tools,
            first_token_ms=state.first_token_ms,
            took_ms=took_ms,
        )

    async def write(
        self,
        state: TurnState,
        steps: Sequence[Entry],
        *,
        also: Sequence[Operation] = (),
        next_turn: Sequence[Entry] = (),
        then: Callable[[], None] | None = None,
    ) -> None:
        """Append to the transcript, with the operations `also` and the turn's usage in the same commit.

        While nothing can be stored, wait: the turn cannot go on without it.
        """
        job = state.jobs[0]
        stamped = [*(replace(step, turn=job.turn) for step in steps), *next_turn]
        spends = list(state.usage.uncommitted) if state.usage is not None else []
        with open_span("commit"):
            await retry_while_unavailable(
                partial(self._sessions.append, job.session, stamped, also=[*also, *_charges(job, spends)], then=then)
            )
        if state.usage is not None:
            state.usage.mark_committed(spends)


def _charges(job: Job, spends: Sequence[AddUsage]) -> list[Operation]:
    """Return what requests have cost, for the person, and for the schedule that the turn answers."""
    run = job.inbound.scheduled
    if run is None or not spends:
        return [*spends]
    of_run = AddRunUsage(
        schedule=run.id,
        number=run.run,
        day=spends[-1].day,
        tokens=sum(each.input_tokens + each.output_tokens for each in spends),
        cost_micros=sum(each.cost_micros for each in spends),
    )
    return [*spends, of_run]


def _joined(others: Sequence[Job], job: Job) -> list[Operation]:
    """Let the turn of `job` answer the messages of `others` as well."""
    return [SetInboxState(turn=other.turn, state=InboxState.RUNNING, answered_by=job.turn) for other in others]


def _last_entries(state: TurnState, text: str) -> list[Entry]:
    """Return the text of the last step, and after it why there is no more. The model must not see the reason."""
    answer = _assistant_entry(state, text)
    if not state.note:
        return [answer]
    is_failure = state.outcome is TurnOutcome.FAILED
    reason = entries.System(content=state.note, is_failure=is_failure, details=state.details)
    return [answer, reason] if text or answer.usage else [reason]


def _assistant_entry(state: TurnState, text: str) -> entries.Assistant:
    if state.agent is None or state.usage is None:
        return entries.Assistant(content=text)
    model = state.usage.model or state.agent.model or ""
    return entries.Assistant(content=text, model=model, usage=state.usage.entry())
