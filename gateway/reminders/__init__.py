"""Reminders: texts that come to a chat later, once or again and again. See `docs/behaviour.md`."""

from gateway.reminders.alarm import Alarm
from gateway.reminders.reminders import Reminders

__all__ = ["Alarm", "Reminders"]
