"""Reminders in the whole gateway, by a clock that the test moves."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from channels.loopback import LoopbackChannel
from config import Settings
from gateway.contract import Outbound, OutboundKind, PeerKind, Sender
from gateway.daemon import Daemon
from gateway.spool import AddToOutbox, RescheduleReminder, Spool
from tests.agent.wire import OPENAI, Call, Reply, serving
from tests.daemon.harness import gateway, say_and_hear, settings
from tests.daemon.models import configured
from tests.polling import until

START = datetime(2020, 11, 16, 12, 0, 0, tzinfo=UTC)
"""A Monday. Messages have the time of the real clock, so none of them is a backlog."""
ADA = Sender(id="ada", name="Ada")
BOB = Sender(id="bob", name="Bob")
OPEN = {"web": {"enabled": False}, "terminal": {"enabled": False}, "loopback": {"group_policy": "open"}}


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now

    def move(self, daemon: Daemon, **by: float) -> None:
        """Put the clock forward or back, and have it looked at."""
        self.now += timedelta(**by)
        daemon.scheduler.recompute()


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def told(chat: LoopbackChannel, text: str, peer: str = "ada") -> Outbound:
    await chat.say(text, peer=peer)
    return await chat.hear_message()


async def listed(chat: LoopbackChannel) -> list[str]:
    return (await told(chat, "/reminders")).text.splitlines()


async def until_listed(chat: LoopbackChannel, line: str) -> None:
    """Ask until the alarm has looked at the clock."""

    async def is_listed() -> bool:
        return line in (await told(chat, "/reminders")).text

    await until(is_listed)


async def test_a_reminder_is_sent_once_to_the_chat_that_asked_for_it(tmp_path: Path, clock: Clock) -> None:
    async with gateway(settings(tmp_path, channels=OPEN), now=clock) as (daemon, chat):
        await chat.say("remind me in 5 minutes to call mum", peer="club", kind=PeerKind.GROUP, thread="7", sender=ADA)
        answer = await chat.hear_message()
        assert answer.text.startswith("Reminder 1 is set for Monday, 16 November 2020, 12:05 UTC.")
        clock.move(daemon, minutes=5)
        reminder = await chat.hear_message()
        assert (reminder.text, reminder.address) == ("⏰ Reminder for Ada: call mum", answer.address)
        assert reminder.kind is OutboundKind.NOTICE
        clock.move(daemon, minutes=-5)
        clock.move(daemon, minutes=5)
        assert "no reminders" in (await told(chat, "/reminders", peer="club")).text


async def test_a_reminder_missed_while_down_is_sent_once_and_says_that_it_is_late(tmp_path: Path, clock: Clock) -> None:
    async with gateway(settings(tmp_path), now=clock) as (_, chat):
        await told(chat, "remind me at 18:00 to call mum")
        await told(chat, "remind me every day at 19:00 to stretch")
    clock.now += timedelta(days=3)
    rest = ["  2  Thu 19 Nov 2020, 19:00 · cron 0 19 * * * · stretch"]
    async with gateway(settings(tmp_path), now=clock) as (_, chat):
        assert [(await chat.hear_message()).text for _ in range(2)] == [
            "⏰ Reminder: call mum\n\n(Late: this was due on Monday, 16 November 2020, 18:00 UTC.)",
            "⏰ Reminder: stretch\n\n(Late: this was due on Monday, 16 November 2020, 19:00 UTC.)",
        ]
        assert (await listed(chat))[1:-1] == rest
    async with gateway(settings(tmp_path), now=clock) as (_, chat):
        assert (await listed(chat))[1:-1] == rest


async def leave_fired(folder: Path) -> None:
    """Leave the state of a kill -9 between the commit of a reminder and its delivery."""
    async with await Spool.open(folder / "data") as spool:
        (row,) = await spool.due_reminders(START + timedelta(minutes=5), limit=9)
        message = Outbound(address=row.about.address, text="⏰ Reminder: call mum")
        await spool.commit(
            RescheduleReminder(id=row.id, due_at=row.due_at, next_at=None, at=START, is_sent=True),
            AddToOutbox(key=row.next_key, turn=None, message=message, at=START),
        )


async def test_a_reminder_due_before_a_crash_is_delivered_once_after_it(tmp_path: Path, clock: Clock) -> None:
    async with gateway(settings(tmp_path), now=clock) as (_, chat):
        await told(chat, "remind me in 5 minutes to call mum")
    await leave_fired(tmp_path)
    clock.now += timedelta(hours=1)
    async with gateway(settings(tmp_path), now=clock) as (_, chat):
        assert (await chat.hear_message()).text.endswith("⏰ Reminder: call mum")
        assert "no reminders" in (await told(chat, "/reminders")).text
    async with gateway(settings(tmp_path), now=clock) as (_, chat):
        assert "no reminders" in (await told(chat, "/reminders")).text


async def test_a_clock_jump_neither_repeats_nor_drops_a_reminder(tmp_path: Path, clock: Clock) -> None:
    async with gateway(settings(tmp_path), now=clock) as (daemon, chat):
        await told(chat, "remind me every day at 13:00 to stretch")
        clock.move(daemon, hours=1)
        assert (await chat.hear_message()).text == "⏰ Reminder: stretch"
        clock.move(daemon, hours=-2)
        await until_listed(chat, "Tue 17 Nov 2020, 13:00")
        clock.move(daemon, days=3650)
        assert "Late" in (await chat.hear_message()).text
        clock.move(daemon, days=1)
        assert "2030" in (await chat.hear_message()).text
        clock.move(daemon, days=-3651)
        await until_listed(chat, "Mon 16 Nov 2020, 13:00")
        clock.move(daemon, hours=2)
        assert (await chat.hear_message()).text == "⏰ Reminder: stretch"


async def test_reminders_are_listed_and_cancelled_by_number(tmp_path: Path, clock: Clock) -> None:
    async with gateway(settings(tmp_path), now=clock) as (daemon, chat):
        await told(chat, "remind me in 2 hours to water the plants")
        await told(chat, "remind me in 1 hour to call mum")
        assert (await told(chat, "/reminders", peer="bob")).text.startswith("There are no reminders here")
        shown = await told(chat, "/reminders")
        assert shown.text.splitlines() == [
            "Reminders",
            "  2  Mon 16 Nov 2020, 13:00 · call mum",
            "  1  Mon 16 Nov 2020, 14:00 · water the plants",
            "/reminders cancel <number> cancels one",
        ]
        assert [button.command for button in shown.buttons] == ["/reminders cancel 2", "/reminders cancel 1"]
        assert (await told(chat, "/reminders cancel 2")).text == "Cancelled reminder 2: call mum"
        assert "no reminder 2 here" in (await told(chat, "/reminders cancel 2")).text
        assert "no reminder 1 here" in (await told(chat, "/reminders cancel 1", peer="bob")).text
        assert "Which one?" in (await told(chat, "/reminders cancel all")).text
        clock.move(daemon, hours=2)
        assert (await chat.hear_message()).text == "⏰ Reminder: water the plants"


async def test_in_a_group_only_the_author_or_an_owner_can_cancel_a_reminder(tmp_path: Path, clock: Clock) -> None:
    async def said(text: str, sender: Sender) -> str:
        await chat.say(text, peer="club", kind=PeerKind.GROUP, sender=sender)
        return (await chat.hear_message()).text

    async with gateway(settings(tmp_path, channels=OPEN), now=clock) as (_, chat):
        for _ in range(2):
            await said("remind me in 1 hour to call mum", ADA)
        assert "Only the person who asked" in await said("/reminders cancel 1", BOB)
        assert "Cancelled" in await said("/reminders cancel 1", ADA)
        assert "Cancelled" in await said("/reminders cancel 2", Sender(id="boss", is_owner=True))


def in_berlin(folder: Path) -> Settings:
    there = settings(folder)
    return there.model_copy(update={"gateway": there.gateway.model_copy(update={"timezone": "Europe/Berlin"})})


async def test_times_use_the_configured_time_zone_and_follow_its_changes(tmp_path: Path, clock: Clock) -> None:
    async with gateway(in_berlin(tmp_path), now=clock) as (daemon, chat):
        assert "13:00:00 CET" in (await told(chat, "what time is it")).text
        assert "18:00 CET" in (await told(chat, "remind me at 18:00 to call mum")).text
        await told(chat, "remind me every day at 19:00 to stretch")
        clock.move(daemon, hours=5)
        assert (await chat.hear_message()).text == "⏰ Reminder: call mum"
        await daemon.reload(settings(tmp_path))
        await until_listed(chat, "  2  Mon 16 Nov 2020, 19:00")


async def test_a_person_without_access_is_not_reminded(tmp_path: Path, clock: Clock) -> None:
    channels = {**OPEN, "loopback": {"dm_policy": "open"}}
    async with gateway(settings(tmp_path, channels=channels), now=clock) as (_, chat):
        await chat.say("remind me in 5 minutes to call mum", peer="ada", sender=ADA)
        await chat.hear_message()
    clock.now += timedelta(minutes=5)
    async with gateway(settings(tmp_path), now=clock) as (_, chat):
        await until_listed(chat, "There are no reminders here.")


async def test_the_model_is_told_why_a_time_is_invalid(tmp_path: Path, clock: Clock) -> None:
    wrong, right = (json.dumps({"text": "call mum", "when": when}) for when in ("tomorrow", "PT1H"))
    script: list[Reply] = [
        OPENAI.answer(calls=[Call("remind", [wrong], id="1")]),
        OPENAI.answer(calls=[Call("remind", [right], id="2")]),
        OPENAI.answer("Done."),
    ]
    async with serving(OPENAI, *script) as server, gateway(configured(tmp_path, server), now=clock) as (_, chat):
        await say_and_hear(chat, "remind me tomorrow")
    assert "No reminder was set: 'tomorrow' is not a time" in server.requests[1].body["messages"][-1]["content"]
    assert "Reminder 1 is set for Monday, 16 November 2020" in server.requests[2].body["messages"][-1]["content"]
