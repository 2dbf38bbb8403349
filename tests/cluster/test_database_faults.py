"""PostgreSQL dies, hangs or loses its connections under load, and a standby takes over."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random

from gateway.cli.common import EXIT_BUG
from tests.cluster.harness import Cluster, cluster
from tests.cluster.load import Load, Outcome, load
from tests.cluster.scale import IS_LONG, report
from tests.postgres.fixtures import NewPostgres, NewProxy
from tests.postgres.server import PostgresServer, url_of_both

FAULTS = 40 if IS_LONG else 4


def kill(server: PostgresServer) -> None:
    server.kill()
    server.start()


def stop_at_once(server: PostgresServer) -> None:
    server.stop("immediate")
    server.start()


async def strike(nodes: Cluster, sending: Load, faults: Sequence[Callable[[], object]]) -> list[int]:
    """Let the faults happen in turns while messages come in. Returns the exit codes of nodes that have ended."""
    random = Random(4)  # noqa: S311 - not a secret.
    async with nodes.restarted() as codes:
        for number in range(FAULTS):
            await asyncio.sleep(random.uniform(0.3, 1.0))
            if not sending.is_running:
                break
            await asyncio.to_thread(faults[number % len(faults)])
        await sending.outcome()
    return codes


def check(test: str, nodes: Cluster, outcome: Outcome, **figures: object) -> None:
    report(test, **figures, outcome=outcome)
    assert outcome.faults == (0, 0, 0), outcome
    assert nodes.api.most_polls == 1


async def test_a_database_that_dies_and_comes_back_loses_nothing(tmp_path: Path, new_postgres: NewPostgres) -> None:
    server = new_postgres()
    async with (
        cluster(tmp_path, server.new_database(), "a", "b") as nodes,
        load(nodes) as sending,
    ):
        codes = await strike(nodes, sending, [partial(kill, server), partial(stop_at_once, server)])
        check("PostgreSQL killed", nodes, await sending.outcome(), ended=codes)


async def test_connections_that_are_cut_in_a_commit_lose_nothing(
    tmp_path: Path, database_url: str, new_proxy: NewProxy
) -> None:
    proxies = {name: new_proxy(database_url) for name in "ab"}
    async with cluster(tmp_path, database_url) as nodes:
        for name, proxy in proxies.items():
            await nodes.start(name, url=proxy.url)
        faults = [
            fault
            for proxy in proxies.values()
            for fault in (partial(proxy.cut_before, b"COMMIT"), partial(proxy.cut_after, b"COMMIT"), proxy.cut)
        ]
        async with load(nodes) as sending:
            codes = await strike(nodes, sending, faults)
            check("connections cut", nodes, await sending.outcome(), ended=codes)


async def test_a_promoted_standby_with_every_commit_loses_nothing(tmp_path: Path, new_postgres: NewPostgres) -> None:
    primary = new_postgres()
    url = primary.new_database()
    standby = new_postgres(primary=primary)
    primary.configure("synchronous_standby_names", "*")
    async with (
        cluster(tmp_path, url_of_both(url, standby), "a", "b") as nodes,
        load(nodes) as sending,
    ):
        async with nodes.restarted() as codes:
            await asyncio.sleep(1.5)
            await asyncio.to_thread(primary.kill)
            await asyncio.to_thread(standby.promote)
            outcome = await sending.outcome()
        check("synchronous standby promoted", nodes, outcome, ended=codes)


async def test_nodes_go_on_with_what_an_asynchronous_standby_has(tmp_path: Path, new_postgres: NewPostgres) -> None:
    """The last messages are lost, as the setting of the servers allows. The nodes notice that, and start again."""
    primary = new_postgres()
    url = primary.new_database()
    standby = new_postgres(primary=primary)
    async with cluster(tmp_path, url_of_both(url, standby), "a", "b") as nodes, nodes.restarted() as codes:
        await nodes.say(1, "m0")
        await nodes.answered(1, "m0")
        await nodes.until(lambda: has_answer(standby, url))
        await asyncio.to_thread(standby.stop)
        await nodes.say(1, "m1")
        await nodes.answered(1, "m1")
        await asyncio.to_thread(primary.kill)
        await asyncio.to_thread(standby.start)
        await asyncio.to_thread(standby.promote)
        await nodes.say(1, "m2")
        await nodes.answered(1, "m2")
        report("asynchronous standby promoted", ended=codes)
        assert EXIT_BUG in codes
        assert [text for text in nodes.shown()[1] if "m1" in text] == ["answer m1"], "it was answered once"


def has_answer(standby: PostgresServer, url: str) -> bool:
    name = url.partition("///")[2].partition("?")[0]
    return standby.execute("SELECT count(*) FROM outbox WHERE state = 'delivered'", database=name) == [(1,)]
