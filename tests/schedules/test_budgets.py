"""What the runs of a schedule may cost: tokens of a run, and money of a day."""

from pathlib import Path

import pytest

from gateway.spool import RunState
from tests.agent.wire import OPENAI, Call, serving
from tests.daemon.harness import delivered, gateway, settings
from tests.polling import until
from tests.schedules.harness import Clock, runs_of, scheduled, the_schedule, told

PRICES = {"m": {"input_price": 1.0, "output_price": 10.0}}


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def test_a_run_stops_before_the_request_that_follows_its_last_token(tmp_path: Path, clock: Clock) -> None:
    first = OPENAI.answer(calls=[Call("current_time", ["{}"], id="1")], tokens=(900, 200))
    async with (
        serving(OPENAI, first, OPENAI.answer("Never.")) as server,
        gateway(scheduled(tmp_path, server), now=clock) as (daemon, chat),
    ):
        await told(chat, "/schedule add every 1h tokens=1000 Look")
        clock.move(daemon, hours=1)
        heard = await chat.hear_message()
        assert heard.text.startswith("Schedule 1 (Look) has failed: This run has used 1,100 of 1,000 tokens")
        await delivered(daemon)
        (run,) = await runs_of(daemon)
        assert (run.state, run.tokens) == (RunState.FAILED, 1_100)
        assert "Budget: 1,000 tokens a run" in (await told(chat, "/schedule show 1")).text
    assert len(server.requests) == 1


async def test_a_run_within_its_tokens_is_answered(tmp_path: Path, clock: Clock) -> None:
    async with (
        serving(OPENAI, OPENAI.answer("One.", tokens=(900, 200)), OPENAI.answer("Two.", tokens=(900, 200))) as server,
        gateway(scheduled(tmp_path, server), now=clock) as (daemon, chat),
    ):
        await told(chat, "/schedule add every 1h tokens=1000 Look")
        for text in ("One.", "Two."):  # The tokens of the run before do not count.
            clock.move(daemon, hours=1)
            assert (await chat.hear_message()).text == text
            await delivered(daemon)
    assert len(server.requests) == 2


async def test_a_budget_of_money_stops_the_runs_of_a_day(tmp_path: Path, clock: Clock) -> None:
    replies = [OPENAI.answer(text, tokens=(1_000, 200)) for text in ("One.", "Two.", "Three.")]  # Each costs 0.003.
    async with serving(OPENAI, *replies) as server:
        agents = {"main": {"provider": "fake", "model": "m"}}
        configured = settings(tmp_path, providers={"fake": server.table(models=PRICES)}, agents=agents)
        async with gateway(configured, now=clock) as (daemon, chat):
            await told(chat, "/schedule add every 1h cost_per_day=0.005 Look")
            for text in ("One.", "Two."):
                clock.move(daemon, hours=1)
                assert (await chat.hear_message()).text == text
                await delivered(daemon)
            assert (await the_schedule(daemon)).spent_micros == 6_000
            clock.move(daemon, hours=1)
            heard = await chat.hear_message()
            assert heard.text == "Schedule 1 (Look) waits until tomorrow: its budget of today is used up."
            clock.move(daemon, hours=1)

            async def has_skipped_two() -> bool:
                run = (await runs_of(daemon))[0]
                return (run.state, run.times) == (RunState.SKIPPED, 2)

            await until(has_skipped_two)
            clock.move(daemon, hours=8)  # It is midnight.
            assert (await chat.hear_message()).text == "Three."
            assert "Budget: a cost of 0.005 a day" in (await told(chat, "/schedule show 1")).text
    assert len(server.requests) == 3
