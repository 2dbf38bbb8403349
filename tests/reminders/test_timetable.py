"""Ringing over a real spool, to a chat that does not take what it is sent."""

import asyncio
from datetime import timedelta
from pathlib import Path

from config import Settings
from gateway.access.rules import Live
from gateway.contract import Sender
from gateway.errors import Undeliverable
from gateway.reminders import Reminders, ReminderTimetable
from gateway.spool import AddReminder, ReminderContent
from tests.outbound.harness import ADDRESS, Post, Time, Wire, posting

DAILY = "0 0 * * *"


def alarm(post: Post, time: Time) -> ReminderTimetable:
    live = Live(Settings.model_validate({"gateway": {"timezone": "UTC"}, "channels": {"wire": {"dm_policy": "open"}}}))
    reminders = Reminders(live, post.spool, asyncio.Event(), now=time)
    return ReminderTimetable(live, post.spool, post.delivery, reminders, now=time)


def stretch(time: Time) -> AddReminder:
    return AddReminder(
        id="r",
        scope="s",
        due_at=time.now + timedelta(days=1),
        cron=DAILY,
        about=ReminderContent(address=ADDRESS, maker=Sender(id="ada"), text="stretch"),
        max_per_scope=1,
        max_total=1,
    )


async def pass_days(post: Post, time: Time, days: int) -> None:
    ringing = alarm(post, time)
    for _ in range(days):
        time.now += timedelta(days=1)
        await ringing.send_due()
        await post.arrived()


async def test_a_reminder_ends_after_three_undeliverable_messages(tmp_path: Path) -> None:
    time, wire = Time(), Wire(*(Undeliverable("the chat is gone") for _ in range(9)))
    async with posting(tmp_path, wire, time=time) as post:
        await post.spool.commit(stretch(time))
        await pass_days(post, time, 9)
        assert await post.spool.reminders("s") == []
    assert wire.tried == ["remind-r-1", "remind-r-2", "remind-r-3"]


async def test_a_delivered_reminder_resets_the_failures(tmp_path: Path) -> None:
    time, wire = Time(), Wire(*(Undeliverable("blocked") for _ in range(2)))
    async with posting(tmp_path, wire, time=time) as post:
        await post.spool.commit(stretch(time))
        await pass_days(post, time, 3)
        wire.failures += [Undeliverable("blocked")] * 2
        await pass_days(post, time, 4)
        assert len(await post.spool.reminders("s")) == 1
    assert len(wire.accepted) == 3


async def test_reminders_of_an_unreachable_chat_do_not_pile_up(tmp_path: Path) -> None:
    """Without its channel a reply waits in the outbox until the channel is back."""
    time = Time()
    async with posting(tmp_path, time=time) as post:
        await post.spool.commit(stretch(time))
        await pass_days(post, time, 5)
        assert set(await post.states()) == {"remind-r-1"}
        (row,) = await post.spool.reminders("s")
        assert row.due_at > time.now
