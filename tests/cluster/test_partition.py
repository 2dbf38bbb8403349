"""The network between one node and the database fails. It stops in time, and the others take over."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import psycopg
import pytest

from gateway.cli.common import EXIT_BUG
from gateway.cluster.node import SHARDS_PER_STEP
from gateway.shards import shard_of
from tests.cluster.harness import CONFIG, LEASE, cluster
from tests.cluster.load import load
from tests.cluster.scale import report
from tests.postgres.fixtures import NewProxy
from tests.postgres.proxy import PostgresProxy


def hang(proxy: PostgresProxy) -> None:
    """Let no packet through, as a firewall that drops them."""
    proxy.stall()


def refuse(proxy: PostgresProxy) -> None:
    """Cut the connections, and refuse new ones."""
    proxy.refuse()
    proxy.cut()


@pytest.mark.parametrize("fault", [hang, refuse])
async def test_a_node_without_the_database_stops_before_others_take_over(
    tmp_path: Path, database_url: str, new_proxy: NewProxy, fault: Callable[[PostgresProxy], None]
) -> None:
    proxies = {name: new_proxy(database_url) for name in "ab"}
    async with cluster(tmp_path, database_url) as nodes:
        for name, proxy in proxies.items():
            await nodes.start(name, url=proxy.url)
        await nodes.all_serve()
        async with load(nodes) as sending:
            await asyncio.sleep(1)
            cut = await nodes.poller()
            other = "ab".replace(cut, "")
            started = monotonic()
            fault(proxies[cut])
            await asyncio.to_thread(nodes.nodes[other].wait_for, "nodes_expired")
            took_over = monotonic() - started
            # Its turns and its posts ended before that. The process waits for no answer of the database.
            code = await asyncio.to_thread(nodes.nodes[cut].process.wait, 60)
            ended = monotonic() - started
            assert code == EXIT_BUG
            assert ended < LEASE + 20
            assert "could not be reached" in nodes.nodes[cut].errors()
            assert not [event for event in nodes.nodes[cut].log if "exception" in event], "it is not a bug"
            proxies[cut].resume()
            proxies[cut].accept()
            await nodes.start(cut)
            outcome = await sending.outcome()
        report(f"partition ({fault.__name__})", lease=LEASE, took_over=took_over, ended=ended, outcome=outcome)
        assert outcome.faults == (0, 0, 0), outcome
        assert nodes.api.most_polls == 1


async def test_a_node_that_is_cut_off_while_it_starts_ends(
    tmp_path: Path, database_url: str, new_proxy: NewProxy
) -> None:
    """It has continued a turn by then, which another node may take over."""
    proxy = new_proxy(database_url)
    config = CONFIG.replace("[storage]\n", "[storage]\nlock_timeout = 1\n")
    chat, other = "agent:main:telegram:direct:5", "agent:main:telegram:direct:7"
    assert shard_of(chat) // SHARDS_PER_STEP == shard_of(other) // SHARDS_PER_STEP
    async with cluster(tmp_path, database_url, "a", config=config) as nodes:
        for peer in (5, 7):
            await nodes.say(peer, "m0 wait")
            await nodes.model.has_waiting(1 if peer == 5 else 2)
        await nodes.kill("a")
        with psycopg.connect(database_url) as connection:
            # Its row is locked, so that the start comes no further.
            connection.execute("UPDATE inbox SET attempts = 3 WHERE scope = %s", [other])
            connection.execute("UPDATE node SET renewed_at = now() - interval '1 hour'")
            connection.commit()
            connection.execute("SELECT 1 FROM inbox WHERE scope = %s FOR UPDATE", [other])
            await nodes.start("b", url=proxy.url, is_ready=False)
            await nodes.model.has_waiting(3)
            refuse(proxy)
            assert await asyncio.to_thread(nodes.nodes["b"].process.wait, 60) == EXIT_BUG
        assert "could not be reached" in nodes.nodes["b"].errors()
