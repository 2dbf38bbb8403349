"""Reminders: texts that are sent to a chat later, once or repeatedly. See `docs/behaviour.md`."""

from gateway.reminders.reminders import Reminders
from gateway.reminders.timetable import ReminderTimetable

__all__ = ["ReminderTimetable", "Reminders"]
