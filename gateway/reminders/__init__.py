"""Reminders: texts that come to a chat later, once or again and again. See `docs/behaviour.md`."""

from gateway.reminders.reminders import Reminders
from gateway.reminders.scheduler import ReminderScheduler

__all__ = ["ReminderScheduler", "Reminders"]
