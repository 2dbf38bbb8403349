"""Schedules: prompts that the gateway sends by itself, and texts that it delivers. See `docs/schedules.md`."""

from gateway.schedules.outcomes import RunOutcomes
from gateway.schedules.schedules import Schedules
from gateway.schedules.timetable import ScheduleTimetable

__all__ = ["RunOutcomes", "ScheduleTimetable", "Schedules"]
