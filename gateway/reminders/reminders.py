"""Reminders of a scope: making, listing and cancelling them."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, tzinfo
from uuid import uuid4

import structlog

from gateway.access.live import Live
from gateway.access.rules import are_same_person
from gateway.contract import Inbound
from gateway.errors import Refused
from gateway.job import Job
from gateway.reminders.schedule import in_words, read_when
from gateway.spool import AddReminder, ReminderContent, ReminderRow, Spool, SpoolFull, TooMany
from gateway.text import clean

__all__ = ["Reminders"]

log = structlog.get_logger()

MOST_PER_SCOPE = 50
MOST_IN_ALL = 10_000
MOST_CHARS = 1_000


class Reminders:
    def __init__(self, live: Live, spool: Spool, *, now: Callable[[], datetime]) -> None:
        self._live = live
        self._spool = spool
        self._now = now
        self.changed = asyncio.Event()
        """Set when one was made: it may be the next one that is due."""

    @property
    def zone(self) -> tzinfo:
        """The time zone that people mean."""
        return self._live.settings.gateway.zone

    async def make(self, job: Job, text: str, when: str) -> str:
        """Keep a reminder for the chat of `job`; return what there is to say about it. `Refused` says why not."""
        text = clean(text).strip()
        if not text:
            raise Refused("the text is empty")
        if len(text) > MOST_CHARS:
            raise Refused(f"the text has {len(text):,} characters, and at most {MOST_CHARS:,} fit")
        appointment = read_when(when, now=self._now(), zone=self.zone)
        inbound = job.inbound
        wanted = AddReminder(
            id=uuid4().hex,
            scope=job.scope,
            due_at=appointment.due_at,
            cron=appointment.cron,
            about=ReminderContent(address=inbound.address, maker=inbound.sender, text=text, guild=inbound.guild),
            max_per_scope=MOST_PER_SCOPE,
            max_total=MOST_IN_ALL,
        )
        await self._keep(wanted)
        again = f", then by `{appointment.cron}`" if appointment.cron else ""
        name = await self._name(wanted)
        return f"{name} is set for {in_words(wanted.due_at, self.zone)}{again}. /reminders shows them all."

    async def _keep(self, wanted: AddReminder) -> None:
        try:
            await self._spool.commit(wanted)
        except TooMany as full:
            raise Refused("there are too many reminders already; /reminders can cancel some") from full
        except SpoolFull as full:
            raise Refused("there is no room on the disk; the operator can mend that") from full
        self.changed.set()
        log.info("reminder_made", reminder=wanted.id, cron=wanted.cron)

    async def _name(self, kept: AddReminder) -> str:
        """Name a reminder as its people see it. It is kept, whatever keeps us from reading its number."""
        with suppress(SpoolFull):
            for row in await self.of_scope(kept.scope):
                if row.id == kept.id:
                    return f"Reminder {row.number}"
        return "The reminder"

    async def of_scope(self, scope: str) -> list[ReminderRow]:
        return await self._spool.reminders(scope)

    def may_cancel(self, reminder: ReminderRow, inbound: Inbound, *, is_owner: bool) -> bool:
        """Tell whether this is the person who has made it, wherever they write from, or an owner."""
        about = reminder.about
        made_by, asked_by = (about.address.channel, about.maker.id), (inbound.address.channel, inbound.sender.id)
        return is_owner or are_same_person(self._live, made_by, asked_by)
