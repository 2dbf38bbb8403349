"""A cluster on each version of PostgreSQL, and behind a connection pool."""

from pathlib import Path

from tests.cluster.harness import cluster
from tests.cluster.load import load
from tests.cluster.scale import report
from tests.postgres.fixtures import NewPgBouncer
from tests.postgres.server import PostgresServer


async def test_a_message_at_any_node_is_answered(tmp_path: Path, each_database_url: str) -> None:
    async with cluster(tmp_path, each_database_url, "a", "b") as nodes:
        await nodes.all_serve()
        async with load(nodes, messages=40, chats=20) as sending:
            outcome = await sending.outcome()
        assert outcome.faults == (0, 0, 0), outcome
        await nodes.kill(await nodes.poller())
        await nodes.say(1, "m2")
        await nodes.answered(1, "m2")


async def test_a_pool_that_swallows_notifications_delays_nothing_for_long(
    tmp_path: Path, postgres: PostgresServer, database_url: str, new_pgbouncer: NewPgBouncer
) -> None:
    """In transaction mode LISTEN has no effect. The nodes look for messages each second."""
    pool = new_pgbouncer(postgres, pool_size=4)
    async with cluster(tmp_path, database_url) as nodes:
        for name in "ab":
            await nodes.start(name, url=pool.url(database_url))
        await nodes.all_serve()
        async with load(nodes, messages=80, chats=40) as sending:
            outcome = await sending.outcome()
        report("PgBouncer", outcome=outcome)
        assert outcome.faults == (0, 0, 0), outcome
        assert nodes.api.most_polls == 1
