"""Kills daemons at every kill point of a conversation, and at several points one after the other."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.crash.daemons import daemons
from tests.crash.engines import DATABASE_MODULES, ENGINES, NewStorage
from tests.crash.scale import SCALE
from tests.crash.scenario_run import run
from tests.crash.scenarios import SCENARIOS

SHARDS = {"files": 2, "sqlite": 1, "postgresql": 1} if SCALE == 1 else {"files": 2, "sqlite": 4, "postgresql": 8}
"""Tests into which the kill points of a scenario are divided. Each has a time limit."""
STRIDES = {"files": max(1, 6 // SCALE), "sqlite": max(1, 20 // SCALE), "postgresql": max(1, 40 // SCALE)}
"""The distance between tried kill points. `make crash` tries each. All engines share most of the code."""


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize(("engine", "shard"), [(each, shard) for each in ENGINES for shard in range(SHARDS[each])])
async def test_no_message_is_lost_or_answered_twice_after_a_death_at_any_point(
    tmp_path: Path,
    storages: NewStorage,
    record_property: Callable[[str, object], None],
    engine: str,
    scenario: str,
    shard: int,
) -> None:
    """Tries higher and higher points until the daemon finishes before it reaches one."""
    plan, stride, shards = SCENARIOS[scenario], STRIDES[engine], SHARDS[engine]
    # Another offset for each scenario, so that all of them together try many points of the start.
    at, deaths = 1 + (shard * stride + 7 * list(SCENARIOS).index(scenario)) % (shards * stride), 0
    async with daemons(imports=() if engine == "files" else DATABASE_MODULES) as forked:
        await run(plan, forked, tmp_path / "unharmed", storages)
        while await run(replace(plan, deaths=(at,)), forked, tmp_path / str(at), storages):
            at, deaths = at + shards * stride, deaths + 1
    record_property("deaths", deaths)
    assert deaths > 2, "the daemon reached no kill points"


@pytest.mark.parametrize(
    ("engine", "seed"),
    [
        *(("files", seed) for seed in range(8 * SCALE)),
        *((engine, seed) for engine in ("sqlite", "postgresql") for seed in range(2 * SCALE)),
    ],
)
async def test_no_message_is_lost_or_answered_twice_after_repeated_deaths(
    tmp_path: Path, storages: NewStorage, engine: str, seed: int
) -> None:
    rng = random.Random(seed)  # noqa: S311 - not for secrets
    async with daemons(imports=() if engine == "files" else DATABASE_MODULES) as forked:
        for number in range(5):
            plan = SCENARIOS[rng.choice(sorted(SCENARIOS))]
            deaths = tuple(rng.randrange(1, 120) for _ in range(rng.randrange(2, 5)))
            await run(replace(plan, deaths=deaths), forked, tmp_path / str(number), storages)


@pytest.mark.parametrize("seed", range(SCALE))
@pytest.mark.parametrize("engine", ENGINES)
async def test_recovery_succeeds_after_twenty_deaths_during_recovery(
    tmp_path: Path, storages: NewStorage, engine: str, seed: int
) -> None:
    """The first death leaves unfinished work. The next daemons die while they recover it."""
    rng = random.Random(seed)  # noqa: S311 - as above
    async with daemons(imports=() if engine == "files" else DATABASE_MODULES) as forked:
        for scenario in SCENARIOS if engine == "files" or SCALE > 1 else ("tools", "asking"):
            deaths = (90, *(rng.randrange(1, 40) for _ in range(20)))
            await run(replace(SCENARIOS[scenario], deaths=deaths), forked, tmp_path / scenario, storages)
