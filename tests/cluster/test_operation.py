"""What an operator sees of a cluster: status, readiness, metrics and doctor."""

import asyncio
import json
from pathlib import Path

import aiohttp

from tests.cluster.harness import HTTP_TOKEN, LEASE, cluster
from tests.daemon_process import DaemonProcess, gatehouse, write_config
from tests.observability.scrape import ScrapedMetrics, scrape
from tests.polling import POLL_INTERVAL

SHARDS = 256.0


async def until_status(node: DaemonProcess, status: str) -> list[str]:
    """Wait until `/readyz` has this status, and return the warnings there."""
    headers = {"Authorization": f"Bearer {HTTP_TOKEN}"}
    async with aiohttp.ClientSession(headers=headers) as client:
        while True:
            async with client.get(f"{node.url}/readyz") as response:
                found = await response.json()
            if found["status"] == status:
                return list(found["warnings"])
            await asyncio.sleep(POLL_INTERVAL)


async def until_taken_over(node: DaemonProcess) -> ScrapedMetrics:
    """Wait until a node has taken over from another one, and return its metrics."""
    while True:
        seen = await scrape(node.data)
        if seen.value("gatehouse_cluster_last_takeover_timestamp_seconds"):
            return seen
        await asyncio.sleep(POLL_INTERVAL)


async def test_other_settings_and_a_takeover_are_shown(tmp_path: Path, database_url: str) -> None:
    async with cluster(tmp_path, database_url, "a") as nodes, asyncio.timeout(120):
        path = tmp_path / "a" / "gatehouse.toml"
        await until_status(nodes.nodes["a"], "ready")
        await nodes.start("b")
        await nodes.say(1, "m0")
        await nodes.answered(1, "m0")
        status = await asyncio.to_thread(gatehouse, "cluster", "status", home=tmp_path / "a")
        assert status.returncode == 0, status.stdout

        # The file of one node is changed, and applied there only.
        write_config(path.parent, f"{path.read_text()}\n[limits]\ntokens_per_turn = 4711\n")
        await asyncio.to_thread(gatehouse, "reload", home=path.parent)
        for name in "ab":
            (found,) = await until_status(nodes.nodes[name], "degraded")
            assert found.startswith("The settings of another node of the cluster differ")
        status = await asyncio.to_thread(gatehouse, "cluster", "status", home=tmp_path / "a")
        assert "Its settings differ from those of the other nodes." in status.stdout
        doctor = await asyncio.to_thread(gatehouse, "doctor", "--json", "--local", home=tmp_path / "a")
        messages = [finding["message"] for finding in json.loads(doctor.stdout)["findings"]]
        assert "2 nodes running: a, b." in messages
        assert "The settings of the node b differ from those of this gateway." in messages

        await nodes.kill("a")
        seen = await until_taken_over(nodes.nodes["b"])
        assert seen.value("gatehouse_cluster_nodes") == 1
        assert seen.value("gatehouse_cluster_takeovers_total") == 1
        assert seen.value("gatehouse_cluster_shards") == SHARDS
        assert LEASE <= seen.value("gatehouse_cluster_last_takeover_seconds") < LEASE + 60
        assert len(seen.values_of("gatehouse_cluster_shard_arrivals", "shard")) == SHARDS
