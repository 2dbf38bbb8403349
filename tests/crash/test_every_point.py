"""Kills daemons at every kill point of a conversation, and at several points one after the other."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.crash.daemons import daemons
from tests.crash.scale import SCALE
from tests.crash.scenario_run import run
from tests.crash.scenarios import SCENARIOS

SHARDS = 2
STRIDE = max(1, 6 // SCALE)
"""The distance between tried kill points. `make crash` tries each."""


@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_no_message_is_lost_or_answered_twice_after_a_death_at_any_point(
    tmp_path: Path, scenario: str, shard: int
) -> None:
    """Tries higher and higher points until the daemon finishes before it reaches one."""
    plan = SCENARIOS[scenario]
    at, deaths = 1 + shard * STRIDE, 0
    async with daemons() as forked:
        await run(plan, forked, tmp_path / "unharmed")
        while await run(replace(plan, deaths=(at,)), forked, tmp_path / str(at)):
            at, deaths = at + SHARDS * STRIDE, deaths + 1
    assert deaths > 2, "the daemon reached no kill points"


@pytest.mark.parametrize("seed", range(8 * SCALE))
async def test_no_message_is_lost_or_answered_twice_after_repeated_deaths(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - not for secrets
    async with daemons() as forked:
        for number in range(5):
            plan = SCENARIOS[rng.choice(sorted(SCENARIOS))]
            deaths = tuple(rng.randrange(1, 120) for _ in range(rng.randrange(2, 5)))
            await run(replace(plan, deaths=deaths), forked, tmp_path / str(number))


@pytest.mark.parametrize("seed", range(SCALE))
async def test_recovery_succeeds_after_twenty_deaths_during_recovery(tmp_path: Path, seed: int) -> None:
    """The first death leaves unfinished work. The next daemons die while they recover it."""
    rng = random.Random(seed)  # noqa: S311 - as above
    async with daemons() as forked:
        for scenario in SCENARIOS:
            deaths = (90, *(rng.randrange(1, 40) for _ in range(20)))
            await run(replace(SCENARIOS[scenario], deaths=deaths), forked, tmp_path / scenario)
