"""Many messages while nodes are killed, or restarted one after the other."""

import asyncio
from pathlib import Path
from random import Random

from tests.cluster.harness import LEASE, cluster
from tests.cluster.load import load
from tests.cluster.scale import IS_LONG, MESSAGES, report


async def test_random_kills_lose_and_repeat_nothing(tmp_path: Path, database_url: str) -> None:
    random = Random(18)  # noqa: S311 - not a secret.
    kills = 0
    async with cluster(tmp_path, database_url, "a", "b", "c") as nodes, load(nodes, messages=MESSAGES) as sending:
        while sending.is_running:
            await asyncio.sleep(random.uniform(0.5, 3))
            name = random.choice("abc")
            await nodes.kill(name)
            kills += 1
            # In the long form, every fourth stays away until the others have taken over. A start makes that needless.
            is_away = IS_LONG and kills % 4 == 0
            await asyncio.sleep(LEASE + 2 if is_away else random.uniform(0.1, 1.5))
            await nodes.start(name)
        outcome = await sending.outcome()
        report("random kills", kills=kills, outcome=outcome)
        assert outcome.faults == (0, 0, 0), outcome
        assert nodes.api.most_polls == 1


async def test_a_rolling_restart_is_not_noticed(tmp_path: Path, database_url: str) -> None:
    async with (
        cluster(tmp_path, database_url, "a", "b", "c") as nodes,
        load(nodes, messages=MESSAGES, may_fail=False) as sending,
    ):
        restarts = 0
        while restarts == 0 or (IS_LONG and sending.is_running):
            for name in "abc":
                assert await nodes.stop(name) == 0
                await nodes.start(name)
                restarts += 1
        outcome = await sending.outcome()
        report("rolling restart", restarts=restarts, outcome=outcome)
        assert outcome.faults == (0, 0, 0), outcome
        assert outcome.marked == 0
        assert nodes.api.most_polls == 1
        assert max(outcome.worst_wait, outcome.worst_api_wait) < (3 if IS_LONG else 30), outcome
