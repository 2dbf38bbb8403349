"""A daemon that dies at every point of a conversation in turn, and at several one after the other."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.crash.daemons import daemons
from tests.crash.runs import run
from tests.crash.scale import SCALE
from tests.crash.scenarios import SCENARIOS

SHARDS = 2
STRIDE = max(1, 6 // SCALE)
"""Of how many points one is tried; `make crash` tries each."""


@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_nothing_is_lost_or_said_twice_wherever_it_dies(tmp_path: Path, scenario: str, shard: int) -> None:
    """The points are gone through until one is not reached any more: then all were."""
    plan = SCENARIOS[scenario]
    at, fired = 1 + shard * STRIDE, 0
    async with daemons() as forked:
        await run(plan, forked, tmp_path / "unharmed")
        while (await run(replace(plan, deaths=(at,)), forked, tmp_path / str(at))).fired:
            at, fired = at + SHARDS * STRIDE, fired + 1
    assert fired > 2, "there are points"


@pytest.mark.parametrize("seed", range(8 * SCALE))
async def test_nothing_is_lost_or_said_twice_however_often_it_dies(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)  # noqa: S311 - not for secrets
    async with daemons() as forked:
        for number in range(5):
            plan = SCENARIOS[dice.choice(sorted(SCENARIOS))]
            deaths = tuple(dice.randrange(1, 120) for _ in range(dice.randrange(2, 5)))
            await run(replace(plan, deaths=deaths), forked, tmp_path / str(number))


@pytest.mark.parametrize("seed", range(SCALE))
async def test_a_recovery_that_is_cut_twenty_times_comes_to_an_end(tmp_path: Path, seed: int) -> None:
    """The first death leaves work behind; those that follow come while it is being taken up."""
    dice = random.Random(seed)  # noqa: S311 - as above
    async with daemons() as forked:
        for scenario in SCENARIOS:
            deaths = (90, *(dice.randrange(1, 40) for _ in range(20)))
            await run(replace(SCENARIOS[scenario], deaths=deaths), forked, tmp_path / scenario)
