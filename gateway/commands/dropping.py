"""Dropping messages that wait: each ends abandoned, and whoever sent it from elsewhere is told there."""

from collections.abc import Sequence
from dataclasses import replace

from gateway.commands.command import Answer
from gateway.contract import Inbound, Outbound
from gateway.jobs import Job
from gateway.spool import InboxState, Settle

__all__ = ["dropping"]


def dropping(answer: Answer, jobs: Sequence[Job], *, asked: Inbound, why: str) -> Answer:
    """Add to an answer that `jobs` are dropped. The answer itself tells of those in the chat of `asked`."""
    settled = [Settle(turn=job.turn, state=InboxState.ABANDONED, note=why) for job in jobs]
    elsewhere = [job for job in jobs if job.inbound.address != asked.address]
    notices = [
        Outbound(
            address=job.inbound.address,
            text=f"This was not answered: {why}. Send it again if it still matters.",
            reply_to=job.inbound.message_id,
            session=job.number,
            is_failure=True,
        )
        for job in elsewhere
    ]
    return replace(answer, also=(*answer.also, *settled), notices=(*answer.notices, *notices))
