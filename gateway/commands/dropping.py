"""Dropping messages that wait: each ends abandoned, and whoever sent it from elsewhere is told there."""

from gateway.commands.command import Answer
from gateway.contract import Inbound, Outbound
from gateway.job import Job
from gateway.lanes import Lanes
from gateway.spool import InboxState, Settle
from gateway.text.clean import count

__all__ = ["Dropped"]


class Dropped:
    """Messages taken out of the lanes in which they waited; where their end cannot be stored, they wait again."""

    def __init__(self, *places: tuple[Lanes[Job], str]) -> None:
        self._taken = [(lanes, key, lanes.take_waiting(key)) for lanes, key in places]
        self._jobs = [job for _, _, jobs in self._taken for job in jobs]

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def put_back(self) -> None:
        for lanes, key, jobs in self._taken:
            lanes.put_back(key, jobs)

    def told(self, sentence: str, *, asked: Inbound, why: str) -> Answer:
        """Answer with a sentence, and with how many were dropped; those from other chats than this are told there."""
        also = f" {count(len(self._jobs), 'waiting message')} dropped." if self._jobs else ""
        settled = [Settle(turn=job.turn, state=InboxState.ABANDONED, note=why) for job in self._jobs]
        elsewhere = [job for job in self._jobs if job.inbound.address != asked.address]
        return Answer(
            text=f"{sentence}{also}",
            also=tuple(settled),
            notices=tuple(_notice(job, why) for job in elsewhere),
            otherwise=self.put_back,
        )


def _notice(job: Job, why: str) -> Outbound:
    return Outbound(
        address=job.inbound.address,
        text=f"This was not answered: {why}. Send it again if it still matters.",
        reply_to=job.inbound.message_id,
        session=job.number,
        is_failure=True,
    )
