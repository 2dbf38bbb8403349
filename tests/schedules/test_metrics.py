"""Metrics and status of schedules: how many there are, and how their runs went."""

from pathlib import Path

import pytest

from gateway.spool import RunState
from tests.agent.wire import OPENAI, serving
from tests.daemon.harness import delivered, gateway
from tests.observability.scrape import scrape
from tests.schedules.harness import Clock, scheduled, told

RUNS = "gatehouse_schedule_runs_total"


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def test_schedules_are_counted_by_state_and_their_runs_by_outcome(tmp_path: Path, clock: Clock) -> None:
    async with (
        serving(OPENAI, OPENAI.answer("Done."), OPENAI.refusal(401, "invalid_api_key")) as server,
        gateway(scheduled(tmp_path, server), now=clock) as (daemon, chat),
    ):
        before = await scrape(tmp_path / "data")
        outcomes = set(RunState) - {RunState.RUNNING}
        assert before.values_of(RUNS, "outcome") == outcomes
        assert {before.value(RUNS, outcome=each) for each in outcomes} == {0}
        assert before.value("gatehouse_schedules", state="active") == 0
        await told(chat, "/schedule add every 1h Look")
        await told(chat, "/schedule add in 10m deliver=yes Pills")
        await told(chat, "/schedule add every 1w Rest")
        await told(chat, "/schedule pause 3")
        clock.move(daemon, minutes=10)
        assert (await chat.hear_message()).text == "Pills"
        for _ in range(2):
            clock.move(daemon, hours=1)
            await chat.hear_message()
            await delivered(daemon)
        after = await scrape(tmp_path / "data")
        status = (await daemon.status.report()).schedules
    found = {each: after.value(RUNS, outcome=each) for each in outcomes}
    assert found == {**dict.fromkeys(outcomes, 0), RunState.DONE: 1, RunState.DELIVERED: 1, RunState.FAILED: 1}
    counts = {each: after.value("gatehouse_schedules", state=each) for each in ("active", "paused", "failing")}
    assert counts == status == {"active": 1, "paused": 1, "failing": 1}
