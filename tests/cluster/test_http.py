"""Clients of a load balancer: every request may arrive at any node, whichever of them owns the conversation."""

import asyncio
import base64
import hashlib
import hmac
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count, cycle
from pathlib import Path
from typing import Any

import aiohttp
import psycopg
from aiohttp import WSMsgType

from gateway.sessions.keys import parse_key
from gateway.shards import shard_of
from tests.cluster.harness import HTTP_TOKEN, TIMEOUT, Cluster, cluster
from tests.daemon_process import gatehouse
from tests.postgres.fixtures import NewProxy

BEARER = {"Authorization": f"Bearer {HTTP_TOKEN}"}
SECRET = "the-secret-of-the-hook"
MORE = f"""
[files]
shared = "database"
[agents.careful]
provider = "fake"
model = "fake-model"
tools = ["write_file"]
ask = ["write_file"]
[channels.web]
[channels.webhook.hooks.bell]
secrets = ["{SECRET}"]
fields = {{ text = "/text" }}
prompt = "{{text}}"
answer = "sync"
"""

Json = Any  # The tests look into the responses.


@dataclass
class Client:
    """Talks to the nodes by their names."""

    nodes: Cluster
    http: aiohttp.ClientSession

    def url(self, name: str) -> str:
        return self.nodes.nodes[name].url

    async def call(
        self, node: str, method: str, path: str, body: Json = None, *, status: int | None = None, **headers: str
    ) -> Json:
        """Return the body of the response as JSON, or as text if it is none. Its status is `status`, or 2xx."""
        given = BEARER | {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.http.request(method, f"{self.url(node)}{path}", json=body, headers=given) as response:
            text = await response.text()
            assert response.ok if status is None else response.status == status, (node, method, path, text)
        try:
            return json.loads(text)
        except ValueError:
            return text

    async def messages(self, node: str, session: str) -> list[Json]:
        found: list[Json] = (await self.call(node, "GET", f"/api/sessions/{session}"))["messages"]
        return found

    async def texts(self, node: str, session: str) -> list[str]:
        return [each["content"].get("text", "") for each in await self.messages(node, session)]

    async def answered(self, node: str, session: str, text: str) -> None:
        await events(self, node, session, f"{session}:0", f"answer {text}")

    async def ring(self, node: str, text: str, call: str, *, status: int = 200, secret: str = SECRET) -> Json:
        """Call the hook."""
        body, at = json.dumps({"text": text}).encode(), str(int(time.time()))
        digest = hmac.digest(secret.encode(), f"{call}.{at}.".encode() + body, hashlib.sha256)
        headers = {
            "webhook-id": call,
            "webhook-timestamp": at,
            "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
            "Content-Type": "application/json",
        }
        async with self.http.post(f"{self.url(node)}/hooks/bell", data=body, headers=headers) as response:
            assert response.status == status, await response.text()
            return await response.json()

    @asynccontextmanager
    async def chat(self, node: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Open the chat of the owner, as a browser does."""
        async with self.http.ws_connect(f"{self.url(node)}/web/ws", headers=BEARER) as socket:
            assert (await frame(socket, "hello"))["name"] == "owner"
            yield socket

    async def owner(self, scope: str) -> str:
        """Return the name of the node that owns a scope."""
        query = "SELECT node.name FROM shard JOIN node ON boot = owner WHERE number = %s"
        async with await psycopg.AsyncConnection.connect(self.nodes.url) as connection:
            found = await (await connection.execute(query, (shard_of(scope),))).fetchone()
        return "" if found is None else str(found[0])

    async def scope_of(self, channel: str) -> str:
        """Return the scope of the only session of a channel."""
        query = "SELECT scope FROM session WHERE scope LIKE %s"
        async with await psycopg.AsyncConnection.connect(self.nodes.url) as connection:
            ((scope,),) = await (await connection.execute(query, (f"%:{channel}:%",))).fetchall()
        return str(scope)


@asynccontextmanager
async def clients(folder: Path, url: str) -> AsyncIterator[Client]:
    async with (
        cluster(folder, url, "a", "b", "c", more=MORE) as nodes,
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT)) as http,
    ):
        await nodes.all_serve()  # The tests know which node owns a conversation.
        yield Client(nodes, http)


async def frame(socket: aiohttp.ClientWebSocketResponse, kind: str, text: str = "") -> Json:
    """Return the next frame of a kind that has this text."""
    async with asyncio.timeout(TIMEOUT):
        while True:
            message = await socket.receive()
            assert message.type is WSMsgType.TEXT, message
            found = json.loads(message.data)
            if found["type"] == kind and text in found.get("text", ""):
                return found


async def say(socket: aiohttp.ClientWebSocketResponse, text: str, name: str) -> None:
    await socket.send_json({"type": "message", "id": name, "text": text})


async def closed(socket: aiohttp.ClientWebSocketResponse) -> int | None:
    """Wait until a socket is closed, and return its code."""
    async with asyncio.timeout(TIMEOUT):
        while (message := await socket.receive()).type is WSMsgType.TEXT:
            pass
    return message.data if message.type is WSMsgType.CLOSE else socket.close_code


async def events(client: Client, node: str, session: str, last: str, until: str) -> list[tuple[str, str]]:
    """Read the events of a session after `last`, up to one with the text `until`. Returns their ids and data."""
    found: list[tuple[str, str]] = []
    path, name = f"{client.url(node)}/api/sessions/{session}/events", ""
    async with client.http.get(path, headers=BEARER | {"Last-Event-ID": last}) as response:
        async for raw in response.content:
            line = raw.decode().strip()
            if line.startswith("id: "):
                name = line.removeprefix("id: ")
            elif line.startswith("data: "):
                found.append((name, line))
                if until in line:
                    return found
    raise AssertionError(found)


async def test_every_node_serves_every_conversation(tmp_path: Path, database_url: str) -> None:
    async with clients(tmp_path, database_url) as client:
        await use_sessions(client)
        await use_openai(client)
        await use_hook(client)
        await sign_in(client)
        for node in "abc":
            events = [line["event"] for line in client.nodes.nodes[node].log]
            assert "request_failed" not in events


async def use_sessions(client: Client) -> None:
    session = (await client.call("a", "POST", "/api/sessions", {"title": "One"}))["id"]
    path = f"/api/sessions/{session}"
    for node in "abc":
        assert (await client.call(node, "GET", path))["title"] == "One"
        await client.call(node, "GET", "/api/sessions/8c0a1c1e-7a3f-4a9a-9d9f-0c8c0f0f0f0f", status=404)
    # A prompt is accepted once, at whichever nodes its repetitions arrive.
    prompt = {"text": "first"}
    sent = [await client.call(node, "POST", f"{path}/prompt", prompt, Idempotency_Key="k1") for node in "bca"]
    assert len({each["id"] for each in sent}) == 1
    # A stream breaks off and goes on at another node.
    first = await events(client, "b", session, f"{session}:0", '"outcome"')
    await client.call("a", "POST", f"{path}/prompt", {"text": "second"})
    rest = await events(client, "c", session, first[-1][0], "answer second")
    assert not any("answer first" in data for _, data in rest)
    # Files that were uploaded to another node.
    headers = BEARER | {"Content-Type": "application/octet-stream"}
    async with client.http.post(f"{client.url('b')}/api/files?name=n.txt", data=b"abc", headers=headers) as response:
        ref = (await response.json())["ref"]
    await client.call("c", "POST", f"{path}/prompt", {"text": "third", "attachments": [{"ref": ref, "name": "n.txt"}]})
    await client.answered("b", session, "third")
    # The command line, at each node.
    key = (await client.call("b", "GET", path))["key"]
    assert await client.owner(parse_key(key)[0]) == "a"
    for node in "bc":
        home = client.nodes.nodes[node].home
        shown = await asyncio.to_thread(gatehouse, "sessions", "export", key, home=home)
        assert "answer second" in shown.stdout, shown
    # A program whose token is new, at a node that does not own the session.
    home = client.nodes.nodes["b"].home
    made = await asyncio.to_thread(gatehouse, "token", "create", "ci", "--scope", "prompt,read", home=home)
    token = f"Bearer {re.findall(r'gh_[0-9A-Za-z_-]+', made.stdout)[0]}"
    await client.call("b", "POST", f"{path}/prompt", {"text": "fourth"}, Authorization=token)
    await client.answered("c", session, "fourth")
    # Changes of all kinds.
    assert (await client.call("b", "PATCH", path, {"title": "Two"}))["title"] == "Two"
    await client.call("c", "POST", f"{path}/prompt", {"text": "wait here"})
    await client.nodes.model.was_asked("wait here")
    await client.call("b", "DELETE", path)
    assert (await client.call("c", "GET", path))["status"] == "cancelled"
    await client.call("b", "POST", f"{path}/resume")
    await client.call("c", "POST", f"{path}/complete")
    await client.call("b", "POST", f"{path}/archive")
    await client.call("c", "POST", f"{path}/restore")
    assert "answer second" in await client.call("b", "GET", f"{path}/export?format=markdown")
    await client.call("c", "DELETE", f"{path}?permanent=true")
    for node in "abc":
        await client.call(node, "GET", path, status=404)
    # The question of a tool is answered at another node.
    session = (await client.call("b", "POST", "/api/sessions", {"agent": "careful"}))["id"]
    path = f"/api/sessions/{session}"
    await client.call("c", "POST", f"{path}/prompt", {"text": "tool"})
    asked = (await events(client, "a", session, f"{session}:0", '"approvalId"'))[-1][1]
    question = json.loads(asked.removeprefix("data: "))["content"]["approvalId"]
    await client.call("a", "POST", f"{path}/approvals/{question}", {"decision": "approve"})
    await client.answered("c", session, "tool")


async def use_openai(client: Client) -> None:
    sessions = set()
    for node in "abc":
        body = {"model": "main@trip", "messages": [{"role": "user", "content": f"go by {node}"}]}
        url = f"{client.url(node)}/v1/chat/completions"
        async with client.http.post(url, json=body, headers=BEARER) as response:
            assert response.status == 200, await response.text()
            sessions.add(response.headers["X-Gatehouse-Session"])
            answer = await response.json()
        assert answer["choices"][0]["message"]["content"] == f"answer go by {node}"
    assert len(sessions) == 1
    previous: dict[str, str] = {}
    for node in "bca":
        wanted = {"model": "main", "input": f"from {node}", **previous}
        previous = {"previous_response_id": (await client.call(node, "POST", "/v1/responses", wanted))["id"]}
    last = f"/v1/responses/{previous['previous_response_id']}"
    for node in "abc":
        assert (await client.call(node, "GET", last))["output"][0]["content"][0]["text"] == "answer from a"
    await client.call("b", "DELETE", last)
    await client.call("c", "GET", last, status=404)


async def use_hook(client: Client) -> None:
    for node in "abc":
        assert (await client.ring(node, f"ding {node}", f"call-{node}"))["text"].endswith(f'"ding {node}"')
    for node in "abc":
        again = await client.ring(node, "ding a", "call-a")
        assert (again["status"], again["text"][-8:]) == ("duplicate", '"ding a"')
        await client.ring(node, "ding", "call-x", secret="another-secret-of-a-hook", status=401)


async def sign_in(client: Client) -> None:
    link = await asyncio.to_thread(client.nodes.nodes["a"].link)
    code = {"code": link.partition("#code=")[2]}
    origin = {"Origin": client.url("b")}
    async with client.http.post(f"{client.url('b')}/auth/exchange", json=code, headers=origin) as response:
        assert response.status == 200
        name, morsel = next(iter(response.cookies.items()))
    async with client.http.post(f"{client.url('c')}/auth/exchange", json=code) as response:
        assert response.status == 401, "a code works once"
    client.http.cookie_jar.clear()

    async def status(node: str, method: str, path: str, **given: Json) -> int:
        headers = {"Cookie": f"{name}={morsel.value}", "Origin": client.url(node)}
        async with client.http.request(method, f"{client.url(node)}{path}", headers=headers, **given) as response:
            return response.status

    for node in "abc":
        assert await status(node, "GET", "/auth/whoami") == 200
    headers = {"Cookie": f"{name}={morsel.value}", "Origin": client.url("c")}
    async with client.http.ws_connect(f"{client.url('c')}/web/ws", headers=headers) as socket:
        await frame(socket, "hello")
        assert await status("a", "POST", "/auth/logout", json={}) == 200
        await closed(socket)
    for node in "abc":
        async with asyncio.timeout(TIMEOUT):  # The others learn of it a moment later.
            while (found := await status(node, "GET", "/auth/whoami")) == 200:  # noqa: ASYNC110 - see above.
                await asyncio.sleep(0.1)
            assert found == 401


async def test_browsers_follow_a_chat_to_its_next_node(tmp_path: Path, database_url: str) -> None:
    async with clients(tmp_path, database_url) as client:
        async with client.chat("a") as first, client.chat("b") as second, client.chat("c") as third:
            await say(first, "hello", "m1")
            for socket in (first, second, third):
                await frame(socket, "message", "answer hello")
            await say(second, "wait for me", "m2")
            await frame(third, "draft", "answer")
            await say(first, "/stop", "m3")
            await frame(third, "message", "Stopped")
            owner = await client.owner(await client.scope_of("web"))
            others = [name for name in "abc" if name != owner]
            stopping = asyncio.create_task(client.nodes.stop(owner))
            assert set(await asyncio.gather(*map(closed, (first, second, third)))) <= {1001, 1012}
        for node in others:
            async with client.chat(node) as socket:
                await socket.send_json({"type": "history"})
                assert "answer hello" in json.dumps(await frame(socket, "history"))
        assert await stopping == 0
        owner = await client.owner(await client.scope_of("web"))
        (other,) = set(others) - {owner}
        async with client.chat(other) as socket:
            await say(socket, "wait again", "m4")
            await frame(socket, "draft", "answer")
            await client.nodes.kill(owner)
            await closed(socket)
        client.nodes.model.may_end.set()
        async with client.chat(other) as socket:
            await socket.send_json({"type": "history"})
            if "answer wait again" not in json.dumps(await frame(socket, "history")):
                await frame(socket, "message", "answer wait again")


async def test_a_rolling_restart_shows_no_error_to_programs(tmp_path: Path, database_url: str) -> None:
    """Each request goes to any node that has not been told to stop. Those under way at that time are answered."""
    async with clients(tmp_path, database_url) as client:
        session = (await client.call("a", "POST", "/api/sessions", {}))["id"]
        up, numbers, turn = set("abc"), count(), cycle("abc")
        is_over = False

        def node() -> str:
            return next(each for each in turn if each in up)

        async def talk(name: str) -> None:
            while not is_over:
                number = next(numbers)
                await client.call(node(), "POST", f"/api/sessions/{session}/prompt", {"text": f"m{number}"})
                body = {"model": f"main@{name}", "messages": [{"role": "user", "content": f"m{number}"}]}
                answer = await client.call(node(), "POST", "/v1/chat/completions", body)
                assert answer["choices"][0]["message"]["content"] == f"answer m{number}"
                await client.ring(node(), f"m{number}", f"call-{number}")
                await client.call(node(), "GET", f"/api/sessions/{session}/messages?since=0")

        async with asyncio.TaskGroup() as talking:
            for name in ("one", "two", "three"):
                talking.create_task(talk(name))
            for name in "abc":
                up.discard(name)
                assert await client.nodes.stop(name) == 0
                await client.nodes.start(name)
                up.add(name)
            is_over = True
        last = next(numbers)
        await client.call("b", "POST", f"/api/sessions/{session}/prompt", {"text": f"m{last}"})
        await client.answered("c", session, f"m{last}")
        texts = await client.texts("a", session)
        assert len([each for each in texts if each.startswith("m")]) == len(set(texts) & {f"m{n}" for n in range(9999)})


async def test_a_session_that_cannot_be_read_now_can_be_asked_for_again(
    tmp_path: Path, database_url: str, new_proxy: NewProxy
) -> None:
    """While the database is away, no answer may tell a program to give up."""
    proxy = new_proxy(database_url)
    async with cluster(tmp_path, database_url, lease=60.0) as nodes:
        await nodes.start("a", url=proxy.url)
        async with aiohttp.ClientSession(nodes.nodes["a"].url, headers=BEARER) as client:
            async with client.post("/api/sessions", json={}) as response:
                session = (await response.json())["id"]
            proxy.refuse()
            proxy.cut()
            async with client.get(f"/api/sessions/{session}") as response:
                assert (response.status, response.headers["Retry-After"]) == (503, "5")
                assert "can't be reached" in (await response.json())["detail"]
            proxy.accept()


async def test_a_chat_on_the_machine_of_a_stopped_node_does_not_join(tmp_path: Path, database_url: str) -> None:
    """It would own half of the conversations, without their channels and without an address."""
    async with cluster(tmp_path, database_url, "a", "b") as nodes:
        assert await nodes.stop("b") == 0
        chat = await asyncio.to_thread(gatehouse, "chat", "--once", "hello", home=tmp_path / "b")
        assert (chat.returncode, chat.stdout) == (1, "")
        assert chat.stderr.startswith("gatehouse: No node runs on this machine, and a chat runs none")
        with psycopg.connect(database_url) as connection:
            assert connection.execute("SELECT name FROM node").fetchall() == [("a",)]
