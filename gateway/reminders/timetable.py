"""The timetable of reminders: puts the message of a due one into the outbox, exactly once for each due time."""

import asyncio
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, tzinfo
from functools import partial

import structlog

from gateway.access.rules import Live, may_talk
from gateway.agent.senders import sanitize_name
from gateway.aio import finish_before_cancel
from gateway.contract import Outbound, PeerKind
from gateway.errors import HeldElsewhere
from gateway.outbound.delivery import Delivery
from gateway.reminders.reminders import Reminders
from gateway.scheduler.recurrence import format_time, next_time, resume_time
from gateway.spool import AddToOutbox, OutboxState, Recurrence, ReminderRow, RescheduleReminder, Spool, WrongState
from gateway.spool.spool import retry_while_unavailable

log = structlog.get_logger()

LATE_AFTER = timedelta(minutes=1)
MAX_FAILURES = 3
"""A recurring reminder ends after this many undeliverable messages in a row."""

SHUTDOWN_GRACE = 5.0
"""Seconds that a send may take after the gateway was told to stop. Otherwise the next start sends it."""

_BATCH_SIZE = 100


class ReminderTimetable:
    def __init__(
        self, live: Live, spool: Spool, delivery: Delivery, reminders: Reminders, *, now: Callable[[], datetime]
    ) -> None:
        self._live = live
        self._spool = spool
        self._delivery = delivery
        self._reminders = reminders
        self._now = now

    async def recompute(self) -> None:
        # Summer time, a new time zone or a clock that was set back change the next time of a cron line.
        rows = await self._spool.recurring_reminders()
        scopes = {row.id: row.scope for row in rows}
        for move in await asyncio.to_thread(_moves, rows, self._now(), self._reminders.zone):
            await self._commit(scopes[move.id], move)

    async def fire_due(self, tasks: asyncio.TaskGroup) -> None:
        """Send all reminders that are due now. None takes long."""
        del tasks
        await self.send_due()

    async def next_due(self) -> datetime | None:
        return await self._spool.next_reminder()

    async def send_due(self) -> None:
        """Send all reminders that are due now."""
        while due := await self._spool.due_reminders(self._now(), limit=_BATCH_SIZE):
            for reminder in due:
                await finish_before_cancel(self._send(reminder), grace=SHUTDOWN_GRACE)

    async def _send(self, reminder: ReminderRow) -> None:
        """Put the message of `reminder` into the outbox and move it to its next time, in one commit.

        A crash before the commit leaves the reminder due. A crash after it leaves the message in the outbox. So the
        message is sent once either way.
        """
        now, zone, about = self._now(), self._reminders.zone, reminder.about
        failures = reminder.failures
        if reminder.last_delivery is OutboxState.DEAD:
            failures += 1
        elif reminder.last_delivery is OutboxState.DELIVERED:
            failures = 0
        # The person may have lost access since they added the reminder.
        is_allowed = may_talk(self._live, about.address, about.maker, about.guild)
        if failures >= MAX_FAILURES or not is_allowed:
            log.warning("reminder_ended", reminder=reminder.id, failures=failures, is_allowed=is_allowed)
            end = RescheduleReminder(id=reminder.id, due_at=reminder.due_at, next_at=None, at=now)
            await self._commit(reminder.scope, end)
            return
        # While a chat is out of reach, its reminders do not pile up: the message that waits for it is enough.
        is_sent = reminder.last_delivery not in {OutboxState.PENDING, OutboxState.SENDING}
        parts: list[AddToOutbox] = []
        if is_sent:
            name = sanitize_name(about.maker.name) if about.address.kind is not PeerKind.DIRECT else ""
            text = f"⏰ Reminder{f' for {name}' if name else ''}: {about.text}"
            if now - reminder.due_at > LATE_AFTER:
                text += f"\n\n(Late: this was due on {format_time(reminder.due_at, zone)}.)"
            message = Outbound(
                address=self._live.current_address(about.address), text=text, recipient=about.maker, guild=about.guild
            )
            parts = self._delivery.compose(message, key=reminder.next_key, scope=reminder.scope)
        cron = reminder.cron
        move = RescheduleReminder(
            id=reminder.id,
            due_at=reminder.due_at,
            next_at=None if cron is None else next_time(cron, max(now, reminder.due_at), zone),
            at=now,
            is_sent=is_sent,
            failures=failures,
        )
        if await self._commit(reminder.scope, move, *parts):
            self._delivery.post(parts)
            log.info("reminder_sent", reminder=reminder.id, channel=about.address.channel, sent=is_sent)

    async def _commit(self, scope: str, *operations: RescheduleReminder | AddToOutbox) -> bool:
        """Commit as soon as there is room. Returns False, and stores nothing, if the reminder was cancelled.

        Also if another node of the cluster has taken over its scope.
        """
        try:
            await retry_while_unavailable(partial(self._spool.commit, *operations, scope=scope))
        except (WrongState, HeldElsewhere):
            return False
        return True


def _moves(reminders: Iterable[ReminderRow], now: datetime, zone: tzinfo) -> list[RescheduleReminder]:
    """Return the changes after which each reminder is due at its next time, and never twice for one time."""
    moves: list[RescheduleReminder] = []
    for reminder in reminders:
        if reminder.cron is None or reminder.due_at <= now:
            continue
        next_at = resume_time(Recurrence(cron=reminder.cron), reminder.last_sent_for, now, zone)
        if next_at != reminder.due_at:
            moves.append(
                RescheduleReminder(
                    id=reminder.id, due_at=reminder.due_at, next_at=next_at, at=now, failures=reminder.failures
                )
            )
    return moves
