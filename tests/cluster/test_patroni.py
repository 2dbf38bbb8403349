"""PostgreSQL under Patroni: the primary dies, and the nodes go on at the new one."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from time import monotonic

import pytest

from tests.cluster.harness import cluster
from tests.cluster.load import load
from tests.cluster.patroni import Patroni, missing_programs
from tests.cluster.scale import IS_LONG, report


@pytest.fixture
def patroni() -> Iterator[Patroni]:
    """Yield two servers. `make cluster` installs the programs and runs these tests."""
    if not IS_LONG:
        pytest.skip("a failover of Patroni takes a minute; run `make cluster`")
    if missing := missing_programs():
        pytest.skip(f"{missing} not installed; run `make cluster` as root")
    with closing(Patroni()) as servers:
        servers.create_database()
        yield servers


async def test_the_nodes_go_on_at_the_new_primary(tmp_path: Path, patroni: Patroni) -> None:
    async with cluster(tmp_path, patroni.url, "a", "b", "c") as nodes, load(nodes, messages=3_000) as sending:
        async with nodes.restarted() as codes:
            await asyncio.sleep(5)
            killed = await asyncio.to_thread(patroni.await_primary)
            started = monotonic()
            await asyncio.to_thread(killed.kill)
            primary = await asyncio.to_thread(patroni.await_primary)
            promoted = monotonic() - started
            assert primary is not killed
            killed.start()
            await asyncio.to_thread(patroni.await_standby)
            rejoined = monotonic() - started
            outcome = await sending.outcome()
        report("Patroni failover", promoted=promoted, rejoined=rejoined, ended=codes, outcome=outcome)
        assert outcome.faults == (0, 0, 0), outcome
        assert nodes.api.most_polls == 1
