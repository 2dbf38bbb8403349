"""What a schedule needs vanishes after it was made: its agent, a role, its channel, its time zone."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from channels.loopback import LoopbackChannel
from gateway.contract import Sender
from gateway.daemon import Daemon
from gateway.spool import ChangeSchedule, ScheduleState
from tests.agent.wire import OPENAI, serving
from tests.daemon.harness import delivered, gateway
from tests.polling import until
from tests.schedules.harness import OPEN, Clock, scheduled, the_schedule, told

BOB = Sender(id="bob", name="Bob")


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def until_paused(daemon: Daemon) -> None:
    async def is_paused() -> bool:
        return (await the_schedule(daemon)).state is ScheduleState.PAUSED

    await until(is_paused)


async def test_a_schedule_whose_agent_is_gone_fails_until_it_is_back(tmp_path: Path, clock: Clock) -> None:
    coder: dict[str, Any] = {"agents": {"coder": {"provider": "fake", "model": "m"}}}
    async with (
        serving(OPENAI, OPENAI.answer("Done.")) as server,
        gateway(scheduled(tmp_path, server, **coder), now=clock) as (daemon, chat),
    ):
        await told(chat, "/schedule add every 1h agent=coder Look")
        await daemon.reload(scheduled(tmp_path, server))
        clock.move(daemon, hours=1)
        heard = await chat.hear_message()
        assert heard.text.startswith("Schedule 1 (Look) has failed: There is no agent coder. I'll try again")
        assert "agent coder" not in (await told(chat, "/schedules")).text
        await daemon.reload(scheduled(tmp_path, server, **coder))
        clock.move(daemon, minutes=1)
        assert {(await chat.hear_message()).text for _ in range(2)} == {"Schedule 1 (Look) works again.", "Done."}
    assert len(server.requests) == 1


async def test_a_role_that_a_reload_takes_away_pauses_the_schedules_of_its_people(tmp_path: Path, clock: Clock) -> None:
    roles = {"planner": {"people": ["loopback:bob"], "commands": ["schedule *"]}}
    async with (
        serving(OPENAI, OPENAI.answer("Done.")) as server,
        gateway(scheduled(tmp_path, server, channels=OPEN, roles=roles), now=clock) as (daemon, chat),
    ):
        await told(chat, "/whoami")  # So that the chat of the owner is known.
        await told(chat, "/schedule add every 1h Look", sender=BOB)
        await daemon.reload(scheduled(tmp_path, server, channels=OPEN))
        clock.move(daemon, hours=1)
        heard = await chat.hear_message()
        assert heard.address.peer == "ada"
        assert heard.text == (
            "Schedule 1 (Look) of Bob is paused: people with the role guest can't make schedules. "
            "/schedule resume 1 in its chat lets it go on."
        )
        row = await the_schedule(daemon)
        assert (row.state, row.note) == (ScheduleState.PAUSED, "people with the role guest can't make schedules.")
    assert not server.requests


async def test_a_schedule_of_a_person_fails_while_its_channel_is_disabled_and_goes_on_with_it(
    tmp_path: Path, clock: Clock
) -> None:
    disabled = {"web": {"enabled": False}, "terminal": {"enabled": False}, "loopback": {"enabled": False}}
    async with (
        serving(OPENAI, OPENAI.answer("Done.")) as server,
        gateway(scheduled(tmp_path, server), now=clock) as (daemon, chat),
    ):
        await told(chat, "/schedule add every 1h Look")
        await delivered(daemon)
        await daemon.reload(scheduled(tmp_path, server, channels=disabled))
        clock.move(daemon, hours=1)

        async def has_failed() -> bool:
            return (await the_schedule(daemon)).failures == 1

        await until(has_failed)
        row = await the_schedule(daemon)
        assert (row.state, row.note) == (ScheduleState.ACTIVE, "The channel loopback is not enabled.")
        await daemon.reload(scheduled(tmp_path, server))
        enabled_again = loopback_of(daemon)
        clock.move(daemon, minutes=1)
        heard = sorted([(await enabled_again.hear_message()).text for _ in range(3)])
        assert (heard[0], heard[2]) == ("Done.", "Schedule 1 (Look) works again.")
        assert heard[1].startswith("Schedule 1 (Look) has failed: The channel loopback is not enabled.")
    assert len(server.requests) == 1


def loopback_of(daemon: Daemon) -> LoopbackChannel:
    channel = daemon.channels.by_identity["loopback", "default"]
    assert isinstance(channel, LoopbackChannel)
    return channel


async def lose_zone(daemon: Daemon) -> None:
    """Store a time zone that the system does not know, as after an update of its zones."""
    row = await the_schedule(daemon)
    about = replace(row.about, when=replace(row.about.when, zone="Mars/Base"))
    await daemon.spool.commit(ChangeSchedule(id=row.id, scope=row.scope, about=about, due_at=row.due_at))


async def test_a_schedule_whose_time_zone_is_gone_is_paused_and_can_still_be_listed(
    tmp_path: Path, clock: Clock
) -> None:
    async with gateway(scheduled(tmp_path), now=clock) as (daemon, chat):
        await told(chat, '/schedule add "0 13 * * *" zone=Europe/Berlin Look')
        await lose_zone(daemon)
        clock.move(daemon, minutes=1)
        heard = await chat.hear_message()
        assert heard.text.startswith("Schedule 1 (Look) of Ada is paused: ")
        assert "does not know the time zone 'Mars/Base'" in heard.text
        await until_paused(daemon)
        assert "cron 0 13 * * * (Mars/Base) · Look" in (await told(chat, "/schedules")).text
        assert "Mars/Base" in (await told(chat, "/schedule resume 1")).text
        assert (await the_schedule(daemon)).state is ScheduleState.PAUSED
        assert (await told(chat, "/schedule delete 1")).text == "Schedule 1 is deleted."


async def test_a_schedule_whose_bot_account_is_gone_says_so(tmp_path: Path, clock: Clock) -> None:
    async with gateway(scheduled(tmp_path), now=clock) as (daemon, chat):
        await told(chat, '/schedule add "0 13 * * *" Look')
        row = await the_schedule(daemon)
        about = replace(row.about, address=replace(row.about.address, account="work"))
        await daemon.spool.commit(ChangeSchedule(id=row.id, scope=row.scope, about=about, due_at=clock.now))
        clock.move(daemon, minutes=1)

        async def has_failed() -> bool:
            return (await the_schedule(daemon)).note == "The channel loopback has no account work."

        await until(has_failed)


async def test_a_due_schedule_whose_time_zone_is_gone_is_paused_and_the_others_run(
    tmp_path: Path, clock: Clock
) -> None:
    async with (
        serving(OPENAI, OPENAI.answer("Done.")) as server,
        gateway(scheduled(tmp_path, server), now=clock) as (daemon, chat),
    ):
        await told(chat, '/schedule add "0 13 * * *" zone=Europe/Berlin Look')
        await lose_zone(daemon)
        clock.now += timedelta(days=1)
        await told(chat, "/schedule add in 5m Look twice")
        texts = [(await chat.hear_message()).text]
        clock.move(daemon, minutes=5)
        texts.append((await chat.hear_message()).text)
        assert "is paused: " in texts[0]
        assert texts[1] == "Done."
    assert len(server.requests) == 1
