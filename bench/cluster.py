"""Measures a cluster: three nodes against a single gateway, messages between nodes, and the death of nodes.

All of them are on this machine with one PostgreSQL, whose fsync is on. So the three nodes share the cores that the
single gateway has for itself: this shows what a cluster costs, not how far it scales.

`BENCH_CLUSTER_PARTS` names some of the parts `speed`, `begin` and `takeover`. `BENCH_ROUNDS` and `BENCH_KILLS` are for
a quick look.
"""

import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from random import Random
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import NamedTuple

from bench.cluster_node import Node, Trip, ask, chat_owned, stop_listening, talk, talk_elsewhere
from bench.process import cpu_ms
from bench.storage import storage_server
from bench.table import Row
from gateway.shards import SHARD_COUNT
from tests.postgres.server import PostgresServer

PARTS = os.environ.get("BENCH_CLUSTER_PARTS", "speed begin takeover").split()
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
KILLS = int(os.environ.get("BENCH_KILLS", "50"))
NODES = 3
CHATS, WARM_UP, MESSAGES, ONE_BY_ONE = 48, 10, 60, 200
"""Chats of all nodes together; messages in each of them; and those in one chat."""
BEGUN_P50_MS = 10.0
POLLED, POLLED_CHATS = 8, 8
LEASES = (8.0, 4.0)
TAKEOVER_GRACE = 2.0
BALANCE_TIMEOUT = 60.0


class Cluster(NamedTuple):
    """Some nodes and their database. `nodes` changes when one is killed."""

    nodes: list[Node]
    server: PostgresServer
    url: str
    start: Callable[[int], Node]

    def await_balance(self) -> None:
        """Wait until each node has its share of the shards."""
        deadline = perf_counter() + BALANCE_TIMEOUT
        share = ceil(SHARD_COUNT / len(self.nodes))
        while True:
            rows = self.server.execute(
                "SELECT count(*) FROM shard JOIN node ON node.boot = shard.owner GROUP BY node.boot", database=self.url
            )
            counts = [count for (count,) in rows]
            if len(counts) == len(self.nodes) and max(counts) <= share and sum(counts) == SHARD_COUNT:
                return
            assert perf_counter() < deadline, f"the shards are not divided: {counts}"
            sleep(0.1)


class Speed(NamedTuple):
    rate: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    """CPU time of all nodes for a message."""
    server_cpu_ms: float
    own_p50_ms: float
    """A message in one chat, at the node that owns it."""
    foreign_p50_ms: float
    """At a node that does not own it."""


def rows() -> Iterator[Row]:
    with storage_server() as server:
        if "speed" in PARTS:
            yield from _speed(server)
        if "begin" in PARTS:
            yield from _begin(server)
        if "takeover" in PARTS:
            for lease in LEASES:
                yield _takeover(server, lease)


def _speed(server: PostgresServer) -> Iterator[Row]:
    kinds = {"cluster off": 0, "1 node": 1, f"{NODES} nodes": NODES}
    runs: dict[str, list[Speed]] = {name: [] for name in kinds}
    for _ in range(ROUNDS):
        for name, size in kinds.items():
            with _cluster(server, size) as cluster:
                runs[name].append(_measure(cluster))
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    base, *others = runs
    for name in others:
        # Each ratio is that of one round, since the load of the machine changes.
        ratio = {
            field: median(
                getattr(run, field) / getattr(off, field) for run, off in zip(runs[name], runs[base], strict=True)
            )
            for field in ("rate", "cpu_ms", "server_cpu_ms")
        }
        ours, off = _medians(runs[name]), _medians(runs[base])
        yield Row(
            what=f"{name}, cluster on: {CHATS} chats, one message each at a time",
            measured=f"{_busy(ours)}; {ratio['rate']:.2f}x the rate, {ratio['cpu_ms']:.2f}x the CPU, "
            f"{ratio['server_cpu_ms']:.2f}x that of the server",
            baseline=f"{base}: {_busy(off)}; load {os.getloadavg()[0]:.1f}",
            target="reported",
            is_met=True,
        )
        yield Row(
            what=f"{name}, cluster on: one chat",
            measured=f"p50 {ours.own_p50_ms:.2f} ms"
            + (f", from another node {ours.foreign_p50_ms:.2f} ms" if kinds[name] > 1 else ""),
            baseline=f"{base}: p50 {off.own_p50_ms:.2f} ms",
            target="reported",
            is_met=True,
        )


def _busy(run: Speed) -> str:
    return (
        f"{run.rate:.0f}/s, p50 {run.p50_ms:.0f} ms, p99 {run.p99_ms:.0f} ms, "
        f"CPU {run.cpu_ms:.2f} ms, server {run.server_cpu_ms:.2f} ms"
    )


def _medians(runs: Sequence[Speed]) -> Speed:
    return Speed(*(median(values) for values in zip(*runs, strict=True)))


def _measure(cluster: Cluster) -> Speed:
    chats = CHATS // len(cluster.nodes)
    _at_all(cluster, talk, chats, WARM_UP)
    cpu, server_cpu = _cpu(cluster), _server_cpu(cluster)
    trips = _at_all(cluster, talk, chats, MESSAGES)
    cpu, server_cpu = _cpu(cluster) - cpu, _server_cpu(cluster) - server_cpu
    seconds = max(trip.answered for trip in trips) - min(trip.said for trip in trips)
    took = [trip.took_ms for trip in trips]
    first, last = cluster.nodes[0], cluster.nodes[-1]
    chats_of_last = last.call(chat_owned, last.number), last.call(chat_owned, first.number)
    own, foreign = last.call(ask, chats_of_last[0], ONE_BY_ONE), first.call(ask, chats_of_last[1], ONE_BY_ONE)
    return Speed(
        rate=len(trips) / seconds,
        p50_ms=median(took),
        p99_ms=quantiles(took, n=100)[-1],
        cpu_ms=cpu / len(trips),
        server_cpu_ms=server_cpu / len(trips),
        own_p50_ms=median(trip.took_ms for trip in own[ONE_BY_ONE // 10 :]),
        foreign_p50_ms=median(trip.took_ms for trip in foreign[ONE_BY_ONE // 10 :]),
    )


def _at_all(cluster: Cluster, function: Callable[..., Awaitable[list[Trip]]], *arguments: object) -> list[Trip]:
    """Call a function at all nodes at the same time."""
    for node in cluster.nodes:
        node.start(function, *arguments)
    return [trip for node in cluster.nodes for trip in node.result()]


def _cpu(cluster: Cluster) -> float:
    return sum(cpu_ms(node.pid) for node in cluster.nodes)


def _server_cpu(cluster: Cluster) -> float:
    """Return the CPU milliseconds of the server's processes, without those that have ended."""
    return sum(
        cpu_ms(pid)
        for (pid,) in cluster.server.execute("SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    )


def _begin(server: PostgresServer) -> Iterator[Row]:
    with _cluster(server, NODES) as cluster:
        first, last = cluster.nodes[0], cluster.nodes[-1]
        chat = last.call(chat_owned, first.number)
        first.call(ask, chat, 1)  # The first message of a chat starts a session.
        notified = [trip.until_begun_ms for trip in first.call(ask, chat, ONE_BY_ONE, 0.05)]
        yield Row(
            what="accepted at one node, begun at another",
            measured=f"p50 {median(notified):.1f} ms, p99 {quantiles(notified, n=100)[-1]:.1f} ms",
            baseline=f"load {os.getloadavg()[0]:.1f}",
            target=f"p50 < {BEGUN_P50_MS:g} ms",
            is_met=median(notified) < BEGUN_P50_MS,
        )
        for node in cluster.nodes:
            node.call(stop_listening)
        trips = _at_all(cluster, talk_elsewhere, POLLED_CHATS, POLLED, 1.0)
        polled = sorted(trip.until_begun_ms for trip in trips)
        yield Row(
            what="the same without notifications",
            measured=f"p50 {median(polled):.0f} ms, p99 {quantiles(polled, n=100)[-1]:.0f} ms",
            baseline="",
            target="reported",
            is_met=True,
        )


def _takeover(server: PostgresServer, lease: float) -> Row:
    """Kill the owner of a chat, and say something in it at another node at once."""
    random = Random(KILLS)  # noqa: S311 - not a secret.
    took = []
    with _cluster(server, NODES, lease) as cluster:
        for _ in range(KILLS):
            cluster.await_balance()
            victim, other, *_ = random.sample(range(NODES), NODES)
            node, witness = cluster.nodes[victim], cluster.nodes[other]
            chat = node.call(chat_owned, witness.number)
            witness.call(ask, chat, 1)
            sleep(random.uniform(0, lease / 4))  # A quiet node renews its lease four times before it ends.
            killed = perf_counter()
            node.kill()
            took.append(witness.call(ask, chat, 1)[0].answered - killed)
            cluster.nodes[victim] = cluster.start(victim)
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    p90 = quantiles(took, n=10, method="inclusive")[-1] if len(took) > 1 else took[0]
    return Row(
        what=f"kill -9 of the owner of a chat until its next message is answered, lease {lease:g} s, {KILLS} kills",
        measured=f"min {min(took):.1f} s, p50 {median(took):.1f} s, p90 {p90:.1f} s, max {max(took):.1f} s",
        baseline=f"load {os.getloadavg()[0]:.1f}",
        target=f"max <= {lease + TAKEOVER_GRACE:g} s",
        is_met=max(took) <= lease + TAKEOVER_GRACE,
    )


@contextmanager
def _cluster(server: PostgresServer, size: int, lease: float = 8.0) -> Iterator[Cluster]:
    """Run so many nodes on a new database; with size 0, a single gateway without a cluster."""
    url = server.new_database()
    with TemporaryDirectory() as name:
        folder = Path(name)

        def start(number: int) -> Node:
            node = Node(_settings(folder, number, url, lease, is_cluster=size > 0), number, folder)
            node.result()
            return node

        cluster = Cluster([], server, url, start)
        try:
            cluster.nodes.extend(start(number) for number in range(max(1, size)))
            if size > 0:
                cluster.await_balance()
            yield cluster
        finally:
            for node in cluster.nodes:
                node.stop()
            server.drop_database(url)


def _settings(folder: Path, number: int, url: str, lease: float, *, is_cluster: bool) -> dict[str, object]:
    cluster = {"enabled": True, "name": f"node{number}", "lease_seconds": lease, "address": "http://127.0.0.1:1"}
    return {
        "gateway": {"data_dir": folder / f"node{number}"},
        "storage": {"url": url},
        "http": {"token": "bench-token-0123456789"},
        "cluster": cluster if is_cluster else {},
        "channels": {"web": {"enabled": False}, "terminal": {"enabled": False}, "loopback": {}},
    }
