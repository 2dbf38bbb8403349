"""Who is at work: the jobs that lanes are running, and for how long."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

from gateway.job import Job

__all__ = ["AtWork", "Running"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    job: Job
    seconds: float


class AtWork:
    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._jobs: dict[str, tuple[Job, float]] = {}

    @contextmanager
    def on(self, job: Job) -> Iterator[None]:
        """While inside, `job` is being worked on."""
        self._jobs[job.turn] = (job, self._clock())
        try:
            yield
        finally:
            self._jobs.pop(job.turn, None)

    def running(self) -> list[Running]:
        """Return the jobs at hand, the longest first."""
        now = self._clock()
        return [Running(job=job, seconds=now - since) for job, since in self._jobs.values()]
