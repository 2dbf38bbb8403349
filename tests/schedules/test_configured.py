"""Schedules of the configuration: how they follow its changes, and what they may do."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from config import ConfigError, Settings
from config.loader import load
from gateway.daemon import Daemon
from gateway.spool import RunState, ScheduleState
from tests.agent.wire import OPENAI, WireServer, serving
from tests.daemon.harness import delivered, gateway
from tests.polling import until
from tests.schedules.harness import SCOPE, START, Clock, runs_of, scheduled, the_schedule, told

NEWS = {"name": "news", "cron": "0 13 * * *", "chat": "loopback:ada", "prompt": "Look at the news"}


@pytest.fixture
def clock() -> Clock:
    return Clock()


def configured(folder: Path, server: WireServer | None, *schedules: dict[str, Any], **tables: Any) -> Settings:  # noqa: ANN401 - tables of any shape.
    return scheduled(folder, server, schedules=list(schedules), **tables)


async def until_stored(daemon: Daemon, count: int = 1) -> None:
    """Wait until the schedules of the configuration are stored."""

    async def are_stored() -> bool:
        return len(await daemon.spool.schedules(ended=True)) == count

    await until(are_stored)


async def test_a_schedule_of_the_configuration_runs_changes_and_stops_with_it(tmp_path: Path, clock: Clock) -> None:
    async with serving(OPENAI, OPENAI.answer("News."), OPENAI.answer("Later.")) as server:
        async with gateway(configured(tmp_path, server, NEWS), now=clock) as (daemon, chat):
            await until_stored(daemon)
            clock.move(daemon, hours=1)
            assert (await chat.hear_message()).text == "News."
            await delivered(daemon)
            shown = (await told(chat, "/schedules")).text
            assert "1  Tue 17 Nov 2020, 13:00 · cron 0 13 * * * · news" in shown
            assert "Remove it there" in (await told(chat, "/schedule delete 1")).text
            await daemon.reload(configured(tmp_path, server, {**NEWS, "cron": "0 15 * * *"}))

            async def has_moved() -> bool:
                return (await the_schedule(daemon)).due_at == START + timedelta(hours=3)

            await until(has_moved)
            clock.move(daemon, hours=2)
            assert (await chat.hear_message()).text == "Later."
            await delivered(daemon)
            assert [run.state for run in await runs_of(daemon)] == [RunState.DONE] * 2
        clock.now += timedelta(days=2)
        async with gateway(configured(tmp_path, server), now=clock) as (daemon, chat):

            async def has_ended() -> bool:
                return (await the_schedule(daemon)).state is ScheduleState.ENDED

            await until(has_ended)
            assert (await the_schedule(daemon)).note == "It was removed from the configuration."
            assert "removed" not in (await told(chat, "/schedules")).text
        async with gateway(configured(tmp_path, server, NEWS), now=clock) as (daemon, _):

            async def is_back() -> bool:
                return (await the_schedule(daemon)).state is ScheduleState.ACTIVE

            await until(is_back)
            assert len(await runs_of(daemon)) == 2
    assert len(server.requests) == 2


async def test_a_paused_schedule_stays_paused_after_a_restart(tmp_path: Path, clock: Clock) -> None:
    async with gateway(configured(tmp_path, None, NEWS), now=clock) as (daemon, chat):
        await until_stored(daemon)
        await told(chat, "/schedule pause 1")
    async with gateway(configured(tmp_path, None, NEWS), now=clock) as (daemon, chat):
        assert "paused ·" in (await told(chat, "/schedules")).text


async def test_a_schedule_in_the_past_is_stored_as_ended_and_the_others_run(tmp_path: Path, clock: Clock) -> None:
    once = {"name": "once", "at": "2019-01-01T08:00", "chat": "loopback:ada", "prompt": "Too late"}
    async with (
        serving(OPENAI, OPENAI.answer("News.")) as server,
        gateway(configured(tmp_path, server, once, NEWS), now=clock) as (daemon, chat),
    ):
        await until_stored(daemon, 2)
        clock.move(daemon, hours=1)
        assert (await chat.hear_message()).text == "News."
        states = {row.id: row.state for row in await daemon.spool.schedules(ended=True)}
        assert states == {"config-news": ScheduleState.ACTIVE, "config-once": ScheduleState.ENDED}


async def test_a_role_limits_what_a_schedule_of_the_configuration_may_do(tmp_path: Path, clock: Clock) -> None:
    roles = {"reader": {"tools": ["current_time"]}}
    async with (
        serving(OPENAI, OPENAI.answer("News.")) as server,
        gateway(configured(tmp_path, server, {**NEWS, "role": "reader"}, roles=roles), now=clock) as (daemon, chat),
    ):
        await until_stored(daemon)
        clock.move(daemon, hours=1)
        assert (await chat.hear_message()).text == "News."
    assert [each["function"]["name"] for each in server.requests[0].body["tools"]] == ["current_time"]


async def test_a_disabled_channel_makes_a_schedule_fail_until_it_is_back(tmp_path: Path, clock: Clock) -> None:
    async with serving(OPENAI, OPENAI.answer("News.")) as server:
        other = {**NEWS, "chat": "terminal:x"}
        async with gateway(configured(tmp_path, server, other, NEWS | {"name": "good"}), now=clock) as (daemon, chat):
            await until_stored(daemon, 2)
            clock.move(daemon, hours=1)
            assert (await chat.hear_message()).text == "News."
            (row,) = [each for each in await daemon.spool.schedules() if each.id == "config-news"]
            assert (row.failures, row.note) == (1, "The channel terminal is not enabled.")
            assert (await daemon.spool.schedules(SCOPE))[0].failures == 0
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ('cron = "0 0 31 2 *"', "is not a cron line"),
        ('cron = "nonsense"', "cron"),
        ('cron = "0 8 * * *"\nevery = 60', "must have one of cron, every and at"),
        ('cron = "0 8 * * *"\nzone = "Mars/Base"', "is not a time zone"),
        ('cron = "0 8 * * *"\nagent = "nobody"', "this agent does not exist"),
        ('cron = "0 8 * * *"\nrole = "nobody"', "this role does not exist"),
        ('every = 60\nchat_account = "work"', "is not an account of that channel"),
        ("every = 60\njitter = 50", "jitter of more than half"),
        ('cron = "0 8 * * *"\ncheck = { command = "ls", url = "https://example.org" }', "and not both"),
    ],
)
def test_a_mistake_in_the_configuration_is_named(tmp_path: Path, table: str, sentence: str) -> None:
    file = tmp_path / "gatehouse.toml"
    file.write_text(f'[[schedules]]\nname = "a"\nchat = "web:x"\nprompt = "hi"\n{table}\n')
    file.chmod(0o600)
    with pytest.raises(ConfigError) as found:
        load(file, {})
    assert sentence in str(found.value)
