"""Lanes: the turns of a session run one at a time and in order; sessions run side by side."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime

from gateway.contract import Inbound
from gateway.errors import Refused

__all__ = ["Job", "Lanes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One accepted message, bound to the session it will be answered in."""

    inbound: Inbound
    agent: str
    scope: str
    session: str
    number: int
    turn: str
    accepted_at: datetime


@dataclass(slots=True)
class _Lane:
    waiting: deque[Job]
    running: asyncio.Task[None] | None = None
    is_stopping: bool = False


class Lanes:
    """`run` is called with one job at a time per session. It must not raise, and must let itself be cancelled."""

    def __init__(self, run: Callable[[Job], Coroutine[None, None, None]], *, max_waiting: int) -> None:
        self._run = run
        self._max_waiting = max_waiting
        self._lanes: dict[str, _Lane] = {}
        self._group: asyncio.TaskGroup | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    def open(self, group: asyncio.TaskGroup) -> None:
        """Start lanes as tasks of `group` from now on."""
        self._group = group

    @property
    def running(self) -> int:
        return sum(lane.running is not None for lane in self._lanes.values())

    @property
    def waiting(self) -> int:
        return sum(len(lane.waiting) for lane in self._lanes.values())

    def put(self, job: Job) -> None:
        """Queue `job` behind the others of its session; `Refused` when too many are waiting there."""
        lane = self._lanes.get(job.session)
        if lane is None:
            lane = self._lanes[job.session] = _Lane(deque([job]))
            self._idle.clear()
            assert self._group is not None, "lanes are opened before intake is"  # noqa: S101 - a promise to mypy and the reader
            self._group.create_task(self._work(job.session, lane), name=f"lane:{job.session}")
        elif len(lane.waiting) >= self._max_waiting:
            raise Refused(
                f"{len(lane.waiting)} messages are already waiting for an answer here. "
                "Wait for some of them, or send /stop to drop them.",
            )
        else:
            lane.waiting.append(job)

    def stop(self, session: str, reason: str = "") -> tuple[bool, list[Job]]:
        """Cancel what runs in `session` and empty its queue; tell whether a turn ran, and what was dropped.

        `reason` reaches the turn with its cancellation.
        """
        lane = self._lanes.get(session)
        if lane is None:
            return False, []
        dropped = list(lane.waiting)
        lane.waiting.clear()
        # A turn that was stopped is still telling how it ended; it must not be cut short at that.
        if lane.running is None or lane.is_stopping:
            return False, dropped
        lane.is_stopping = True
        lane.running.cancel(reason)
        return True, dropped

    def stop_all(self, reason: str) -> list[Job]:
        """Cancel every turn; return the jobs that never started."""
        return [job for session in list(self._lanes) for job in self.stop(session, reason)[1]]

    def abandon(self) -> None:
        """Cut short also those turns that were stopped and have not come to an end."""
        for lane in self._lanes.values():
            if lane.running is not None:
                lane.running.cancel()

    async def drained(self) -> None:
        """Return once nothing runs and nothing waits."""
        await self._idle.wait()

    async def _work(self, session: str, lane: _Lane) -> None:
        assert self._group is not None, "only an open group starts lanes"  # noqa: S101 - a promise to mypy and the reader
        try:
            while lane.waiting:
                job = lane.waiting.popleft()
                lane.is_stopping = False
                lane.running = self._group.create_task(self._run(job), name=f"turn:{job.turn}")
                # Waiting, not awaiting: a cancelled turn must not cancel the lane that ran it.
                await asyncio.wait({lane.running})
                lane.running = None
        finally:
            # No await stands between the last look at the queue and this line, so no job can slip in unseen.
            del self._lanes[session]
            if not self._lanes:
                self._idle.set()
