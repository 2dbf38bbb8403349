"""Real nodes with the configuration of deploy/cluster, behind the real HAProxy with its configuration there."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import aiohttp

from tests.daemon_process import DaemonProcess, by_fork_with, gatehouse, write_config
from tests.deploy.proxy import PUBLIC_HOST, haproxy
from tests.deploy.test_cluster import FOLDER, NODES, SECRETS
from tests.ports import free_port

TIMEOUT = 90.0
LEASE = 3.0
SESSIONS = 4


@dataclass
class Site:
    """Three nodes, and a client of the proxy in front of them."""

    nodes: dict[str, DaemonProcess]
    client: aiohttp.ClientSession

    async def start_session(self) -> str:
        async with self.client.post("/api/sessions", json={"title": "x"}) as response:
            assert response.status == HTTPStatus.CREATED, await response.text()
            return str((await response.json())["id"])

    async def prompt(self, session: str, text: str) -> None:
        async with self.client.post(f"/api/sessions/{session}/prompt", json={"text": text}) as response:
            assert response.status == HTTPStatus.ACCEPTED, await response.text()

    async def answers(self, session: str, number: int) -> None:
        """Follow the events of a session from its beginning until this many turns were answered."""
        async with self.client.get(f"/api/sessions/{session}/events?since=0") as response:
            assert response.status == HTTPStatus.OK, await response.text()
            texts = set[str]()
            async for line in response.content:
                if line.startswith(b"data:"):
                    data = json.loads(line.removeprefix(b"data:"))
                    if data.get("role") == "agent":
                        texts.add(data["id"])
                if len(texts) >= number:
                    return
        raise AssertionError("the stream ended")

    async def chat(self, text: str) -> str:
        """Send a message by WebSocket, and return its answer."""
        async with self.client.ws_connect("/web/ws") as socket:
            await socket.send_json({"type": "message", "id": text.replace(" ", "-"), "text": text})
            while True:
                frame = await socket.receive_json()
                if frame["type"] == "message":
                    return str(frame["text"])


@asynccontextmanager
async def site(folder: Path, database_url: str) -> AsyncIterator[Site]:
    ports = [free_port() for _ in NODES]
    with ExitStack() as stack:
        nodes = {}
        for name, port in zip(NODES, ports, strict=True):
            home = folder / name
            home.mkdir()
            changes = {
                '"/var/lib/gatehouse"': f'"{home}/data"',
                '"0.0.0.0"': '"127.0.0.1"',
                "port = 8420": f"port = {port}",
                '"postgresql://gatehouse@postgres/gatehouse"': f'"{database_url}"',
                "enabled = true": f'enabled = true\nname = "{name}"\nlease_seconds = {LEASE}',
            }
            text = (FOLDER / "gatehouse.toml").read_text()
            for old, new in changes.items():
                assert text.count(old) == 1, old
                text = text.replace(old, new)
            write_config(home, text)
            start = by_fork_with("psycopg", "gateway.cluster.node")
            nodes[name] = await asyncio.to_thread(DaemonProcess, home, SECRETS, start)
            stack.enter_context(nodes[name])
        for node in nodes.values():
            await asyncio.to_thread(node.ready)
        url = stack.enter_context(haproxy(folder, ports))
        headers = {"Authorization": f"Bearer {SECRETS['GATEHOUSE_TOKEN']}", "Host": PUBLIC_HOST}
        async with aiohttp.ClientSession(url, headers=headers) as client, asyncio.timeout(TIMEOUT):
            yield Site(nodes=nodes, client=client)


async def test_requests_streams_and_chats_go_on_when_a_node_dies(tmp_path: Path, database_url: str) -> None:
    async with site(tmp_path, database_url) as cluster:
        sessions = [await cluster.start_session() for _ in range(SESSIONS)]
        for session in sessions:
            await cluster.prompt(session, "What time is it?")
        await asyncio.gather(*(cluster.answers(session, 1) for session in sessions))
        assert await cluster.chat("first")
        # The command has none of the secrets: the node itself sends requests to all nodes.
        doctor = await asyncio.to_thread(gatehouse, "doctor", "--local", home=cluster.nodes["two"].home)
        assert doctor.stdout.count("accepts requests of other nodes.") == len(NODES), doctor.stdout

        await asyncio.to_thread(cluster.nodes["one"].kill)
        await asyncio.gather(*(cluster.prompt(session, "And now?") for session in sessions))
        await asyncio.gather(*(cluster.answers(session, 2) for session in sessions))
        assert await cluster.chat("second")
        await check_wrong_tokens(cluster.client)


async def check_wrong_tokens(client: aiohttp.ClientSession) -> None:
    """To the nodes all callers are the proxy, so it limits each of them before the nodes refuse them all."""
    statuses = []
    for _ in range(8):
        async with client.get("/api/status", headers={"Authorization": "Bearer wrong"}) as response:
            statuses.append(response.status)
    assert statuses[:6] == [HTTPStatus.UNAUTHORIZED] * 6
    assert statuses[-1] == HTTPStatus.TOO_MANY_REQUESTS
