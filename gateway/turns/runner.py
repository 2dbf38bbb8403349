"""The turn runner: one agent run that answers accepted messages, from waiting for a slot to its recorded end."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from functools import partial

import structlog
from structlog.contextvars import bind_contextvars, reset_contextvars

from config.types import PROGRAM_CHANNELS
from gateway.access.role_table import AskerRoles
from gateway.access.roles import check_command, role_in, roles_of_all
from gateway.access.rules import ACCESS_LOST, AccessLost, Live, check_access, has_access, is_owner, is_shared
from gateway.acp.pool import CodingAgents, CodingTurn, TurnHooks
from gateway.agent.loop import run_agent, run_tools
from gateway.agent.protocol import Done, Event, StepDone, TextDelta, TokenUsage, ToolFinished, ToolReported
from gateway.agent.senders import without_sender
from gateway.agent.tools import ToolContext
from gateway.agent.workspace_lock import WorkspaceLocks
from gateway.aio import TurnSlot, finish_before_cancel
from gateway.bounded import BoundedDict
from gateway.contract import PeerKind
from gateway.conversation import Message, ToolCall
from gateway.errors import OUR_FAULT, AgentFailed, ModelUnavailable, ProviderFailed, Refused
from gateway.files.download import AttachmentDownloads
from gateway.files.outgoing import OutgoingFiles
from gateway.files.pictures import with_pictures
from gateway.job import Job, JobSlots
from gateway.outbound.delivery import Delivery
from gateway.outbound.draft_stream import DraftStream
from gateway.outbound.reactions import WaitingReactions
from gateway.placement import Placement
from gateway.reminders.reminders import Reminders
from gateway.schedules import Schedules
from gateway.sessions import Entry, SessionManager, SessionStatus, TurnOutcome, entries, undo_last_turn
from gateway.sessions.entries import FailureCause
from gateway.sessions.history import to_messages
from gateway.tracing import NO_SPAN, NoSpan, OpenSpan, end_lane_waits, open_span
from gateway.turns.agents import ConfiguredAgent
from gateway.turns.approvals import ApprovalGate, Approvals
from gateway.turns.busy import BusyPolicy
from gateway.turns.compaction import CONVERSATION, CompactionRequest, Compactor
from gateway.turns.context import TurnContext
from gateway.turns.question import Decision
from gateway.turns.recorder import AGENT_FAILED, MODEL_UNAVAILABLE, TurnRecorder
from gateway.turns.state import TurnState
from gateway.turns.titles import TitleRequest, TitleWriter
from gateway.turns.usage import LimitReached

log = structlog.get_logger()

MAX_ANSWERED_SESSIONS = 10_000
"""Sessions that have had an answer since the start. One that is forgotten is told again that it was restored."""


class TurnRunner:
    def __init__(  # noqa: PLR0913 - it needs them all.
        self,
        *,
        live: Live,
        sessions: SessionManager,
        context: TurnContext,
        recorder: TurnRecorder,
        busy: BusyPolicy,
        approvals: Approvals,
        gate: ApprovalGate,
        delivery: Delivery,
        reactions: WaitingReactions,
        files: AttachmentDownloads,
        coding_agents: CodingAgents,
        reminders: Reminders,
        schedules: Schedules,
        compactor: Compactor,
        titles: TitleWriter,
        placement: Placement,
        slots: JobSlots,
    ) -> None:
        self._live = live
        self._sessions = sessions
        self._context = context
        self._recorder = recorder
        self._busy = busy
        self._approvals = approvals
        self._gate = gate
        self._delivery = delivery
        self._reactions = reactions
        self._files = files
        self._coding_agents = coding_agents
        self._reminders = reminders
        self._schedules = schedules
        self._compactor = compactor
        self._titles = titles
        self._placement = placement
        # A session has one turn in the line for a slot, so a long lane delays others by one slot only.
        self._slots = slots
        self._started = context.now()
        self._answered_sessions = BoundedDict[str, None](MAX_ANSWERED_SESSIONS)
        self.workspace_locks = WorkspaceLocks()
        """Shared by everything that runs tools."""
        self._running: dict[str, TurnState] = {}
        self.is_suspending = False
        """Whether turns that are cancelled now continue after the next start."""

    async def run(self, job: Job, opening: Sequence[Entry] = ()) -> Job | None:
        """Run the turn of `job`. Raises nothing but cancellation: every failure becomes the answer of this turn.

        `opening` replaces its message in the transcript. Returns the next message of the session, if its turn has
        begun with the end of this one.
        """
        state = TurnState(jobs=[job, *job.collected], opening=list(opening), has_begun=job.has_begun or job.is_resumed)
        limit = self._live.settings.gateway.turn_timeout
        slots = self._slots.suspect if job.is_suspect else self._slots.turn
        # Access was checked just before the turn began. It is checked again only if the message has waited since.
        has_waited = not job.has_begun or any(slot.locked() for slot in slots)
        address = job.inbound.address
        bound = bind_contextvars(channel=address.channel, chat=address.peer, session=job.session, turn=job.turn)
        self._running[job.turn] = state
        try:
            try:
                # A turn that finds a free slot has no such span.
                slot_wait = open_span("slot wait") if any(slot.locked() for slot in slots) else NO_SPAN
                async with TurnSlot(limit, *slots) as slot:
                    slot_wait.end()
                    if job.turn in self._reactions.waiting:
                        self._reactions.remove(job.turn)
                    if has_waited:
                        check_access(self._live, job.inbound)
                    await self._answer(state, slot)
                state.outcome = TurnOutcome.ANSWERED
            except asyncio.CancelledError as stop:
                if not self.is_suspending:
                    state.stop(str(stop))
                    await finish_before_cancel(self._end(state))
                raise
            except AccessLost:
                state.end(TurnOutcome.STOPPED, ACCESS_LOST)
            except TimeoutError:
                details = self._for_owners(state, f"gateway.turn_timeout is {limit:g} seconds.")
                reason = f"This took longer than {limit:g} seconds, so I stopped."
                state.end(TurnOutcome.FAILED, reason, cause=FailureCause.TIMEOUT, details=details)
            except Refused as refusal:
                cause = FailureCause.LIMIT if isinstance(refusal, LimitReached) else FailureCause.REFUSED
                state.end(TurnOutcome.FAILED, str(refusal), cause=cause)
            except AgentFailed as failure:
                state.ends_session = AGENT_FAILED
                details = self._for_owners(state, failure.details)
                reason = f"{failure} {self._how_to_go_on(job)}"
                state.end(TurnOutcome.FAILED, reason, cause=FailureCause.AGENT, details=details)
            except ProviderFailed as failure:
                state.ends_session = MODEL_UNAVAILABLE if isinstance(failure, ModelUnavailable) else ""
                details = self._for_owners(state, failure.details)
                state.end(TurnOutcome.FAILED, str(failure), cause=FailureCause.MODEL, details=details)
            # One turn's bug must not end the others, nor leave its sender without an answer.
            except Exception as crash:
                log.exception("turn_crashed")
                where = f"{type(crash).__name__}. See turn_crashed in the log, with turn {job.turn}."
                details = self._for_owners(state, where)
                state.end(TurnOutcome.FAILED, OUR_FAULT, cause=FailureCause.BUG, details=details)
            finally:
                if job.turn in self._reactions.waiting:  # It was cancelled before it had a slot.
                    self._reactions.remove(job.turn)
                if job.is_waiting:  # It may have ended before it came to the question that a restart has reopened.
                    self._approvals.close_all(job.turn)
            try:
                await finish_before_cancel(self._end(state, may_continue=not self.is_suspending))
            except asyncio.CancelledError as stop:
                # This turn has ended. The `/stop` is meant for the one that has begun with its end, and is not
                # running yet.
                if state.following is not None and not self.is_suspending:
                    self._reactions.remove(state.following.turn)
                    following = TurnState(jobs=[state.following], has_begun=state.following.has_begun)
                    following.stop(str(stop))
                    await finish_before_cancel(self._end(following))
                raise
        finally:
            del self._running[job.turn]
            reset_contextvars(**bound)
        return state.following

    def _for_owners(self, state: TurnState, details: str) -> str:
        """Return `details` if only owners get the answer, each in their own chat. Empty otherwise."""
        askers = [job.inbound for job in state.jobs]
        may_see = all(
            asker.address.kind is PeerKind.DIRECT and is_owner(self._live, asker.address, asker.sender)
            for asker in askers
        )
        return details if may_see else ""

    def _roles(self, state: TurnState) -> AskerRoles:
        """Return the roles of all people whose messages the turn answers so far."""
        return roles_of_all(self._live, (job.inbound for job in state.jobs))

    def _may_join(self, state: TurnState, job: Job) -> bool:
        """Return whether a turn may answer a waiting message as well, by the role of its sender.

        Otherwise the message gets a turn of its own: nobody ends a turn of somebody else by writing to it.
        """
        agent, session = state.agent, self._sessions.find(job.session)
        if agent is None or session is None:
            return False
        inbounds = [each.inbound for each in (*state.jobs, job)]
        check = partial(self._context.check_roles, agent, folders=(session.repo, session.workspace))
        try:
            return check(roles=partial(roles_of_all, self._live, inbounds)) == check(roles=partial(self._roles, state))
        except Refused:
            return False

    def _how_to_go_on(self, job: Job) -> str:
        """Return a sentence for a session that ends in error."""
        session = self._sessions.find(job.session)
        if session is not None and session.channel in PROGRAM_CHANNELS:
            return "This session is in error and takes no more prompts. Start another one."
        repo = f" @{session.repo}" if session is not None and session.repo else ""
        return f"This session has ended. Your next message starts another one, as /new{repo} does."

    async def _answer(self, state: TurnState, slot: TurnSlot) -> None:
        """Choose the agent, receive the files, record the start, and run the agent loop."""
        job = state.jobs[0]
        session = self._sessions.find(job.session)
        if job.session not in self._answered_sessions:
            self._answered_sessions[job.session] = None
            if session is not None and session.created_at < self._started:
                state.restored = session.turns
        if session is not None and session.status is SessionStatus.ERROR:  # The turn before has ended it.
            raise Refused("The session is in error, so this was not run.")
        # Intake has sent the message to a node with the labels. The settings may have changed since.
        if self._placement.is_used:
            needed = self._placement.needed(job.agent) if session is None else self._placement.needed_by(session)
            self._placement.check(needed)
        roles = partial(self._roles, state)
        agent, provider = await self._context.choose_agent(job, roles)
        state.agent, state.usage = agent, provider.usage
        if notice := self._sessions.take_notice(job.session):
            state.written.append(f"*{notice}*")
        if not state.has_begun:
            # Files come first: the transcript entry of a message says what became of them.
            collected = self._busy.take_collected(job, partial(self._may_join, state))
            end_lane_waits(collected)
            state.jobs += collected
            await self._receive_files(state, state.jobs, slot)
        if not job.has_begun:
            await finish_before_cancel(self._recorder.start(state))
        outgoing = state.outgoing = OutgoingFiles(
            store=self._files.store,
            sessions=self._sessions,
            settings=self._live.settings.files,
            job=job,
            count=len(state.sent),
        )
        await self._files.store.fetch_session(job.session)  # Another node may have received them.
        tools = ToolContext(
            workspace=agent.workspace.path,
            is_private=agent.workspace.is_private,
            locks=self.workspace_locks,
            attachments=self._files.store.folder(job.session),
            find_skills=lambda: agent.skills().folders,
            memory=self._context.memory_folder(job.scope),
            now=self._context.now,
            documents=self._files.documents,
            send_file=outgoing.add,
            check_sending=outgoing.check,
            budget=provider.usage,
            remind=partial(self._reminders.make, job),
            schedule=partial(self._schedules.make, job),
            recall=partial(self._context.recall.find, job.scope, job.turn),
        )
        # A chat that has not asked gets the whole answer at once, and no drafts.
        is_hidden = job.inbound.is_answered_elsewhere or job.inbound.scheduled is not None
        template = state.replies("", [job])[0]
        async with self._delivery.stream_draft(template, turn=job.turn, is_hidden=is_hidden) as draft:
            if agent.is_coding:
                await self._handle_events(await self._run_coding_agent(state, slot, draft, agent), state, draft)
                return
            approve = partial(self._gate.approve, state, slot, draft, tools)
            verify = partial(self._gate.verify, state, tools)
            if state.calls:  # The turn was waiting for an approval when the daemon stopped, and continues there.
                calls = tuple(state.calls.values())
                ran = run_tools(calls, toolbox=agent.toolbox, context=tools, approve=approve, verify=verify)
                await self._handle_events(ran, state, draft)
            prompt, provider.history_size = await self._context.build_prompt(job, agent)
            events = run_agent(
                prompt,
                provider=provider,
                toolbox=agent.toolbox,
                context=tools,
                max_iterations=agent.max_iterations,
                approve=approve,
                verify=verify,
                new_messages=partial(self._new_messages, state, slot),
            )
            await self._handle_events(events, state, draft)

    async def _run_coding_agent(
        self, state: TurnState, slot: TurnSlot, draft: DraftStream, agent: ConfiguredAgent
    ) -> AsyncGenerator[Event, None]:
        """Return the events of a turn that a coding agent runs."""
        job = state.jobs[0]
        session = await self._sessions.load_meta(job.session)
        if state.usage is not None:
            await state.usage.check_limits()
        prompt, history_size = await self._context.build_prompt(job, agent)
        names_senders = is_shared(self._live, job.inbound.address, job.inbound.sender)
        messages = [each if names_senders else without_sender(each) for each in prompt.messages]
        calls, approvals = tuple(state.calls.values()), state.approvals

        async def ask(call: ToolCall, until: asyncio.Event | None) -> bool:
            if not self._roles(state).allows_tool(call.name):
                log.info("tool_refused", tool=call.name, reason="the role of the person does not allow it")
                return False
            asked = await self._gate.ask(state, slot, draft, call, workspace=session.repo, until=until)
            return asked is Decision.APPROVED

        async def new_messages() -> Sequence[Message]:
            new = await self._new_messages(state, slot)
            return [each if names_senders else without_sender(each) for each in new]

        def charge(usage: TokenUsage) -> None:
            if state.usage is not None:
                state.usage.charge(usage, model=agent.info.name)

        async def tell(sentence: str) -> None:
            await finish_before_cancel(self._recorder.write(state, [entries.System(content=sentence)]))
            state.written.append(f"*{sentence}*")

        return self._coding_agents.run_turn(
            session,
            agent.name,
            agent.model,
            CodingTurn(
                messages=messages[history_size:],
                before=messages[:history_size],
                is_resumed=job.is_resumed,
                open_calls=calls,
                asked=next(reversed(list(approvals)), ""),
                system=agent.system,
                instructions=job.inbound.instructions,
            ),
            TurnHooks(
                ask=ask,
                may_always=partial(self._gate.may_always, state),
                new_messages=new_messages,
                charge=charge,
                show=lambda sentence: draft.show([*state.written, f"*{sentence}*"], []),
                paused=slot.paused,
                tell=tell,
            ),
        )

    async def _handle_events(self, events: AsyncGenerator[Event, None], state: TurnState, draft: DraftStream) -> None:
        """Show the text as it comes, and record every other event before the agent loop goes on."""
        job = state.jobs[0]
        reported: dict[str, OpenSpan | NoSpan] = {}
        async with aclosing(events):
            async for event in events:
                # A coding agent runs its tools itself. The toolbox traces all others.
                if isinstance(event, ToolReported):
                    about = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": event.call.name}
                    reported[event.call.id] = open_span(f"execute_tool {event.call.name}", about)
                elif isinstance(event, ToolFinished) and event.call.id in reported:
                    with reported.pop(event.call.id) as span:
                        if event.outcome.is_error:
                            span.fail("tool_failed")
                match event:
                    case TextDelta(text=delta):
                        if state.first_token_ms is None:
                            state.first_token_ms = state.elapsed_ms
                        state.streaming.append(delta)
                        draft.show(state.written, state.streaming)
                        self._sessions.feed.wrote(job.session, job.turn, delta)
                    case Done(text=text):
                        state.streaming[:] = [text]
                    case StepDone(tool_calls=()):
                        pass  # The last step is recorded with the end of the turn.
                    case _:
                        if isinstance(event, ToolFinished):  # It may have written a note.
                            await self._context.memory_may_have_changed(state.jobs[0].scope)
                        await finish_before_cancel(self._recorder.record(state, event))

    async def _new_messages(self, state: TurnState, slot: TurnSlot) -> Sequence[Message]:
        """Take new messages into the running turn, between two steps. After the last step they get their own turn."""
        if state.jobs[0].inbound.scheduled is not None:
            return []
        others = self._busy.take_steering(state.jobs[0].session, partial(self._may_join, state))
        if not others:
            return []
        end_lane_waits(others)
        state.jobs += others
        await self._receive_files(state, others, slot)
        messages = await finish_before_cancel(self._recorder.join(state, others))
        sees_images = state.agent is not None and state.agent.info.sees_images
        return await with_pictures(to_messages(messages), self._files.store, sees=sees_images)

    async def _receive_files(self, state: TurnState, jobs: Sequence[Job], slot: TurnSlot) -> None:
        """Wait for the files of messages, before the messages are recorded. The turn's slot is free during that."""
        if not any(job.inbound.attachments for job in jobs):
            return
        async with slot.paused():
            for job in jobs:
                state.received[job.turn] = await self._files.collect(job)

    async def _end(self, state: TurnState, *, may_continue: bool = False) -> None:
        """Record the end, and start to summarise the session if the turn has made it long."""
        await self._recorder.finish(state, may_continue=may_continue)
        agent, usage = state.agent, state.usage
        if agent is not None and usage is not None and agent.info.sums_up:
            key = state.jobs[0].session
            request = CompactionRequest(
                session=key, agent=agent, person=usage.person, limits=usage.limits, keep=CONVERSATION
            )
            if state.outcome is TurnOutcome.ANSWERED:
                self._titles.consider(TitleRequest(session=key, agent=agent, person=usage.person, limits=usage.limits))
            with suppress(Refused):  # The session has been deleted.
                await self._compactor.consider(request, tokens=usage.context_tokens)

    async def retry_opening(self, job: Job) -> list[Entry]:
        """Return the entries that a `/retry` starts with: the last turn undone, and its messages again.

        Empty if the session has no turn to retry.
        """
        check_access(self._live, job.inbound)
        check_command(role_in(self._live, job.inbound), "retry")
        session = await self._sessions.load(job.session)
        undo = undo_last_turn(session.entries)
        if undo is None:
            return []
        messages = [entry for entry in session.entries if isinstance(entry, entries.User) and entry.turn == undo.undone]
        return [undo, *messages]

    def has_text(self, job: Job) -> bool:
        """Return whether the turn of `job` runs and has written a part of its answer."""
        return job.turn in self._running and self._running[job.turn].has_text

    def unwritten_text(self, session: str) -> tuple[str, str] | None:
        """Return the turn that is running in a session, and the text of its step so far. None if no turn is running."""
        for turn, state in self._running.items():
            if state.jobs[0].session == session and state.outcome is None:
                return turn, "".join(state.streaming)
        return None

    def has_lost_access(self, job: Job) -> bool:
        """Return whether a message that the turn of `job` works on now comes from a person without access."""
        state = self._running.get(job.turn)
        if state is None:  # It is about to run, or it is a command.
            jobs = [job]
        elif state.outcome is None:
            jobs = state.jobs
        else:  # It has ended. The next one may have begun with its end.
            jobs = [state.following] if state.following is not None else []
        return not all(has_access(self._live, each.inbound) for each in jobs)

    def find_refusal(self, job: Job) -> str:
        """Return why the roles of the people whom the turn of `job` answers no longer allow it, or an empty string."""
        state = self._running.get(job.turn)
        if state is None or state.outcome is not None or state.usage is None:
            return ""  # It has not begun: then it is checked at its start. Or it has ended.
        return state.usage.find_refusal()

    def suspend(self) -> list[str]:
        """Let turns that are cancelled from now on continue after the next start. Return the ids of those turns."""
        self.is_suspending = True
        suspended = []
        for turn, state in self._running.items():
            if state.outcome is None:
                suspended.append(turn)
            elif state.following is not None and state.following.has_begun:
                suspended.append(state.following.turn)
        return suspended
