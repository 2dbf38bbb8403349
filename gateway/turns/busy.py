"""Meanwhile: what has come into a session's lane while a turn has it, and what the busy modes make of that."""

from contextlib import AbstractContextManager

from config import BusyMode
from gateway.access.live import Live
from gateway.access.rules import may_talk
from gateway.job import Job
from gateway.lanes import Lanes
from gateway.outbound.reactions import WaitingReactions

__all__ = ["BusyPolicy"]


class BusyPolicy:
    """Order is kept: what stands behind a command, or behind a message that waits for its own turn, waits as well."""

    def __init__(self, live: Live, lanes: Lanes[Job], signs: WaitingReactions) -> None:
        self._live = live
        self._lanes = lanes
        self._signs = signs

    def begun(self, job: Job) -> None:
        """Take off the sign that the message waits: its turn has its place, or has ended without one."""
        self._signs.over(job.turn)

    def answered(self, job: Job) -> None:
        """Leave the lane to whoever comes next: nothing of the turn is missing in the spool and the transcript."""
        self._lanes.detach(job.session)

    def collected(self, job: Job) -> list[Job]:
        """Take out what the turn of `job`, which begins now, is to answer as well."""
        if self._mode(job) is not BusyMode.COLLECT:
            return []
        return self._lanes.take_waiting(job.session, until=self._stands_alone)

    def steering(self, session: str) -> list[Job]:
        """Take out what the turn that runs is to hear between two of its steps."""
        return self._lanes.take_waiting(session, until=self._cannot_steer)

    def following(self, job: Job) -> Job | None:
        """Take out the message that begins where the turn of `job` ends, if it is one that needs nothing else."""
        return self._lanes.take_next(job.session, self._can_follow)

    def parked(self, session: str) -> AbstractContextManager[None]:
        """While inside, the turn of `session` waits for a person: it keeps its lane, but holds up nobody else."""
        return self._lanes.parked(session)

    def _cannot_steer(self, job: Job) -> bool:
        return self._stands_alone(job) or self._mode(job) is not BusyMode.STEER

    def _stands_alone(self, job: Job) -> bool:
        """Tell what no other turn answers: a command, and a message of somebody who was shut out since."""
        said = job.inbound
        return job.command is not None or not may_talk(self._live, said.address, said.sender, said.guild)

    def _can_follow(self, job: Job) -> bool:
        is_plain = not job.inbound.attachments and job.command is None
        return is_plain and not job.is_resumed and self._mode(job) is BusyMode.FOLLOWUP

    def _mode(self, job: Job) -> BusyMode:
        channel = self._live.settings.channels.get(job.inbound.address.channel)
        return BusyMode.FOLLOWUP if channel is None else channel.busy  # It may have left the settings since.
