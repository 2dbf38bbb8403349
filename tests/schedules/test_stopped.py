"""Runs that are under way when their schedule is paused, deleted or removed, or when a person sends `/stop`."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from gateway.spool import RunState, ScheduleState
from tests.agent.wire import OPENAI, serving
from tests.daemon.harness import delivered, gateway
from tests.polling import until
from tests.schedules.harness import START, Clock, runs_of, scheduled, the_schedule, told

NEWS = {"name": "news", "cron": "0 13 * * *", "chat": "loopback:ada", "prompt": "Look at the news"}


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def test_stop_ends_a_run_that_is_under_way_and_the_schedule_goes_on(tmp_path: Path, clock: Clock) -> None:
    never = asyncio.Event()
    async with (
        serving(OPENAI, [never, *OPENAI.answer("Never.")], OPENAI.answer("Later.")) as server,
        gateway(scheduled(tmp_path, server), now=clock) as (daemon, chat),
    ):
        await told(chat, "/schedule add every 1h Look")
        clock.move(daemon, hours=1)
        await server.asked(1)
        assert (await told(chat, "/stop")).text == "Stopped."

        async def has_stopped() -> bool:
            return [run.state for run in await runs_of(daemon)] == [RunState.STOPPED]

        await until(has_stopped)
        row = await the_schedule(daemon)
        assert (row.state, row.failures, row.due_at) == (ScheduleState.ACTIVE, 0, START + timedelta(hours=2))
        clock.move(daemon, hours=1)
        assert (await chat.hear_message()).text == "Later."


@pytest.mark.parametrize(("command", "done"), [("pause", "is paused."), ("delete", "is deleted.")])
async def test_pausing_or_deleting_lets_a_run_end_and_says_so(
    tmp_path: Path, clock: Clock, command: str, done: str
) -> None:
    may_answer = asyncio.Event()
    async with (
        serving(OPENAI, [may_answer, *OPENAI.answer("Done.")]) as server,
        gateway(scheduled(tmp_path, server), now=clock) as (daemon, chat),
    ):
        await told(chat, "/schedule add every 1h Look")
        clock.move(daemon, hours=1)
        await server.asked(1)
        answer = (await told(chat, f"/schedule {command} 1")).text
        assert answer.startswith(f"Schedule 1 {done}")
        assert answer.endswith("A run is under way, and goes on. /stop ends it.")
        may_answer.set()
        assert (await chat.hear_message()).text == "Done."
        await delivered(daemon)
        assert [run.state for run in await runs_of(daemon)] == [RunState.DONE]
        assert (await the_schedule(daemon)).due_at is None


@pytest.mark.parametrize("command", ["pause", "delete"])
async def test_a_run_that_fails_after_its_schedule_was_halted_is_told_and_not_tried_again(
    tmp_path: Path, clock: Clock, command: str
) -> None:
    may_fail = asyncio.Event()
    async with (
        serving(OPENAI, [may_fail, *broken()]) as server,
        gateway(scheduled(tmp_path, server), now=clock) as (daemon, chat),
    ):
        await told(chat, "/schedule add every 1h Look")
        clock.move(daemon, hours=1)
        await server.asked(1)
        await told(chat, f"/schedule {command} 1")
        may_fail.set()
        heard = (await chat.hear_message()).text
        assert heard.startswith("Schedule 1 (Look) has failed: ")
        assert "try again" not in heard
        assert (await the_schedule(daemon)).due_at is None


def broken() -> list[bytes]:
    """Return a stream that says that the model has failed."""
    return [b'data: {"error": {"message": "It broke.", "type": "server_error", "code": "invalid_api_key"}}\n\n']


async def test_a_schedule_that_leaves_the_configuration_takes_its_run_with_it(tmp_path: Path, clock: Clock) -> None:
    never = asyncio.Event()
    async with (
        serving(OPENAI, [never, *OPENAI.answer("Never.")]) as server,
        gateway(scheduled(tmp_path, server, schedules=[NEWS]), now=clock) as (daemon, _),
    ):

        async def is_stored() -> bool:
            return bool(await daemon.spool.schedules())

        await until(is_stored)
        clock.move(daemon, hours=1)
        await server.asked(1)
        await daemon.reload(scheduled(tmp_path, server))

        async def has_ended() -> bool:
            states = [run.state for run in await runs_of(daemon)]
            return (states, (await the_schedule(daemon)).state) == ([RunState.STOPPED], ScheduleState.ENDED)

        await until(has_ended)
        assert (await the_schedule(daemon)).due_at is None
