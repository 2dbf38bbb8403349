"""Approvals: asks a person before a tool runs, and keeps the questions that are open."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import partial
from typing import NamedTuple
from uuid import uuid4

import structlog

from config import ApprovalRight
from config.types import PROGRAM_CHANNELS
from gateway.access.roles import role_in, roles_of_all
from gateway.access.rules import Live, are_same_person, is_shared
from gateway.agent.toolbox.named_files import digest_named_files
from gateway.agent.tools import ToolContext, ToolFailed
from gateway.aio import TurnSlot, finish_before_cancel, wait_for_any
from gateway.bounded import BoundedDict
from gateway.contract import Address, Inbound, PeerKind
from gateway.conversation import ToolCall
from gateway.errors import Refused
from gateway.job import Job
from gateway.lanes import Lanes
from gateway.outbound.delivery import Delivery
from gateway.outbound.draft_stream import DraftStream
from gateway.sessions import SessionManager, entries
from gateway.spool import InboxState, Operation, ResetAttempts, SetInboxState
from gateway.spool.spool import retry_while_unavailable
from gateway.text.plain import duration
from gateway.tracing import open_span
from gateway.turns.grants import GrantBook
from gateway.turns.question import Decision, Question, question_text
from gateway.turns.recorder import TurnRecorder
from gateway.turns.state import TurnState

log = structlog.get_logger()

MAX_CLOSED = 1_000
"""Closed questions that are remembered, so that a late press of a button gets a useful answer."""


_CLOSED = {
    Decision.APPROVED: "This was already approved.",
    Decision.DENIED: "This was already denied.",
    Decision.EXPIRED: "This question has expired, so the tool wasn't run.",
}
_NOT_OPEN = "This question is no longer open."
_WORDS = {
    "yes": Decision.APPROVED,
    "y": Decision.APPROVED,
    "no": Decision.DENIED,
    "n": Decision.DENIED,
}


def parse_decision(text: str) -> Decision | None:
    """Read a message as a plain yes or no."""
    return _WORDS.get(text.strip().rstrip(".!").lower())


class _Closed(NamedTuple):
    scope: str
    chat: Address
    decision: Decision | None


class Approvals:
    """The open questions. A button, a command, a plain yes and the timeout may race; the first commit decides."""

    def __init__(self, live: Live, sessions: SessionManager) -> None:
        self._live = live
        self._sessions = sessions
        self.open_questions: dict[str, Question] = {}
        """By id."""
        self._closed = BoundedDict[str, _Closed](MAX_CLOSED)
        """By id, the oldest first."""
        self.rights_changed = asyncio.Event()
        """Set once, when people may have other rights. Then there is another event for the next time."""

    def recheck(self) -> None:
        """Let open questions end that have no use by the roles of now."""
        self.rights_changed.set()
        self.rights_changed = asyncio.Event()

    def open(self, question: Question) -> Question:
        """Accept answers to the question from now on. Return the open one, if its id is open already."""
        return self.open_questions.setdefault(question.id, question)

    def close(self, name: str) -> None:
        """Accept no more answers to the question `name`, if it is open."""
        question = self.open_questions.pop(name, None)
        if question is not None:
            self._closed[question.id] = _Closed(question.scope, question.message.address, question.decision)

    def close_all(self, turn: str) -> None:
        """Accept no more answers to the questions of `turn`, which has ended."""
        for question in [each for each in self.open_questions.values() if each.turn == turn]:
            self.close(question.id)

    def in_chat(self, scope: str, chat: Address) -> Iterator[Question]:
        """Return the open questions of the scope, and those of other channels that are asked in this chat."""
        return (
            question
            for question in self.open_questions.values()
            if question.scope == scope or (question.is_elsewhere and question.message.address == chat)
        )

    def find(self, scope: str, chat: Address, name: str, session: str | None) -> Question:
        """Return the open question `name` of the chat. Without a name: that of the session, or the only one."""
        here = {question.id: question for question in self.in_chat(scope, chat)}
        if name and name not in here:
            closed = self._closed.get(name)
            is_here = closed is not None and (closed.scope == scope or closed.chat == chat)
            raise Refused(_CLOSED[closed.decision] if is_here and closed and closed.decision else _NOT_OPEN)
        if name:
            return here[name]
        of_session = [question for question in here.values() if question.session == session]
        candidates = of_session or list(here.values())
        if not candidates:
            raise Refused("There is no open question here.")
        if len(candidates) > 1:
            raise Refused("Several questions are open here. Use the buttons of the one you mean.")
        return candidates[0]

    def find_in_chat(self, inbound: Inbound, session: str, *, is_owner: bool) -> Question | None:
        """Return the question that a plain yes or no answers: the open one of the session, asked in the same chat."""
        for question in self.open_questions.values():
            if question.session == session and question.message.address == inbound.address:
                return question if self.may_answer(question, inbound, is_owner=is_owner) else None
        return None

    def may_answer(self, question: Question, inbound: Inbound, *, is_owner: bool) -> bool:
        """Return whether a person may answer: an owner, one whose role has the right for the chat, or the asker.

        The asker may do so from any linked account, unless their role has no right to it. A question that is asked
        elsewhere is not for the asker: an id there may belong to another person.
        """
        right = role_in(self._live, inbound).settings.approve
        if is_owner or right is not ApprovalRight.OWN:
            return is_owner or right is ApprovalRight.CHAT
        one, other = (question.person.channel, question.person.sender), (inbound.address.channel, inbound.sender.id)
        return not question.is_elsewhere and are_same_person(self._live, one, other)

    async def settle(
        self, question: Question, decision: Decision, *, by: str = "", also: Sequence[Operation] = ()
    ) -> None:
        """Commit the decision together with `also`, and let the turn go on. `Refused` if there is a decision."""
        await finish_before_cancel(self._settle(question, decision, by, also))

    async def _settle(self, question: Question, decision: Decision, by: str, also: Sequence[Operation]) -> None:
        # The lock lets one answer commit at a time. The others find its decision.
        async with question.lock:
            if question.decision is not None:
                raise Refused(_CLOSED[question.decision])
            if question.id not in self.open_questions:
                raise Refused(_NOT_OPEN)
            entry = entries.Approval(
                turn=question.turn,
                approval_id=question.id,
                tool_use_id=question.call.id,
                decision=decision,
                by=by,
                files=question.asked.files,
            )
            await self._sessions.append(question.session, [entry], also=also)
            question.decision = decision
            question.decided.set()


_DENIED = "The person was asked and said no, so it was not run. Do not try it again unless you are asked to."
_CHANGED = (
    "{names} changed after the person was asked about this call, so it was not run. Make the call again if it is still "
    "right: the person will be asked about it as it is now."
)
_NO_ONE_TO_ASK = (
    "This needs the approval of a person, so it was not run. No one may approve it in the chat that gets the answer. "
    "Do not try it again."
)
_NOT_FOR_THEM = "By now, {tool} is not for the person who asks, so it was not run. Do not call it again."
_EXPIRED = "The person was asked and did not answer within {span}, so it was not run."


class ApprovalGate:
    """Asks a person before a tool runs. While it waits, the turn keeps its lane but frees its slot, and its time stops.

    The question, the state `waiting` and the message to the chat are one commit. From then on until a tool runs, the
    spool has the turn in that state, and no tool of the step has run.
    """

    def __init__(
        self,
        *,
        live: Live,
        approvals: Approvals,
        grants: GrantBook,
        recorder: TurnRecorder,
        delivery: Delivery,
        lanes: Lanes[Job],
    ) -> None:
        self._live = live
        self._grants = grants
        self._approvals = approvals
        self._recorder = recorder
        self._delivery = delivery
        self._lanes = lanes

    async def approve(
        self, state: TurnState, slot: TurnSlot, draft: DraftStream, context: ToolContext, call: ToolCall
    ) -> str | None:
        """Return None if `call` may run, or else the reason for the model.

        A question from before a restart is not asked again, and its decision counts.
        """
        known = state.approvals.get(call.id)
        try:
            files = await asyncio.to_thread(digest_named_files, context, call) if known is None else known.files
        except ToolFailed as failure:  # It names more files than can be checked.
            return str(failure)
        state.named_files[call.id] = files
        decision = await self.ask(state, slot, draft, call, workspace=str(context.workspace), files=files)
        match decision:
            case Decision.APPROVED:
                return None
            case Decision.DENIED:
                return _DENIED
            case Decision.EXPIRED:
                span = duration(timedelta(seconds=self._live.settings.gateway.approval_timeout))
                return self._find_obstacle(state, call) or _EXPIRED.format(span=span)
            case None:
                return _NO_ONE_TO_ASK

    async def ask(
        self,
        state: TurnState,
        slot: TurnSlot,
        draft: DraftStream,
        call: ToolCall,
        *,
        workspace: str,
        files: dict[str, str] | None = None,
        until: asyncio.Event | None = None,
    ) -> Decision | None:
        """Return the decision of a person about `call`, or that of a grant. None if no one can be asked.

        `files` are the digests of the files that the call names. The question expires early once `until` is set.
        """
        job, known = state.jobs[0], state.approvals.get(call.id)
        timeout = self._live.settings.gateway.approval_timeout
        agent = state.agent.name if state.agent is not None else ""
        may_always = self.may_always(state, call)
        if known is None and may_always:
            grant = self._grants.find(
                call,
                agent=agent,
                workspace=workspace,
                session=job.session,
                senders=[each.inbound for each in state.jobs],
                files=files or {},
            )
            if grant is not None:
                log.info("approval_granted", tool=call.name, grant=grant.id)
                return Decision.APPROVED
        if known is None and self._no_one_can_answer(job.inbound):
            log.warning("approval_impossible", tool=call.name)
            return None
        if known is not None and known.decision is not None:
            self._approvals.close(known.approval_id)
            return Decision(known.decision)
        sender = job.inbound.sender
        name = uuid4().hex[:12]
        text = question_text(
            call,
            timeout=timeout,
            agent=agent,
            asker="" if job.inbound.address.kind is PeerKind.DIRECT else sender.name or sender.id,
            is_for_others=self._cannot_answer(job.inbound),
            files=files or (),
            may_always=may_always,
            elsewhere=name if job.inbound.is_answered_elsewhere else "",
        )
        asked = known or entries.Approval(
            approval_id=name,
            tool_use_id=call.id,
            question=text,
            files=files,
            agent=agent,
            workspace=workspace,
            may_always=may_always,
        )
        question = Question.about(call, job, asked)
        state.asked = call.id
        if known is not None:
            question = self._approvals.open(question)
        try:
            if known is None:
                await finish_before_cancel(self._ask(state, question, asked))
            # Waiting may take hours. It must not keep others from their slots, count as the turn's time, or
            # hold up a shutdown.
            draft.is_paused = True
            async with slot.paused():
                with self._lanes.parked(job.session), open_span("approval wait"):
                    decision = await self._wait(state, question, timeout, until)
            draft.is_paused = False
        finally:
            self._approvals.close(question.id)
        return decision

    def _find_obstacle(self, state: TurnState, call: ToolCall) -> str | None:
        """Return why no answer can let `call` run, by the roles of now. None if one can."""
        if not roles_of_all(self._live, (job.inbound for job in state.jobs)).allows_tool(call.name):
            return _NOT_FOR_THEM.format(tool=call.name)
        return _NO_ONE_TO_ASK if self._no_one_can_answer(state.jobs[0].inbound) else None

    def _no_one_can_answer(self, inbound: Inbound) -> bool:
        """Return whether nobody may answer a question about a message in the chat that gets it."""
        if inbound.is_answered_elsewhere:
            return False
        is_direct = inbound.address.kind is PeerKind.DIRECT and inbound.address.channel not in PROGRAM_CHANNELS
        is_alone = is_direct and not is_shared(self._live, inbound.address, inbound.sender)
        return inbound.sender.is_verified or (is_alone and self._cannot_answer(inbound))

    def _cannot_answer(self, inbound: Inbound) -> bool:
        """Return whether the sender of a message may not answer a question about it."""
        return role_in(self._live, inbound).settings.approve is ApprovalRight.NONE

    def may_always(self, state: TurnState, call: ToolCall) -> bool:
        """Return whether the settings of the agent let people allow calls of this tool for good."""
        agent = self._live.settings.agents.get(state.agent.name) if state.agent is not None else None
        return agent is not None and any(fnmatchcase(call.name, pattern) for pattern in agent.always_allow)

    @asynccontextmanager
    async def verify(self, state: TurnState, context: ToolContext, call: ToolCall) -> AsyncIterator[str | None]:
        """Yield None if the files that an approved `call` names are as they were, or else the reason for the model.

        Until the call has ended, no other call in the workspace can change them.
        """
        before = state.named_files.get(call.id)
        if before is None:  # An older version asked, and did not look at them.
            yield None
            return
        lock = context.locks[context.workspace]
        async with lock.exclusive() if before else lock.shared():
            yield await self._find_change(context, call, before)

    async def _find_change(self, context: ToolContext, call: ToolCall, before: dict[str, str]) -> str | None:
        try:
            now = await asyncio.to_thread(digest_named_files, context, call)
        except ToolFailed as failure:
            return str(failure)
        changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
        if not changed:
            return None
        log.warning("approved_file_changed", tool=call.name, files=changed)
        return _CHANGED.format(names=", ".join(f"`{name}`" for name in changed))

    async def _ask(self, state: TurnState, question: Question, asked: entries.Approval) -> None:
        parts = self._delivery.compose(question.message, key=question.message_key, scope=question.scope)
        waits = [] if state.is_waiting else [SetInboxState(turn=question.turn, state=InboxState.WAITING)]
        # A turn that gets this far is not the one that crashes the daemon, so its attempts do not count.
        await self._recorder.write(state, [asked], also=[*waits, ResetAttempts(turn=question.turn), *parts])
        state.is_waiting = True
        # Opened before the message is sent: an answer may come as soon as it is in the chat.
        self._approvals.open(question)
        self._delivery.post(parts)
        log.info("approval_asked", tool=question.call.name, question=question.id)

    async def _wait(
        self,
        state: TurnState,
        question: Question,
        timeout: float,  # noqa: ASYNC109 - a setting, in seconds
        until: asyncio.Event | None,
    ) -> Decision:
        """Wait for the decision, by the event loop's clock. After a restart the time starts again.

        The question expires early if, by a change of roles, no answer can let the call run any more.
        """
        ends = [question.decided, *([until] if until is not None else [])]
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not any(end.is_set() for end in ends) and self._find_obstacle(state, question.call) is None:
                    await wait_for_any(self._approvals.rights_changed, *ends)
        if not question.decided.is_set():
            with suppress(Refused):  # A decision was committed at the last moment, or the session is gone.
                await finish_before_cancel(
                    retry_while_unavailable(partial(self._approvals.settle, question, Decision.EXPIRED))
                )
        decision = question.decision or Decision.EXPIRED
        log.info("approval_decided", tool=question.call.name, question=question.id, decision=decision)
        return decision
