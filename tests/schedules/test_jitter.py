"""Jitter: a run starts up to so much later than planned, at a time that is fixed for each run."""

from datetime import timedelta
from pathlib import Path

import pytest

from gateway.spool import RunState
from tests.agent.wire import OPENAI, serving
from tests.daemon.harness import delivered, gateway
from tests.schedules.harness import START, Clock, runs_of, scheduled, the_schedule, told

PLANNED = START + timedelta(hours=1)
HOUR = timedelta(hours=1)


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def test_a_run_is_late_by_its_jitter_and_the_next_one_by_another(tmp_path: Path, clock: Clock) -> None:
    async with (
        serving(OPENAI, OPENAI.answer("One."), OPENAI.answer("Two.")) as server,
        gateway(scheduled(tmp_path, server), now=clock) as (daemon, chat),
    ):
        await told(chat, '/schedule add "0 * * * *" jitter=30m Look')
        row = await the_schedule(daemon)
        assert row.due_at is not None
        assert PLANNED < row.due_at < PLANNED + HOUR / 2, "the first run is late, too"
        late = row.due_at
        clock.move(daemon, hours=1)  # Its planned time has come, and not yet that of its jitter.
        await told(chat, "/schedules")
        assert (await the_schedule(daemon)).due_at == late
        assert not server.requests
        clock.now = late
        clock.move(daemon)
        assert (await chat.hear_message()).text == "One."
        await delivered(daemon)
        (run,) = await runs_of(daemon)
        assert (run.state, run.planned_at) == (RunState.DONE, PLANNED)
        after = await the_schedule(daemon)
        assert after.planned_at == PLANNED + HOUR
        assert after.due_at is not None
        assert after.planned_at < after.due_at < after.planned_at + HOUR / 2
        assert after.due_at - after.planned_at != late - PLANNED
        clock.now = after.due_at
        clock.move(daemon)
        assert (await chat.hear_message()).text == "Two."
    assert "This was due" not in str(server.requests[0].body), "a run that its jitter delays is not late"


async def test_a_restart_between_the_planned_time_and_the_jitter_changes_nothing(tmp_path: Path, clock: Clock) -> None:
    async with serving(OPENAI, OPENAI.answer("One.")) as server:
        async with gateway(scheduled(tmp_path, server), now=clock) as (daemon, chat):
            await told(chat, '/schedule add "0 * * * *" jitter=30m Look')
            late = (await the_schedule(daemon)).due_at
            assert late is not None
        clock.now = PLANNED
        async with gateway(scheduled(tmp_path, server), now=clock) as (daemon, chat):
            await told(chat, "/schedules")
            assert (await the_schedule(daemon)).due_at == late
            clock.now = late
            clock.move(daemon)
            assert (await chat.hear_message()).text == "One."
    assert len(server.requests) == 1


async def test_a_schedule_that_goes_on_keeps_its_jitter_over_a_restart(tmp_path: Path, clock: Clock) -> None:
    async with serving(OPENAI, OPENAI.answer("One.")) as server:
        async with gateway(scheduled(tmp_path, server), now=clock) as (daemon, chat):
            await told(chat, '/schedule add "0 * * * *" jitter=30m Look')
            await told(chat, "/schedule pause 1")
            await told(chat, "/schedule resume 1")
            row = await the_schedule(daemon)
            assert (row.planned_at, row.due_at == PLANNED) == (PLANNED, False)
        clock.now = PLANNED
        async with gateway(scheduled(tmp_path, server), now=clock) as (daemon, chat):
            await told(chat, "/schedules")
            assert (await the_schedule(daemon)).due_at == row.due_at, "the run was dropped"
            clock.move(daemon, minutes=30)
            assert (await chat.hear_message()).text == "One."
