"""Sleeps until a reminder is due, and puts its message into the outbox exactly once for each due time."""

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
from gateway.reminders.schedule import format_time, next_time
from gateway.spool import AddToOutbox, OutboxState, ReminderRow, RescheduleReminder, Spool, SpoolUnavailable, WrongState
from gateway.spool.spool import retry_while_unavailable

log = structlog.get_logger()

LATE_AFTER = timedelta(minutes=1)
MAX_SLEEP = 60.0
"""Seconds until the wall clock is read again. It may have been set forward, or the machine was suspended."""
CLOCK_STEP = 60.0
"""The wall clock counts as set back if it falls this many seconds behind the monotonic clock."""
TRUSTED_AHEAD = timedelta(days=1)
"""A reminder that was sent for a time further ahead than this, and than its next two times, ran on a wrong clock."""
MAX_FAILURES = 3
"""A recurring reminder ends after this many undeliverable messages in a row."""

UNAVAILABLE_DELAY = 5.0
"""Seconds to wait while the spool is unavailable."""
SHUTDOWN_GRACE = 5.0
"""Seconds that a send may take after the gateway was told to stop. Otherwise the next start sends it."""

_BATCH_SIZE = 100


class ReminderScheduler:
    def __init__(
        self, live: Live, spool: Spool, delivery: Delivery, reminders: Reminders, *, now: Callable[[], datetime]
    ) -> None:
        self._live = live
        self._spool = spool
        self._delivery = delivery
        self._reminders = reminders
        self._now = now
        self._must_recompute = True
        self._last_clocks: tuple[datetime, float] | None = None

    def recompute(self) -> None:
        """Recompute the next time of every recurring reminder, because the time zone may have changed."""
        self._must_recompute = True
        self._reminders.changed.set()

    async def run(self) -> None:
        """Send reminders until cancelled. A committed message is delivered now or after the next start."""
        while True:
            try:
                # Cleared before the spool is read: a reminder added after the read sets it again.
                self._reminders.changed.clear()
                if self._was_clock_set_back() or self._must_recompute:
                    self._must_recompute = False
                    # Summer time, a new time zone or a clock that was set back change the next time of a cron line.
                    rows = await self._spool.recurring_reminders()
                    scopes = {row.id: row.scope for row in rows}
                    for move in await asyncio.to_thread(_moves, rows, self._now(), self._reminders.zone):
                        await self._commit(scopes[move.id], move)
                await self.send_due()
                await self._sleep_until(await self._spool.next_reminder())
            except SpoolUnavailable:  # Reads fail as well.
                self._must_recompute = True
                await asyncio.sleep(UNAVAILABLE_DELAY)

    async def send_due(self) -> None:
        """Send all reminders that are due now."""
        while due := await self._spool.due_reminders(self._now(), limit=_BATCH_SIZE):
            for reminder in due:
                await finish_before_cancel(self._send(reminder), grace=SHUTDOWN_GRACE)

    async def _sleep_until(self, due_at: datetime | None) -> None:
        """Sleep until `due_at` by the wall clock, a change of the reminders, or a step back of the clock."""
        while due_at is None or self._now() < due_at:
            # The loop's timer follows the monotonic clock, so a long sleep would miss changes of the wall clock.
            left = None if due_at is None else min(MAX_SLEEP, (due_at - self._now()).total_seconds())
            try:
                async with asyncio.timeout(left):
                    await self._reminders.changed.wait()
            except TimeoutError:
                if self._was_clock_set_back():
                    self._must_recompute = True
                    return
            else:
                return

    def _was_clock_set_back(self) -> bool:
        """Compare how far the wall clock and the monotonic clock have moved since the last call."""
        wall, steady = self._now(), asyncio.get_running_loop().time()
        before, self._last_clocks = self._last_clocks, (wall, steady)
        return before is not None and (wall - before[0]).total_seconds() < steady - before[1] - CLOCK_STEP

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
        next_at = next_time(reminder.cron, _sent_until(reminder, reminder.cron, now, zone), zone)
        if next_at != reminder.due_at:
            moves.append(
                RescheduleReminder(
                    id=reminder.id, due_at=reminder.due_at, next_at=next_at, at=now, failures=reminder.failures
                )
            )
    return moves


def _sent_until(reminder: ReminderRow, cron: str, now: datetime, zone: tzinfo) -> datetime:
    """Return the time up to which the reminder was sent, at least `now`.

    That is later than `now` if the clock was set back. A time far ahead was set by a wrong clock and is ignored: the
    reminder would be silent until then.
    """
    last = reminder.last_sent_for
    if last is None or last <= now:
        return now
    coming = next_time(cron, now, zone) or now
    trusted = max(now + TRUSTED_AHEAD, next_time(cron, coming, zone) or coming)
    return last if last <= trusted else now
