"""Taking up what the last run has left: unanswered messages, unfinished turns and undelivered replies."""

from collections import defaultdict
from datetime import datetime, timedelta
from uuid import uuid4

import msgspec
import structlog

from config import Settings
from gateway.approvals import Approvals, Question
from gateway.commands import RESTARTED_BY
from gateway.contract import Address, Outbound
from gateway.delivery import Delivery
from gateway.errors import Refused
from gateway.jobs import Job
from gateway.lanes import Lanes
from gateway.metrics.tally import Tally
from gateway.sessions import Entry, SessionManager, TurnOutcome, entries, step_at_hand
from gateway.spool import Found, InboxRow, InboxState, Remember, Settle, Spool

__all__ = ["TOO_OLD", "take_up"]

log = structlog.get_logger()

MAX_ATTEMPTS = 3

BACK = "I am back."
TOO_OLD = "Gatehouse was away for too long to answer this any more. Please send it again if it still matters."
CRASHED = (
    "Gatehouse stopped unexpectedly {times} times while it worked on this, so it was set aside. Please ask differently."
)


async def take_up(
    spool: Spool,
    sessions: SessionManager,
    lanes: Lanes[Job],
    delivery: Delivery,
    approvals: Approvals,
    settings: Settings,
    now: datetime,
) -> None:
    """Put everything back where it was, before intake opens. What is given up is told to its sender, once."""
    found = await spool.recover()
    delivery.remember_drafts(found.drafts)
    for reply in found.outbox:
        delivery.take_up(reply)
    if RESTARTED_BY in found.facts:
        await _greet(spool, delivery, found.facts[RESTARTED_BY])
    collected = _collected(found)
    oldest = now - timedelta(seconds=settings.gateway.max_backlog_age)
    given_up = 0
    for row in found.inbox:
        if row.answered_by is not None:
            continue
        rows = [row, *collected[row.turn]]
        if row.attempts >= MAX_ATTEMPTS:
            sentence = CRASHED.format(times=row.attempts)
            given_up += await _give_up(spool, sessions, delivery, rows, InboxState.DEAD, sentence, now)
            _count(rows, InboxState.DEAD, delivery.tally)
        elif row.state is InboxState.RECEIVED and row.accepted_at < oldest:
            given_up += await _give_up(spool, sessions, delivery, rows, InboxState.ABANDONED, TOO_OLD, now)
            _count(rows, InboxState.ABANDONED, delivery.tally)
        else:
            job = Job.found(row, rows[1:])
            if job.is_waiting:
                await _ask_again(sessions, approvals, job)
            lanes.put(row.session, job)
    _tell(found, given_up)


def _count(rows: list[InboxRow], state: InboxState, tally: Tally) -> None:
    for row in rows:
        tally.given_up(row.inbound.address.channel, state)


async def _ask_again(sessions: SessionManager, approvals: Approvals, job: Job) -> None:
    """Open the question that a turn waits with, before its answer can come in. It was asked, so nothing is said."""
    try:
        session = await sessions.load(job.session)
    except Refused:  # Its turn finds that out as well, and ends.
        return
    calls, asked = step_at_hand(session.entries, job.turn)
    for call, approval in asked.items():
        if approval.decision is None and call in calls:
            approvals.open(Question.about(calls[call], job, id=approval.approval_id, text=approval.question))


async def _greet(spool: Spool, delivery: Delivery, restarted_by: str) -> None:
    """Tell the chat that asked for the restart that we are back, once."""
    address = msgspec.json.decode(restarted_by, type=Address)
    parts = delivery.compose(Outbound(address=address, text=BACK), key=f"notice-{uuid4().hex}")
    await spool.commit(Remember(name=RESTARTED_BY, value=None), *parts)
    delivery.post(parts)


def _collected(found: Found) -> dict[str, list[InboxRow]]:
    """Group the messages that another's turn was answering."""
    collected: dict[str, list[InboxRow]] = defaultdict(list)
    for row in found.inbox:
        if row.answered_by is not None:
            collected[row.answered_by].append(row)
    return collected


async def _give_up(
    spool: Spool,
    sessions: SessionManager,
    delivery: Delivery,
    rows: list[InboxRow],
    state: InboxState,
    sentence: str,
    now: datetime,
) -> int:
    """End a turn that will not be run again; its sender is told where its answer would have stood."""
    first, newest = rows[0], rows[-1]
    notice = Outbound(
        address=newest.inbound.address,
        text=sentence,
        reply_to=newest.inbound.message_id,
        session=first.number,
        is_failure=True,
    )
    parts = delivery.compose(notice, key=first.turn, turn=first.turn)
    settled = [
        Settle(turn=row.turn, state=state, answered_by=first.turn, note=f"{sentence} ({now:%F})") for row in rows
    ]
    end: list[Entry] = []
    if first.state is not InboxState.RECEIVED:  # Its turn has begun, so its transcript says how it ended.
        end.append(entries.Assistant(content=f"*{sentence}*", turn=first.turn))
        end.append(entries.TurnEnd(outcome=TurnOutcome.FAILED, turn=first.turn))
    try:
        await sessions.append(first.session, end, also=[*settled, *parts])
    except Refused:  # Its session is gone; its sender is told all the same.
        await spool.commit(*settled, *parts)
    delivery.post(parts)
    return len(rows)


def _tell(found: Found, given_up: int) -> None:
    if found.set_aside is not None:
        log.error("spool_set_aside", file=str(found.set_aside))
    if found.unreadable:
        log.error("spool_rows_unreadable", count=len(found.unreadable))
    if found.inbox or found.outbox:
        log.info("work_taken_up", messages=len(found.inbox), replies=len(found.outbox), given_up=given_up)
