"""Taking up what the last run has left: unanswered messages, unfinished turns and undelivered replies."""

from collections import defaultdict
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import uuid4

import msgspec
import structlog

from gateway.commands import COMMANDS, RESTARTED_BY, RETRY, Asked, Kind, read
from gateway.contract import Address, Outbound
from gateway.errors import Refused
from gateway.job import Job
from gateway.lanes import Lanes
from gateway.outbound.delivery import Delivery
from gateway.outbound.reactions import WaitingReactions
from gateway.sessions import Entry, SessionManager, TurnOutcome, entries, open_tool_calls
from gateway.spool import InboxRow, InboxState, RecoveredWork, SetFact, SetInboxState, Spool
from gateway.turns.approvals import Approvals, Question

__all__ = ["TOO_OLD", "TakingUp"]

log = structlog.get_logger()

MAX_ATTEMPTS = 3

BACK = "I am back."
TOO_OLD = "Gatehouse was away for too long to answer this any more. Please send it again if it still matters."
CRASHED = (
    "Gatehouse stopped unexpectedly {times} times while it worked on this, so it was set aside. Please ask differently."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TakingUp:
    spool: Spool
    sessions: SessionManager
    lanes: Lanes[Job]
    readings: Lanes[Job]
    delivery: Delivery
    approvals: Approvals
    signs: WaitingReactions
    max_age: timedelta
    """How long a message may have waited."""
    now: datetime

    async def run(self) -> None:
        """Put everything back where it was, before intake opens. What is given up is told to its sender, once."""
        found = await self.spool.recover()
        self.delivery.restore_drafts(found.drafts)
        for reply in found.outbox:
            self.delivery.recover(reply)
        if RESTARTED_BY in found.facts:
            await self._greet(found.facts[RESTARTED_BY])
        collected = _collected(found)
        turns = {row.turn for row in found.inbox}
        given_up = 0
        for row in found.inbox:
            if row.answered_by is None:
                given_up += await self._take_up([row, *collected[row.turn]])
            elif row.answered_by not in turns:  # What was to answer it cannot be read any more.
                given_up += await self._take_up([replace(row, state=InboxState.RECEIVED)])
        _tell(found, given_up)

    async def _greet(self, restarted_by: str) -> None:
        """Tell the chat that asked for the restart that we are back, once."""
        address = msgspec.json.decode(restarted_by, type=Address)
        parts = self.delivery.compose(Outbound(address=address, text=BACK), key=f"notice-{uuid4().hex}")
        await self.spool.commit(SetFact(name=RESTARTED_BY, value=None), *parts)
        self.delivery.post(parts)

    async def _take_up(self, rows: list[InboxRow]) -> int:
        """Let the messages of one turn be answered, or give them up; return how many of them were."""
        first = rows[0]
        if first.state is InboxState.RECEIVED:
            self.signs.restore(first.turn, first.inbound)
        if first.attempts >= MAX_ATTEMPTS:
            return await self._give_up(rows, InboxState.DEAD, CRASHED.format(times=first.attempts))
        if first.state is InboxState.RECEIVED and first.accepted_at < self.now - self.max_age:
            return await self._give_up(rows, InboxState.ABANDONED, TOO_OLD)
        asked = read(first.inbound.text, COMMANDS)
        if isinstance(asked, Asked):
            job = Job.found(first, rows[1:], command=asked.command.name, argument=asked.argument)
        else:
            job = Job.found(first, rows[1:])
        if job.is_waiting:
            await self._ask_again(job)
        if isinstance(asked, Asked) and asked.command.kind is Kind.READING:
            self.readings.put(job.scope, job)
        else:
            self.lanes.put(job.session, job)
        return 0

    async def _ask_again(self, job: Job) -> None:
        """Open the question that a turn waits with, before its answer can come in. It was asked, so nothing is said."""
        try:
            session = await self.sessions.load(job.session)
        except Refused:  # Its turn finds that out as well, and ends.
            return
        calls, asked = open_tool_calls(session.entries, job.turn)
        for call, approval in asked.items():
            if approval.decision is None and call in calls:
                self.approvals.open(Question.about(calls[call], job, id=approval.approval_id, text=approval.question))

    async def _give_up(self, rows: list[InboxRow], state: InboxState, sentence: str) -> int:
        """End a turn that will not be run again; its sender is told where its answer would have stood."""
        first = rows[0]
        parts = self.delivery.compose_all(_notices(rows, sentence), turn=first.turn)
        note = f"{sentence} ({self.now:%F})"
        settled = [SetInboxState(turn=row.turn, state=state, answered_by=first.turn, note=note) for row in rows]
        try:
            await self.sessions.append(first.session, _end(first, sentence), also=[*settled, *parts])
        except Refused:  # Its session is gone; its sender is told all the same.
            await self.spool.commit(*settled, *parts)
        self.delivery.post(parts)
        for row in rows:
            self.signs.remove(row.turn)
            self.delivery.metrics.message_abandoned(row.inbound.address.channel, state)
        return len(rows)


def _collected(found: RecoveredWork) -> dict[str, list[InboxRow]]:
    """Group the messages that another's turn was answering."""
    collected: dict[str, list[InboxRow]] = defaultdict(list)
    for row in found.inbox:
        if row.answered_by is not None:
            collected[row.answered_by].append(row)
    return collected


def _notices(rows: list[InboxRow], sentence: str) -> list[Outbound]:
    """Answer the newest message of each chat, as the turn itself would have."""
    newest = {row.inbound.address: row.inbound for row in rows}
    return [
        Outbound(
            address=inbound.address,
            text=sentence,
            reply_to=inbound.message_id,
            session=rows[0].number,
            is_failure=True,
        )
        for inbound in newest.values()
    ]


def _end(row: InboxRow, sentence: str) -> list[Entry]:
    """Say in the transcript how a turn has ended, if it has begun; most commands are not in there."""
    asked = read(row.inbound.text, COMMANDS)
    is_turn = not isinstance(asked, Asked) or asked.command is RETRY
    if row.state is InboxState.RECEIVED or not is_turn:
        return []
    return [
        entries.Assistant(content=f"*{sentence}*", turn=row.turn),
        entries.TurnEnd(outcome=TurnOutcome.FAILED, turn=row.turn),
    ]


def _tell(found: RecoveredWork, given_up: int) -> None:
    if found.damaged_file is not None:
        log.error("spool_set_aside", file=str(found.damaged_file))
    if found.unreadable:
        log.error("spool_rows_unreadable", count=len(found.unreadable))
    if found.inbox or found.outbox:
        log.info("work_taken_up", messages=len(found.inbox), replies=len(found.outbox), given_up=given_up)
