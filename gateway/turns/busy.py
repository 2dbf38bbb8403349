"""Busy policy: what happens to messages that arrive while a turn of their session is running."""

from collections.abc import Callable

from config import BusyMode
from gateway.access.rules import Live, may_talk
from gateway.job import Job
from gateway.lanes import Lanes


class BusyPolicy:
    """Takes waiting messages out of their lane, always from its head: no message overtakes another.

    Commands, messages of schedules, and messages whose sender has lost access or may not join the turn stay where they
    are with all that waits behind them. They are handled when they come to the head of the lane. The turn of a schedule
    takes none.
    """

    def __init__(self, live: Live, lanes: Lanes[Job]) -> None:
        self._live = live
        self._lanes = lanes

    def take_collected(self, job: Job, may_join: Callable[[Job], bool] = lambda _: True) -> list[Job]:
        """Take the messages that the turn of `job`, which begins now, answers as well (mode `collect`)."""
        if self._mode(job) is not BusyMode.COLLECT or job.inbound.scheduled is not None:
            return []
        return self._lanes.take_waiting(
            job.session, until=lambda other: not self._can_join(other) or not may_join(other)
        )

    def take_steering(self, session: str, may_join: Callable[[Job], bool] = lambda _: True) -> list[Job]:
        """Take the messages that the running turn reads between two of its steps (mode `steer`)."""
        return self._lanes.take_waiting(
            session,
            until=lambda job: not self._can_join(job) or self._mode(job) is not BusyMode.STEER or not may_join(job),
        )

    def take_following(self, session: str) -> Job | None:
        """Take the message whose turn can begin in the commit that ends the current one (mode `followup`).

        Files would have to be downloaded first, and a resumed message may have begun before: those go the usual way.
        """
        return self._lanes.take_next(
            session,
            lambda job: (
                not job.inbound.attachments
                and not job.is_resumed
                and self._can_join(job)
                and self._mode(job) is BusyMode.FOLLOWUP
            ),
        )

    def _can_join(self, job: Job) -> bool:
        inbound = job.inbound
        is_of_person = job.command is None and inbound.scheduled is None
        return is_of_person and may_talk(self._live, inbound.address, inbound.sender, inbound.guild)

    def _mode(self, job: Job) -> BusyMode:
        # The channel may have been removed from the settings while the message waited.
        channel = self._live.settings.channels.get(job.inbound.address.channel)
        return BusyMode.FOLLOWUP if channel is None else channel.busy
