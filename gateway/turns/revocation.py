"""Revocation: stops the work of people who have lost access, or whose role no longer allows it."""

import structlog

from gateway.access.rules import ACCESS_LOST, Live, has_access
from gateway.job import Job
from gateway.lanes import Lanes
from gateway.turns.approvals import Approvals
from gateway.turns.runner import TurnRunner

log = structlog.get_logger()


class Revocation:
    """Call `enforce` whenever people may have lost access or have another role: after a change of either, or a reload.

    It stops what runs for them. The rest follows from checks where the work continues: a waiting message is abandoned
    when it comes to the head of its lane, a reminder ends when it is due, and `Delivery` withdraws what is not sent.
    """

    def __init__(
        self, live: Live, lanes: Lanes[Job], readings: Lanes[Job], turns: TurnRunner, approvals: Approvals
    ) -> None:
        self._live = live
        self._approvals = approvals
        self._lanes = lanes
        self._readings = readings
        self._turns = turns

    def enforce(self) -> None:
        """Stop every running turn and command of a person without the right to it. Other people's go on."""
        stopped = 0
        for session, job in self._lanes.current():
            if self._turns.has_lost_access(job):
                stopped += self._lanes.stop(session, ACCESS_LOST)
            elif reason := self._turns.find_refusal(job):
                stopped += self._lanes.stop(session, reason)
        for scope, job in self._readings.current():
            if not has_access(self._live, job.inbound):
                stopped += self._readings.stop(scope, ACCESS_LOST)
        self._approvals.recheck()
        if stopped:
            log.info("work_stopped", count=stopped, reason="access was lost, or a role has changed")
