"""Times at which something is due: how people write them, when they come next, and the clock that waits for them."""

from gateway.scheduler.scheduler import Scheduler, Timetable

__all__ = ["Scheduler", "Timetable"]
