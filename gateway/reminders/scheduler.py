"""The alarm: sleeps until a reminder is due, and puts each into the outbox exactly once for each of its times."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta, tzinfo
from functools import partial

import structlog

from gateway.access.live import Live
from gateway.access.rules import may_talk
from gateway.agent.senders import sanitize_name
from gateway.aio import finish_before_cancel
from gateway.contract import Outbound, PeerKind
from gateway.outbound.delivery import Delivery
from gateway.reminders.reminders import Reminders
from gateway.reminders.schedule import in_words, next_time
from gateway.spool import AddToOutbox, OutboxState, ReminderRow, RescheduleReminder, Spool, SpoolFull, WrongState
from gateway.spool.spool import retry_while_full

__all__ = ["ReminderScheduler"]

log = structlog.get_logger()

LATE_AFTER = timedelta(minutes=1)
LONGEST_REST = 60.0
"""Seconds after which the wall clock is looked at again: it may have been put forward, or the machine was asleep."""
STEP = 60.0
"""Seconds that the wall clock has to fall behind the other for having been put back."""
BELIEVED = timedelta(days=1)
"""A reminder that has rung for a time further ahead than this, and than its next two, starts anew."""
MOST_FAILURES = 3
"""So often in a row may the messages of a recurring reminder not be deliverable before it ends."""

WITHOUT_ROOM = 5.0
"""Seconds to wait on a full disk."""
LAST_WORDS = 5.0
"""Seconds that a ring may take to its end when the gateway is told to stop; it rings at the next start otherwise."""

_AT_ONCE = 100
_ON_THE_WAY = {OutboxState.PENDING, OutboxState.SENDING}


class ReminderScheduler:
    def __init__(
        self, live: Live, spool: Spool, delivery: Delivery, reminders: Reminders, *, now: Callable[[], datetime]
    ) -> None:
        self._live = live
        self._spool = spool
        self._delivery = delivery
        self._reminders = reminders
        self._now = now
        self._is_stale = True
        self._looked: tuple[datetime, float] | None = None

    def recompute(self) -> None:
        """Look at the clock and at every recurring reminder anew: the time zone may be another."""
        self._is_stale = True
        self._reminders.changed.set()

    async def run(self) -> None:
        """Ring until cancelled. What is committed when that happens is delivered, now or at the next start."""
        while True:
            try:
                await self._go_round()
            except SpoolFull:  # Also what is only read fails, when it is in one transaction with what has no room.
                self._is_stale = True
                await asyncio.sleep(WITHOUT_ROOM)

    async def _go_round(self) -> None:
        self._reminders.changed.clear()
        if self._was_put_back() or self._is_stale:
            self._is_stale = False
            await self._set_anew()
        await self.send_due()
        await self._rest(await self._spool.next_reminder())

    async def send_due(self) -> None:
        """Ring all that are due by now."""
        while due := await self._spool.due_reminders(self._now(), limit=_AT_ONCE):
            for reminder in due:
                await finish_before_cancel(self._ring(reminder), grace=LAST_WORDS)

    async def _rest(self, due_at: datetime | None) -> None:
        """Sleep until `due_at` by the wall clock, until something has changed, or until the clock was put back."""
        while due_at is None or self._now() < due_at:
            left = None if due_at is None else min(LONGEST_REST, (due_at - self._now()).total_seconds())
            try:
                async with asyncio.timeout(left):
                    await self._reminders.changed.wait()
            except TimeoutError:
                if self._was_put_back():
                    self._is_stale = True
                    return
            else:
                return

    def _was_put_back(self) -> bool:
        """Compare the wall clock with the one that does not jump, since the last look."""
        wall, steady = self._now(), asyncio.get_running_loop().time()
        before, self._looked = self._looked, (wall, steady)
        return before is not None and (wall - before[0]).total_seconds() < steady - before[1] - STEP

    async def _set_anew(self) -> None:
        """Have recurring reminders ring next as the clock and the time zone are now."""
        rows = await self._spool.recurring_reminders()
        moves = await asyncio.to_thread(lambda: list(_moves(rows, self._now(), self._reminders.zone)))
        for move in moves:
            await self._record(move)

    async def _ring(self, reminder: ReminderRow) -> None:
        """Put the message of `reminder` into the outbox and move it to its next time, in one commit."""
        now = self._now()
        failures = _failures(reminder)
        is_welcome = may_talk(self._live, reminder.about.address, reminder.about.maker, reminder.about.guild)
        if failures >= MOST_FAILURES or not is_welcome:
            log.warning("reminder_ended", reminder=reminder.id, failures=failures, is_welcome=is_welcome)
            await self._record(RescheduleReminder(id=reminder.id, due_at=reminder.due_at, next_at=None, at=now))
            return
        # While a chat is out of reach its reminders do not pile up: the one that waits for it tells enough.
        rings = reminder.last_delivery not in _ON_THE_WAY
        move = RescheduleReminder(
            id=reminder.id,
            due_at=reminder.due_at,
            next_at=_following(reminder, now, self._reminders.zone),
            at=now,
            is_sent=rings,
            failures=failures,
        )
        parts = self._delivery.compose(self._message(reminder, now), key=reminder.next_key) if rings else []
        if await self._record(move, *parts):
            self._delivery.post(parts)
            log.info("reminder_rung", reminder=reminder.id, channel=reminder.about.address.channel, sent=rings)

    async def _record(self, *operations: RescheduleReminder | AddToOutbox) -> bool:
        """Commit, as soon as there is room. False, and nothing is stored, when it was cancelled meanwhile."""
        try:
            await retry_while_full(partial(self._spool.commit, *operations))
        except WrongState:
            return False
        return True

    def _message(self, reminder: ReminderRow, now: datetime) -> Outbound:
        about = reminder.about
        who = sanitize_name(about.maker.name) if about.address.kind is not PeerKind.DIRECT else ""
        text = f"⏰ Reminder{f' for {who}' if who else ''}: {about.text}"
        if now - reminder.due_at > LATE_AFTER:
            text += f"\n\n(Late: this was due on {in_words(reminder.due_at, self._reminders.zone)}.)"
        return Outbound(address=self._live.whereabouts(about.address), text=text)


def _failures(reminder: ReminderRow) -> int:
    """Count the messages in a row that could not be delivered; of one that is not known any more nothing is said."""
    if reminder.last_delivery is OutboxState.DEAD:
        return reminder.failures + 1
    return 0 if reminder.last_delivery is OutboxState.DELIVERED else reminder.failures


def _following(reminder: ReminderRow, now: datetime, zone: tzinfo) -> datetime | None:
    return None if reminder.cron is None else next_time(reminder.cron, max(now, reminder.due_at), zone)


def _latest_ring(reminder: ReminderRow, now: datetime, zone: tzinfo) -> datetime:
    """Return up to when it has rung, if the clock has gone back since; `now` at the least.

    What it has rung for far ahead, it has rung for by a wrong clock, and that must not silence it until then.
    """
    last_sent_for = reminder.last_sent_for
    if last_sent_for is None or last_sent_for <= now or reminder.cron is None:
        return now
    coming = next_time(reminder.cron, now, zone) or now
    nearest = max(now + BELIEVED, next_time(reminder.cron, coming, zone) or coming)
    return last_sent_for if last_sent_for <= nearest else now


def _moves(reminders: Iterable[ReminderRow], now: datetime, zone: tzinfo) -> Iterator[RescheduleReminder]:
    """Yield what has to be changed for each to ring at its next time from `now` on, and never twice for one time."""
    for reminder in reminders:
        if reminder.cron is None or reminder.due_at <= now:
            continue
        next_at = next_time(reminder.cron, _latest_ring(reminder, now, zone), zone)
        if next_at != reminder.due_at:
            yield RescheduleReminder(
                id=reminder.id, due_at=reminder.due_at, next_at=next_at, at=now, failures=reminder.failures
            )
