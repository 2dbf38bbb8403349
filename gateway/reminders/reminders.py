"""Creates, lists and cancels the reminders of a scope."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, tzinfo
from uuid import uuid4

import structlog

from config.types import PROGRAM_CHANNELS
from gateway.access.rules import Live, are_same_person
from gateway.contract import Inbound
from gateway.errors import Refused
from gateway.job import Job
from gateway.scheduler.recurrence import format_time, parse_due_time
from gateway.spool import AddReminder, ReminderContent, ReminderRow, Spool, SpoolUnavailable, TooMany
from gateway.text import clean

log = structlog.get_logger()

MAX_PER_SCOPE = 50
MAX_TOTAL = 10_000
MAX_CHARS = 1_000


class Reminders:
    """`changed` wakes the scheduler when a reminder was added, because it may be the next one that is due."""

    def __init__(self, live: Live, spool: Spool, changed: asyncio.Event, *, now: Callable[[], datetime]) -> None:
        self._live = live
        self._spool = spool
        self._now = now
        self._changed = changed

    @property
    def zone(self) -> tzinfo:
        """The time zone of the times that people write."""
        return self._live.settings.gateway.zone

    async def make(self, job: Job, text: str, when: str) -> str:
        """Add a reminder for the chat of `job` and return the confirmation. Raises `Refused` with the reason."""
        text = clean(text).strip()
        if not text:
            raise Refused("the text is empty")
        if len(text) > MAX_CHARS:
            raise Refused(f"the text has {len(text):,} characters, and the limit is {MAX_CHARS:,}")
        due = parse_due_time(when, now=self._now(), zone=self.zone)
        inbound = job.inbound
        if inbound.sender.is_verified or inbound.address.channel in PROGRAM_CHANNELS:
            raise Refused("a program asked for it, and only people can be reminded")
        reminder = AddReminder(
            id=uuid4().hex,
            scope=job.scope,
            due_at=due.due_at,
            cron=due.cron,
            about=ReminderContent(address=inbound.address, maker=inbound.sender, text=text, guild=inbound.guild),
            max_per_scope=MAX_PER_SCOPE,
            max_total=MAX_TOTAL,
        )
        try:
            await self._spool.commit(reminder, scope=job.scope)
        except TooMany as full:
            raise Refused("there are too many reminders. Cancel some with /reminders") from full
        except SpoolUnavailable as error:
            raise Refused("nothing can be stored at the moment. Try again later") from error
        self._changed.set()
        log.info("reminder_added", reminder=reminder.id, cron=reminder.cron)
        name = "The reminder"
        with suppress(SpoolUnavailable):  # The reminder is stored, even if its number cannot be read.
            for row in await self.of_scope(reminder.scope):
                if row.id == reminder.id:
                    name = f"Reminder {row.number}"
        again = f", then by `{due.cron}`" if due.cron else ""
        return f"{name} is set for {format_time(due.due_at, self.zone)}{again}. /reminders lists all."

    async def of_scope(self, scope: str) -> list[ReminderRow]:
        return await self._spool.reminders(scope)

    def may_cancel(self, reminder: ReminderRow, inbound: Inbound, *, is_owner: bool) -> bool:
        """Return whether this is an owner, or the person who added the reminder, on any of their channels."""
        about = reminder.about
        made_by, asked_by = (about.address.channel, about.maker.id), (inbound.address.channel, inbound.sender.id)
        return is_owner or are_same_person(self._live, made_by, asked_by)
