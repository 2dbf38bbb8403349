"""Recovery after a start: unanswered messages, unfinished turns and undelivered replies of the last run."""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TypeVar
from uuid import uuid4

import msgspec
import structlog
from msgspec.structs import replace

from config.types import API_CHANNEL
from gateway.commands.command import CommandKind
from gateway.commands.info import RESTARTED_BY
from gateway.commands.parser import ParsedCommand, parse_message
from gateway.commands.registry import RETRY
from gateway.contract import Address, Outbound
from gateway.errors import Refused, SessionDamaged
from gateway.job import Job
from gateway.lanes import Lanes
from gateway.metrics import Metrics
from gateway.outbound.delivery import Delivery
from gateway.outbound.reactions import WaitingReactions
from gateway.placement import Placement
from gateway.schedules import RunOutcomes
from gateway.sessions import Entry, SessionManager, SessionStatus, TurnOutcome, entries, open_tool_calls
from gateway.sessions.keys import session_key
from gateway.sessions.session import NewSession
from gateway.spool import InboxRow, InboxState, MoveToSession, Operation, SetInboxState, Spool, TakeFact, WrongState
from gateway.spool.deletion import SESSION_DELETED
from gateway.spool.spool import retry_while_unavailable
from gateway.tracing import Tracer
from gateway.turns.approvals import Approvals
from gateway.turns.question import Question

log = structlog.get_logger()

_T = TypeVar("_T")

MAX_ATTEMPTS = 3

BACK = "I'm back."
TOO_OLD = "I was offline too long to answer this. Please resend it if it's still relevant."
CANCELLED = "The session was cancelled before this was answered."
CRASHED = "I crashed {times} times while working on this, so I gave up. Please try asking in a different way."


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkRecovery:
    """Puts the work of the last run back into the lanes, before intake opens."""

    spool: Spool
    sessions: SessionManager
    lanes: Lanes[Job]
    readings: Lanes[Job]
    delivery: Delivery
    approvals: Approvals
    placement: Placement
    reactions: WaitingReactions
    metrics: Metrics
    run_outcomes: RunOutcomes
    tracer: Tracer | None
    max_age: timedelta
    """Messages that have waited for longer are not answered."""
    now: datetime

    async def run(self, shards: Sequence[int] | None = None) -> None:
        """Recover everything, or the work of the shards that this node of a cluster has just taken.

        There, a turn whose session needs a label that this node lacks waits for another node.
        """
        found = await self._finish(partial(self.spool.recover, shards))
        # Drafts before replies: a reply replaces the draft that its turn has left in the chat.
        self.delivery.restore_drafts(found.drafts)
        for reply in found.outbox:
            self.delivery.recover(reply)
        facts = await self._finish(partial(self.spool.facts, RESTARTED_BY))
        if (restarted_by := facts.get(RESTARTED_BY)) is not None:
            # Tell the chat that asked for the restart, once.
            try:
                back = Outbound(address=msgspec.json.decode(restarted_by, type=Address), text=BACK)
                parts = self.delivery.compose(back, key=f"notice-{uuid4().hex}")
            except msgspec.DecodeError:  # Written by a newer version.
                parts = []
            with suppress(WrongState):  # Another node of the cluster has told it.
                await self._finish(partial(self.spool.commit, TakeFact(name=RESTARTED_BY), *parts))
                self.delivery.post(parts)
        abandoned = await self._recover_turns(found.inbox)
        if found.damaged_file is not None:
            log.error("spool_set_aside", file=str(found.damaged_file))
        if found.unreadable:
            log.error("spool_rows_unreadable", count=len(found.unreadable))
        if found.inbox or found.outbox:
            log.info("work_recovered", messages=len(found.inbox), replies=len(found.outbox), abandoned=abandoned)

    async def run_turns(self, turns: Collection[str], shards: Sequence[int]) -> None:
        """Recover turns that have waited for another node. They are in these shards."""
        found = await self._finish(partial(self.spool.unanswered, shards))
        await self._recover_turns([row for row in found if row.turn in turns or row.answered_by in turns])

    async def _finish(self, step: Callable[[], Awaitable[_T]]) -> _T:
        """Do a step of the recovery. A node of a cluster repeats it while the database is away.

        The steps before it are done: what they have put into lanes must not get there twice.
        """
        return await (step() if self.spool.shards is None else retry_while_unavailable(step))

    async def _recover_turns(self, inbox: Sequence[InboxRow]) -> int:
        """Queue unanswered messages again, or abandon them. Returns how many were abandoned."""
        # Messages that are answered by the turn of another message go back into that turn.
        collected: dict[str, list[InboxRow]] = defaultdict(list)
        for row in inbox:
            if row.answered_by is not None:
                collected[row.answered_by].append(row)
        turns = {row.turn for row in inbox}
        abandoned = 0
        for row in inbox:
            if row.answered_by is None and self._waits_for_node(row):
                continue
            if row.answered_by is None:
                abandoned += await self._finish(partial(self._recover_turn, [row, *collected[row.turn]]))
            elif row.answered_by not in turns:  # The row of the turn that should answer it is unreadable.
                alone = replace(row, state=InboxState.RECEIVED)
                abandoned += await self._finish(partial(self._recover_turn, [alone]))
        return abandoned

    def _waits_for_node(self, row: InboxRow) -> bool:
        """Return whether a turn waits for a node with a label. `Placement` remembers it then."""
        session = self.sessions.find(row.session)
        needed = self.placement.needed(row.agent) if session is None else self.placement.needed_by(session)
        if not needed or not self.placement.must_wait(row.scope, needed):
            return False
        self.placement.waiting_turns[row.turn] = (row.scope, needed)
        return True

    async def _recover_turn(self, rows: list[InboxRow]) -> int:
        """Queue the messages of one turn again, or abandon them. Returns how many were abandoned."""
        first = rows[0]
        if first.state is InboxState.RECEIVED:
            self.reactions.restore(first.turn, first.inbound)
        # Each start of a turn counts as an attempt, and an orderly shutdown takes it back. So this turn has crashed.
        if first.attempts >= MAX_ATTEMPTS:
            return await self._abandon(rows, InboxState.DEAD, CRASHED.format(times=first.attempts))
        if first.state is InboxState.RECEIVED and first.accepted_at < self.now - self.max_age:
            return await self._abandon(rows, InboxState.ABANDONED, TOO_OLD)
        if first.note == SESSION_DELETED:  # Its text is erased.
            return await self._abandon(rows, InboxState.ABANDONED, SESSION_DELETED)
        # The inbox keeps the message, not the parsed command.
        parsed = parse_message(first.inbound)
        if isinstance(parsed, ParsedCommand):
            job = Job.from_row(first, rows[1:], command=parsed.command.name, argument=parsed.argument)
        else:
            job = Job.from_row(first, rows[1:])
        if job.command is None and await self._is_session_lost(job):
            await self._move(rows)
            return 0
        if first.state is not InboxState.RECEIVED and await self._was_cancelled(job):
            return await self._abandon(rows, InboxState.ABANDONED, CANCELLED, outcome=TurnOutcome.STOPPED)
        if job.is_waiting:
            await self._reopen_questions(job)
        if isinstance(parsed, ParsedCommand) and parsed.command.kind is CommandKind.READING:
            self.readings.put(job.scope, job)
        else:
            self.lanes.put(job.session, job)
        return 0

    async def _is_session_lost(self, job: Job) -> bool:
        if self.sessions.find(job.session) is None:
            return True
        try:
            await self.sessions.load_meta(job.session)
        except SessionDamaged:
            return True
        except Refused:  # It may be readable when the turn starts.
            pass
        return False

    async def _was_cancelled(self, job: Job) -> bool:
        """Return whether the session was cancelled during this turn, and the gateway died before it could stop that."""
        try:
            session = await self.sessions.load(job.session)
        except Refused:
            return False
        began = next((entry.seq for entry in session.entries if entry.turn == job.turn), None)
        return began is not None and any(
            isinstance(entry, entries.Status) and entry.value is SessionStatus.CANCELLED and entry.seq > began
            for entry in session.entries
        )

    async def _move(self, rows: list[InboxRow]) -> None:
        """Queue the messages of one turn in another session, because theirs cannot be read. The turn starts again."""
        scope, lost = rows[0].scope, rows[0].number
        active = self.sessions.open_session(scope)
        number = self.sessions.next_number(scope) if active is None else active.number
        key = session_key(scope, number)
        moves = [MoveToSession(turn=row.turn, session=key, number=number) for row in rows]
        if active is None:
            await self.sessions.start_new(
                scope,
                agent=rows[0].agent,
                origin=rows[0].inbound.address,
                notice=f"Session {lost} can't be read any more, so this is session {number}.",
                new=NewSession(created_by=rows[0].inbound.sender.token),
                is_busy=self.lanes.is_busy,
                also=moves,
            )
        else:
            await self.spool.commit(*moves, scope=scope)
        log.warning("messages_moved", count=len(rows), session=key)
        for row in rows:
            moved = replace(row, session=key, number=number, state=InboxState.RECEIVED, answered_by=None)
            await self._finish(partial(self._recover_turn, [moved]))

    async def _reopen_questions(self, job: Job) -> None:
        """Open the questions that a turn waits for, before an answer can come in. They are not asked again."""
        try:
            session = await self.sessions.load(job.session)
        except Refused:  # The session is gone. The turn finds that out too, and ends.
            return
        calls, asked = open_tool_calls(session.entries, job.turn)
        for call, approval in asked.items():
            if approval.decision is None and call in calls:
                self.approvals.open(Question.about(calls[call], job, approval))

    async def _abandon(
        self, rows: list[InboxRow], state: InboxState, text: str, *, outcome: TurnOutcome = TurnOutcome.FAILED
    ) -> int:
        """End a turn that will not run again, and tell its senders."""
        first = rows[0]
        newest_of_chat = {row.inbound.answer_address or row.inbound.address: row.inbound for row in rows}
        notices = [
            replace(inbound.reply(text, session=first.number), is_failure=True) for inbound in newest_of_chat.values()
        ]
        if first.inbound.scheduled is not None:  # `RunOutcomes` tells once that a schedule fails.
            notices = []
        parts = self.delivery.compose_all(notices, turn=first.turn, scope=first.scope)
        ended_runs: list[Operation] = []
        if first.inbound.scheduled is not None:
            how = TurnOutcome.FAILED if state is InboxState.DEAD else TurnOutcome.STOPPED
            ended_runs, parts = await self.run_outcomes.end_runs([first.inbound], how, text)
        note = f"{text} ({self.now:%F})"
        settled: list[Operation] = [
            *(SetInboxState(turn=row.turn, state=state, answered_by=first.turn, note=note) for row in rows),
            *ended_runs,
        ]
        # A turn that has started gets an end in the transcript. Commands have no turn there, except /retry.
        parsed = parse_message(first.inbound)
        is_turn = not isinstance(parsed, ParsedCommand) or parsed.command is RETRY
        end: list[Entry] = []
        if is_turn and first.state is not InboxState.RECEIVED:
            end = [
                entries.System(content=text, is_failure=True, about=first.inbound.event_id, turn=first.turn),
                entries.TurnEnd(outcome=outcome, turn=first.turn),
            ]
        session = self.sessions.find(first.session)
        is_open = session is not None and session.channel == API_CHANNEL and session.status is SessionStatus.ACTIVE
        if state is InboxState.DEAD and is_open:
            end.append(entries.Status(value=SessionStatus.ERROR, by="gateway", why="turn_crashed"))
        try:
            await self.sessions.append(first.session, end, also=[*settled, *parts])
        except Refused:  # The session is gone. The senders are told anyway.
            await self.spool.commit(*settled, *parts, scope=first.scope)
        self.delivery.post(parts)
        for row in rows:
            if self.tracer is not None:
                is_failure = outcome is TurnOutcome.FAILED
                self.tracer.message_ended(Job.from_row(row), state, is_failure=is_failure)
            self.reactions.remove(row.turn)
            self.metrics.message_abandoned(row.inbound.address.channel, state)
        return len(rows)
