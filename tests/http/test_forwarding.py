"""Two nodes in one process. The conversation `b` belongs to the second one, and requests arrive at the first."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import WSCloseCode, WSMsgType, web
from structlog.testing import capture_logs

from config import Secret
from gateway.contract import Access, Caller, Route, TokenScope
from gateway.errors import HeldElsewhere
from gateway.http.forwarding import CALLER, FORWARDED, NOT_HERE, Forwarder, encode_caller, idempotency_key
from gateway.http.responses import SECURITY_HEADERS, HttpError, HttpLimits
from tests.http.examples import is_signed
from tests.http.harness import BEARER, EXPIRED, TIMEOUT, TOKEN, Running, program, serving

NODE_TOKEN = "the-token-of-the-nodes"
ROOT = Caller(name="root", is_owner=True)
OCTETS = {"Content-Type": "application/octet-stream"}
ANN = "Änn ☂"


@dataclass
class Node:
    """The routes of one node, and what their handlers have seen."""

    name: str
    owners: dict[str, str]
    handled: list[str] = field(default_factory=list)
    callers: list[Caller] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    tokens: Callable[[str], bool] = field(default=lambda _: True)
    """Which API tokens it knows."""
    has_refused: asyncio.Event = field(default_factory=asyncio.Event)
    has_begun: asyncio.Event = field(default_factory=asyncio.Event)
    next_piece: asyncio.Event = field(default_factory=asyncio.Event)
    has_ended: asyncio.Event = field(default_factory=asyncio.Event)
    closed_with: int | None = None
    crashes: int = 0
    """How many of the next requests cut their connection instead of an answer."""
    moves: int = 0
    """How often this node has lost a conversation."""

    def enter(self, request: web.Request, caller: Caller) -> None:
        scope = request.match_info["scope"]
        if self.owners.get(scope) != self.name:
            self.has_refused.set()
            raise HeldElsewhere(scope)
        self.handled.append(f"{request.method} {request.path_qs}")
        self.callers.append(caller)
        self.keys.append(idempotency_key(request))
        self.headers.append(dict(request.headers))
        if self.crashes:
            self.crashes -= 1
            assert request.transport is not None
            request.transport.abort()
            raise ConnectionResetError

    def knows(self, token: str) -> bool:
        return self.tokens(token)

    async def look(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        self.enter(request, caller)
        response = web.json_response({"node": self.name, "caller": caller.name})
        response.headers.extend([("Set-Cookie", "one=1"), ("Set-Cookie", "two=2"), ("X-Kept", "yes")])
        return response

    async def echo(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        self.enter(request, caller)
        return web.json_response({"node": self.name, "heard": await request.json()}, status=HTTPStatus.ACCEPTED)

    async def hook(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        self.enter(request, caller)
        return web.Response(body=await request.read())

    async def refuse(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        self.enter(request, caller)
        raise HttpError(HTTPStatus.CONFLICT, "Not in this state.", extra={"code": "ended"})

    async def lose(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        """Answer, but lose the conversation while the first request is handled."""
        self.enter(request, caller)
        if self.name == "a":
            self.owners["a"] = "b"
            self.moves += 1
            raise HttpError(HTTPStatus.NOT_FOUND, "There is no such conversation.")
        return web.json_response({"node": self.name})

    async def take(self, request: web.Request, _: Caller) -> web.StreamResponse:
        """Take the place of `hook` if its owner is out of reach."""
        return web.Response(body=b"taken: " + await request.read())

    async def upload(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        self.enter(request, caller)
        size = 0
        async for chunk in request.content.iter_any():
            size += len(chunk)
            self.has_begun.set()
        return web.json_response({"size": size})

    async def events(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        self.enter(request, caller)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: first\n\n")
        self.has_begun.set()
        try:
            await self.next_piece.wait()
            await response.write(b"data: second\n\n")
        finally:
            self.has_ended.set()
        return response

    async def talk(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        self.enter(request, caller)
        websocket = web.WebSocketResponse(autoping=False)
        await websocket.prepare(request)
        try:
            async for message in websocket:
                if message.type is WSMsgType.TEXT and message.data == "leave":
                    await websocket.close(code=4001, message=b"enough")
                elif message.type is WSMsgType.TEXT and message.data == "die":
                    assert request.transport is not None
                    request.transport.abort()
                elif message.type is WSMsgType.TEXT:
                    await websocket.send_str(f"{self.name} heard {message.data} of {caller.name}")
                elif message.type is WSMsgType.BINARY:
                    await websocket.send_bytes(message.data[::-1])
                elif message.type is WSMsgType.PING:
                    await websocket.pong(message.data)
                elif message.type is WSMsgType.PONG:
                    await websocket.send_str("pong")
        finally:
            self.closed_with = websocket.close_code
            self.has_ended.set()
        return websocket

    def routes(self) -> list[Route]:
        api, read, prompt = Access.API, TokenScope.READ, TokenScope.PROMPT
        return [
            Route(method="GET", path="/api/look/{scope}", access=api, scope=read, handle=self.look),
            Route(method="DELETE", path="/api/look/{scope}", access=api, scope=read, handle=self.look),
            Route(method="POST", path="/api/echo/{scope}", access=api, scope=prompt, handle=self.echo),
            Route(
                method="POST", path="/api/prompt/{scope}", access=api, scope=prompt, handle=self.echo, takes_key=True
            ),
            Route(method="GET", path="/api/lose/{scope}", access=api, scope=read, handle=self.lose),
            Route(method="GET", path="/api/refuse/{scope}", access=api, scope=read, handle=self.refuse),
            Route(method="GET", path="/v1/refuse/{scope}", access=api, scope=read, handle=self.refuse),
            Route(method="GET", path="/v1/look/{scope}", access=api, scope=read, handle=self.look),
            Route(method="GET", path="/events/{scope}", access=Access.OWNER, handle=self.events, is_stream=True),
            Route(method="POST", path="/files/{scope}", access=Access.OWNER, handle=self.upload, takes_file=True),
            Route(method="GET", path="/talk/{scope}", access=Access.OWNER, handle=self.talk),
            Route(method="GET", path="/control/talk/{scope}", access=Access.CONTROL, handle=self.talk),
            Route(method="GET", path="/control/look/{scope}", access=Access.CONTROL, handle=self.look),
            Route(method="GET", path="/public/{scope}", access=Access.PUBLIC, handle=self.look),
            Route(
                method="POST",
                path="/hooks/{scope}",
                access=Access.CHANNEL,
                handle=self.hook,
                knows=is_signed,
                takes_any_type=True,
            ),
            Route(
                method="POST",
                path="/anywhere/{scope}",
                access=Access.CHANNEL,
                handle=self.hook,
                handle_elsewhere=self.take,
                knows=is_signed,
                takes_any_type=True,
                drops_repeats=True,
            ),
        ]


@dataclass
class Cluster:
    """Requests go to the node `a`. `located` are the answers of its directory that come before the true one."""

    a: Node
    b: Node
    first: Running
    second: Running
    located: list[str | HeldElsewhere | None]
    urls: dict[str, str]
    forwarder: Forwarder
    """That of the first node."""

    async def move_to(self, node: str) -> None:
        """Give the conversation `b` to `node` once the second node has refused a request."""
        await self.b.has_refused.wait()
        self.a.owners["b"] = node

    async def get(self, path: str, **request: Any) -> dict[str, Any]:  # noqa: ANN401 - As aiohttp takes them.
        async with self.first.client.get(path, **{"headers": BEARER, **request}) as response:
            assert response.status == HTTPStatus.OK
            found: dict[str, Any] = await response.json()
            return found

    async def fail(self, method: str, path: str, **request: Any) -> tuple[int, dict[str, Any], str | None]:  # noqa: ANN401 - As aiohttp takes them.
        async with self.first.client.request(method, path, headers=BEARER, **request) as response:
            return response.status, await response.json(), response.headers.get("Retry-After")


@asynccontextmanager
async def cluster(
    tmp_path: Path,
    *,
    deadline: float = 30.0,
    tokens: tuple[str, str] = (NODE_TOKEN, NODE_TOKEN),
    **options: Any,  # noqa: ANN401 - Those of `serving`.
) -> AsyncIterator[Cluster]:
    """Run two nodes. A conversation belongs to the node with its name, until the test changes that."""
    owners = {"a": "a", "b": "b"}
    nodes = {name: Node(name, owners) for name in owners}
    urls: dict[str, str] = {}
    located: list[str | HeldElsewhere | None] = []
    forwarders: list[Forwarder] = []

    def locate_for(name: str) -> Callable[[str], Awaitable[str | None]]:
        async def locate(scope: str) -> str | None:
            found = located.pop(0) if located else urls[owners[scope]]
            if isinstance(found, HeldElsewhere):
                raise found
            return None if found == urls[name] else found

        return locate

    async with AsyncExitStack() as stack, asyncio.timeout(TIMEOUT):
        running = {}
        # The first node closes last, so that the second can go away during a request.
        for name, of_nodes in zip("ab", tokens, strict=True):
            directory = tmp_path / name
            directory.mkdir()
            forwarder = Forwarder(
                locate_for(name),
                partial(Secret, of_nodes),
                moves=partial(getattr, nodes[name], "moves"),
                deadline=deadline,
            )
            forwarders.append(forwarder)
            opened = serving(
                directory,
                nodes[name].routes(),
                forwarder=forwarder,
                knows_token=nodes[name].knows,
                **options,
            )
            running[name] = await stack.enter_async_context(opened)
            urls[name] = running[name].server.url
        yield Cluster(
            a=nodes["a"],
            b=nodes["b"],
            first=running["a"],
            second=running["b"],
            located=located,
            urls=urls,
            forwarder=forwarders[0],
        )


@asynccontextmanager
async def failing_node(*answers: bytes) -> AsyncIterator[str]:
    """Run a node that reads the header of each request, sends the next of `answers`, and disconnects."""
    waiting = list(answers)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(waiting.pop(0) if waiting else b"")
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_requests_go_to_the_owner_and_its_response_to_the_client(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        assert (await nodes.get("/api/look/a"))["node"] == "a"
        async with nodes.first.client.get("/api/look/b?x=%26&y=1", headers=BEARER) as response:
            assert (response.status, await response.json()) == (HTTPStatus.OK, {"node": "b", "caller": "owner"})
            assert response.headers.getall("Set-Cookie") == ["one=1", "two=2"]
            assert response.headers["X-Kept"] == "yes"
            assert {FORWARDED, CALLER, NOT_HERE, "Server"}.isdisjoint(response.headers)
            assert all(response.headers.getall(name) == [value] for name, value in SECURITY_HEADERS.items())
        assert nodes.b.handled == ["GET /api/look/b?x=%26&y=1"]
        async with nodes.first.client.head("/api/look/b", headers=BEARER) as response:
            assert (response.status, await response.read()) == (HTTPStatus.OK, b"")
            assert int(response.headers["Content-Length"]) > 0
        async with nodes.first.client.post("/api/echo/b", headers=BEARER, json={"text": ANN}) as response:
            assert response.status == HTTPStatus.ACCEPTED
            assert await response.json() == {"node": "b", "heard": {"text": ANN}}
        async with nodes.first.client.delete("/api/look/b", headers=BEARER) as response:
            assert (await response.json())["node"] == "b"


async def test_nodes_may_share_the_token_of_the_owner(tmp_path: Path) -> None:
    async with (
        cluster(tmp_path, tokens=(TOKEN, TOKEN)) as nodes,
        nodes.first.client.get("/api/look/b", headers=program(TokenScope.READ)) as response,
    ):
        assert await response.json() == {"node": "b", "caller": "the read program"}


async def test_requests_with_a_cookie_and_from_an_allowed_host_are_forwarded(tmp_path: Path) -> None:
    """The owner knows neither the cookie, which has the port in its name, nor the host."""
    async with cluster(tmp_path) as nodes:
        async with nodes.first.client.get("/events/b", headers={**nodes.first.cookie(), **nodes.first.own}) as response:
            assert await response.content.readany() == b"data: first\n\n"
        assert nodes.b.callers == [Caller(name="owner", is_owner=True)]
        assert "Cookie" not in nodes.b.headers[0]


async def test_errors_of_the_owner_keep_the_format_of_the_path(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        status, problem, _ = await nodes.fail("GET", "/api/refuse/b")
        assert (status, problem["detail"], problem["code"]) == (HTTPStatus.CONFLICT, "Not in this state.", "ended")
        status, error, _ = await nodes.fail("GET", "/v1/refuse/b")
        assert (status, error["error"]["code"]) == (HTTPStatus.CONFLICT, "ended")


async def test_without_a_forwarder_the_client_is_told_to_try_again(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, Node("a", {"b": "b"}).routes()) as server,
        server.client.get("/api/look/b", headers=BEARER) as response,
    ):
        assert (response.status, response.headers["Retry-After"]) == (HTTPStatus.SERVICE_UNAVAILABLE, "1")
        assert "Another node" in (await response.json())["detail"]


async def test_pieces_of_a_stream_arrive_one_by_one(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes, nodes.first.client.get("/events/b", headers=BEARER) as response:
        assert response.content_type == "text/event-stream"
        assert await response.content.readany() == b"data: first\n\n"
        nodes.b.next_piece.set()
        assert await response.content.read() == b"data: second\n\n"


async def test_a_client_that_leaves_ends_the_stream_at_the_owner(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        async with nodes.first.client.get("/events/b", headers=BEARER) as response:
            await response.content.readany()
            response.close()
        await nodes.b.has_ended.wait()


async def test_a_revoked_token_cuts_the_forwarded_stream(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes, nodes.first.client.get("/events/b", headers=BEARER) as response:
        await response.content.readany()
        nodes.second.server.drop_owners()
        with pytest.raises(aiohttp.ClientError):
            await response.content.read()


async def test_files_are_streamed_to_the_owner(tmp_path: Path) -> None:
    more = asyncio.Event()

    async def pieces() -> AsyncIterator[bytes]:
        yield b"x" * 100_000
        await more.wait()
        yield b"x" * 100_000

    async with cluster(tmp_path, max_body_bytes=4096) as nodes:
        sending = nodes.first.client.post("/files/b", headers=BEARER | OCTETS, data=pieces())
        async with asyncio.TaskGroup() as group:
            sent = group.create_task(sending.__aenter__(), name="upload")
            await nodes.b.has_begun.wait()
            more.set()
        async with sent.result() as response:
            assert await response.json() == {"size": 200_000}
        async with nodes.first.client.post("/files/b", headers=BEARER | OCTETS, data=b"x" * 5000) as response:
            assert await response.json() == {"size": 5000}
        assert nodes.b.headers[-1]["Content-Length"] == "5000"


async def test_a_file_is_not_sent_twice(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        nodes.located.append(nodes.urls["b"])
        nodes.a.owners["b"] = "a third node"
        nodes.a.owners["c"] = "b"
        async with nodes.first.client.post("/files/b", headers=BEARER | OCTETS, data=b"x" * 5000) as response:
            assert (response.status, response.headers["Retry-After"]) == (HTTPStatus.SERVICE_UNAVAILABLE, "1")


async def test_the_owner_is_looked_for_again_if_the_conversation_has_moved(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes, asyncio.TaskGroup() as group:
        nodes.located.append(nodes.urls["b"])
        nodes.a.owners["b"] = "a third node"
        group.create_task(nodes.move_to("b"), name="move")
        async with nodes.first.client.post("/api/echo/b", headers=BEARER, json={"text": "x"}) as response:
            assert await response.json() == {"node": "b", "heard": {"text": "x"}}
        assert nodes.b.handled == ["POST /api/echo/b"]


async def test_this_node_handles_the_request_once_it_owns_the_conversation(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes, failing_node() as lost, asyncio.TaskGroup() as group:
        # The second answer is too early, and the third too late.
        nodes.located += [lost, nodes.urls["a"], nodes.urls["b"]]
        nodes.a.owners["b"] = "a third node"
        group.create_task(nodes.move_to("a"), name="move")
        async with nodes.first.client.post("/api/prompt/b", headers=BEARER, json={"text": "x"}) as response:
            assert await response.json() == {"node": "a", "heard": {"text": "x"}}
        # The lost node may have accepted the prompt, so this node must see a key.
        assert nodes.a.keys[0]


async def test_a_route_without_a_websocket_ignores_an_upgrade(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        asking = {"Upgrade": "websocket", "Connection": "Upgrade", "Idempotency-Key": "one", **BEARER}
        for scope in "ab":
            async with nodes.first.client.get(f"/api/look/{scope}", headers=asking) as response:
                assert (await response.json())["node"] == scope
            async with nodes.first.client.post(f"/api/echo/{scope}", headers=asking, json={"text": "x"}) as response:
                assert await response.json() == {"node": scope, "heard": {"text": "x"}}


async def test_a_forwarded_request_is_never_forwarded_again(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        headers = {"Authorization": f"Bearer {NODE_TOKEN}", FORWARDED: "1", CALLER: encode_caller(ROOT)}
        async with nodes.second.client.get("/api/look/a", headers=headers) as response:
            assert (response.status, response.headers[NOT_HERE]) == (HTTPStatus.MISDIRECTED_REQUEST, "1")
        assert nodes.a.handled == []


async def test_an_owner_that_does_not_come_back_ends_the_request_in_time(tmp_path: Path) -> None:
    async with cluster(tmp_path, deadline=0.2) as nodes:
        nodes.urls["b"] = "http://127.0.0.1:1"
        for method, path in (("GET", "/api/look/b"), ("POST", "/api/echo/b")):
            status, problem, retry_after = await nodes.fail(method, path, json={})
            assert (status, retry_after) == (HTTPStatus.SERVICE_UNAVAILABLE, "1")
            assert "can't be reached" in problem["detail"]
        status, error, _ = await nodes.fail("GET", "/v1/look/b")
        assert (status, error["error"]["type"]) == (HTTPStatus.SERVICE_UNAVAILABLE, "server_error")


async def test_a_directory_without_an_owner_ends_the_request(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        nodes.located.append(HeldElsewhere("b"))
        status, problem, retry_after = await nodes.fail("GET", "/api/look/b")
        assert (status, retry_after) == (HTTPStatus.SERVICE_UNAVAILABLE, "1")
        assert "Another node" in problem["detail"]


async def test_a_refused_connection_is_retried_for_every_request(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        nodes.located += ["http://127.0.0.1:1"] * 2
        async with nodes.first.client.post("/api/echo/b", headers=BEARER, json={}) as response:
            assert response.status == HTTPStatus.ACCEPTED
        nodes.located.append("http://127.0.0.1:1")
        async with nodes.first.client.post("/files/b", headers=BEARER | OCTETS, data=b"x") as response:
            assert await response.json() == {"size": 1}


async def test_requests_without_further_effect_are_repeated_if_the_owner_dies_before_its_response(
    tmp_path: Path,
) -> None:
    async with cluster(tmp_path) as nodes:
        nodes.b.crashes = 2
        assert (await nodes.get("/api/look/b"))["node"] == "b"
        nodes.b.crashes = 2
        for key in ({}, {"Idempotency-Key": "mine"}):
            async with nodes.first.client.post("/api/prompt/b", headers=BEARER | key, json={}) as response:
                assert response.status == HTTPStatus.ACCEPTED
        added = nodes.b.keys[-2]
        assert added
        assert nodes.b.keys[-4:] == [added, added, added, "mine"]


@pytest.mark.parametrize(("method", "path"), [("POST", "/api/echo/b"), ("DELETE", "/api/look/b")])
async def test_other_requests_are_not_repeated_if_the_owner_dies_before_its_response(
    tmp_path: Path, method: str, path: str
) -> None:
    async with cluster(tmp_path) as nodes:
        nodes.b.crashes = 1
        headers = BEARER | {"Idempotency-Key": "this route takes none"}
        async with nodes.first.client.request(method, path, headers=headers, json={}) as response:
            assert response.status == HTTPStatus.BAD_GATEWAY
            assert "may have carried out" in (await response.json())["detail"]
        assert len(nodes.b.handled) == 1


async def test_a_response_that_was_cut_at_the_owner_is_cut_for_the_client(tmp_path: Path) -> None:
    head = b"HTTP/1.1 200 OK\r\nX-Gatehouse-Forwarded: 1\r\n"
    halves = (head + b"Content-Length: 10\r\n\r\nhalf", head + b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
    async with cluster(tmp_path) as nodes, failing_node(*halves) as lost:
        for _ in halves:
            nodes.located.append(lost)
            with pytest.raises(aiohttp.ClientError):
                await nodes.get("/api/look/b")


async def test_the_log_of_a_lost_request_has_no_path(tmp_path: Path) -> None:
    async def mumble(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"nonsense\r\n\r\n")
        writer.close()

    async with cluster(tmp_path) as nodes, await asyncio.start_server(mumble, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        nodes.located.append(f"http://{host}:{port}")
        with capture_logs() as logged:
            assert (await nodes.fail("POST", "/api/echo/b?key=secret", json={}))[0] == HTTPStatus.BAD_GATEWAY
        assert [entry["event"] for entry in logged] == ["forwarded_request_lost"]
        assert "secret" not in str(logged)


async def test_the_log_of_an_upload_that_was_cut_has_no_path(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes, nodes.first.connect() as (_, writer):
        with capture_logs() as logged:
            head = nodes.first.head("POST /files/b?key=secret", BEARER | OCTETS | {"Content-Length": "30"})
            writer.write(head + b"abc")
            await nodes.b.has_begun.wait()
            writer.close()
            while not any(entry["event"] == "forwarded_request_lost" for entry in logged):  # noqa: ASYNC110 - it is soon.
                await asyncio.sleep(0.01)
        assert "secret" not in str(logged)


async def test_a_node_with_another_token_is_reported(tmp_path: Path) -> None:
    async with cluster(tmp_path, tokens=(NODE_TOKEN, "another-token-of-nodes")) as nodes:
        status, problem, _ = await nodes.fail("GET", "/api/look/b")
        assert (status, "same token" in problem["detail"]) == (HTTPStatus.BAD_GATEWAY, True)
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await nodes.first.client.ws_connect("/talk/b", headers=BEARER)
        assert refused.value.status == HTTPStatus.BAD_GATEWAY
        assert nodes.b.handled == []


@pytest.mark.parametrize("credential", ["", TOKEN, "gh_read_secret", EXPIRED, "wrong"])
@pytest.mark.parametrize("path", ["/api/look/b", "/control/look/b", "/public/b", "/api/look/a", "/events/c"])
async def test_headers_of_a_node_count_only_with_its_token(tmp_path: Path, credential: str, path: str) -> None:
    """Without it, a request has the same result as without these headers."""
    spoofed = {FORWARDED: "1", CALLER: encode_caller(ROOT)}
    bearer = {"Authorization": f"Bearer {credential}"} if credential else {}
    async with cluster(tmp_path) as nodes:
        nodes.located += [HeldElsewhere("c")] * 2 if path.endswith("c") else []
        results = []
        for headers in (bearer, bearer | spoofed, bearer | spoofed | {"Host": "evil.example"}):
            async with nodes.second.client.get(path, headers=headers) as response:
                results.append((response.status, await response.read()))
        assert results[0] == results[1]
        assert results[2][0] == HTTPStatus.MISDIRECTED_REQUEST
        assert ROOT not in nodes.a.callers + nodes.b.callers


async def test_a_node_without_a_cluster_trusts_no_such_header(tmp_path: Path) -> None:
    headers = {**BEARER, FORWARDED: "1", CALLER: encode_caller(ROOT)}
    async with serving(tmp_path, Node("b", {"b": "b"}).routes()) as server:
        assert await server.status("GET", "/control/look/b", headers=headers) == HTTPStatus.NOT_FOUND


async def test_the_token_of_nodes_cannot_be_guessed_by_these_headers(tmp_path: Path) -> None:
    spoofed = {FORWARDED: "1", CALLER: encode_caller(ROOT), "X-Forwarded-For": "10.0.0.9"}
    async with cluster(tmp_path) as nodes:
        for guess in range(10):
            headers = spoofed | {"Authorization": f"Bearer guess{guess}", "Host": "evil.example"}
            assert await nodes.second.status("GET", "/public/b", headers=headers) == HTTPStatus.MISDIRECTED_REQUEST
        headers = spoofed | {"Authorization": f"Bearer {NODE_TOKEN}"}
        assert await nodes.second.status("GET", "/public/b", headers=headers) == HTTPStatus.TOO_MANY_REQUESTS


async def test_wrong_passwords_of_people_do_not_stop_the_requests_of_nodes(tmp_path: Path) -> None:
    """A proxy on the machine of a node has the same address as the node."""
    behind_proxy = {"X-Forwarded-For": "10.0.0.9"}
    async with cluster(tmp_path) as nodes:
        wrong = behind_proxy | {"Authorization": "Bearer wrong"}
        assert [await nodes.second.status("GET", "/api/look/b", headers=wrong) for _ in range(11)][-1] == 429
        await nodes.get("/api/look/b", headers=BEARER | behind_proxy)


@pytest.mark.parametrize("caller", ["", "nonsense", "bm9uc2Vuc2U=", "e30", encode_caller(ROOT)[4:]])
async def test_an_unreadable_caller_is_refused(tmp_path: Path, caller: str) -> None:
    async with cluster(tmp_path) as nodes:
        headers = {"Authorization": f"Bearer {NODE_TOKEN}", FORWARDED: "1", CALLER: caller}
        assert await nodes.second.status("GET", "/public/b", headers=headers) == HTTPStatus.BAD_REQUEST


async def test_a_new_token_counts_at_the_owner_once_that_knows_it(tmp_path: Path) -> None:
    """Until then, the owner could not tell which agent or repository the token is bound to."""
    asked: list[str] = []

    def knows(token: str) -> bool:
        asked.append(token)
        return len(asked) > 1

    async with cluster(tmp_path) as nodes:
        nodes.b.tokens = knows
        async with nodes.first.client.get("/api/look/b", headers=program(TokenScope.READ)) as response:
            assert await response.json() == {"node": "b", "caller": "the read program"}
        assert asked == ["id-of-read"] * 2
        assert len(nodes.b.handled) == 1


async def test_a_token_that_was_revoked_at_the_owner_has_no_effect_there(tmp_path: Path) -> None:
    async with cluster(tmp_path, deadline=0.2) as nodes:
        nodes.b.tokens = lambda _: False
        headers = program(TokenScope.PROMPT)
        for path in ("/api/echo/b", "/api/prompt/b"):
            assert await nodes.first.status("POST", path, headers=headers, json={}) == HTTPStatus.SERVICE_UNAVAILABLE
        assert nodes.b.handled == []


async def test_a_program_keeps_its_scopes_and_its_allowance(tmp_path: Path) -> None:
    async with cluster(tmp_path, rate_limit=lambda: 3) as nodes:
        for left in ("2", "1", "0"):
            async with nodes.first.client.get("/v1/look/b", headers=program(TokenScope.READ)) as response:
                assert response.status == HTTPStatus.OK
                assert response.headers.getall("RateLimit-Remaining") == [left]
                assert response.headers.getall("x-ratelimit-remaining-requests") == [left]
        assert nodes.b.callers[0] == Caller(
            name="the read program", token="id-of-read", scopes=frozenset({TokenScope.READ})
        )
        async with nodes.first.client.get("/v1/look/b", headers=program(TokenScope.READ)) as response:
            assert response.status == HTTPStatus.TOO_MANY_REQUESTS
        # The other node has counted none of them.
        async with nodes.second.client.get("/v1/look/b", headers=program(TokenScope.READ)) as response:
            assert response.headers["RateLimit-Remaining"] == "2"


async def test_callers_of_the_control_socket_reach_the_owner(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        async with nodes.first.control.get("/control/look/b") as response:
            found = await response.json()
        assert found == {"node": "b", "caller": nodes.b.callers[0].name}
        assert nodes.b.callers[0].is_owner
        async with nodes.first.control.ws_connect("/control/talk/b") as websocket:
            await websocket.send_str("hello")
            assert await websocket.receive_str() == f"b heard hello of {nodes.b.callers[0].name}"
        assert await nodes.first.status("GET", "/control/look/b", headers=BEARER) == HTTPStatus.NOT_FOUND


async def test_webhooks_and_public_routes_are_forwarded(tmp_path: Path) -> None:
    async with cluster(tmp_path, limits=HttpLimits(max_anonymous=2)) as nodes:
        for _ in range(4):
            async with nodes.first.client.post(
                "/hooks/b", headers={"X-Signature": "signed"}, data=b"any \xff bytes"
            ) as response:
                assert await response.read() == b"any \xff bytes"
            async with nodes.first.client.get("/public/b") as response:
                assert (await response.json())["caller"] == ""
                # An anonymous client gets one request per connection.
                assert response.headers["Connection"] == "close"
        async with nodes.first.client.post("/hooks/b", data=b"any") as response:
            assert response.status == HTTPStatus.UNAUTHORIZED


async def test_websocket_messages_go_both_ways(tmp_path: Path) -> None:
    async with (
        cluster(tmp_path) as nodes,
        nodes.first.client.ws_connect("/talk/b", headers=BEARER, autoping=False, max_msg_size=0) as websocket,
    ):
        for text in ("one", ANN, "x" * 3_000_000):
            await websocket.send_str(text)
            assert await websocket.receive_str() == f"b heard {text} of owner"
        await websocket.send_bytes(b"\x00\xff")
        assert await websocket.receive_bytes() == b"\xff\x00"
        await websocket.ping(b"are you there")
        answer = await websocket.receive()
        assert (answer.type, bytes(answer.data)) == (WSMsgType.PONG, b"are you there")
        await websocket.pong(b"")
        assert await websocket.receive_str() == "pong"


async def test_a_websocket_that_the_client_closes_is_closed_at_the_owner(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        websocket = await nodes.first.client.ws_connect("/talk/b", headers=BEARER)
        await websocket.close(code=4002)
        await nodes.b.has_ended.wait()
        assert nodes.b.closed_with == 4002


async def test_a_websocket_that_the_client_loses_is_closed_at_the_owner(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        websocket = await nodes.first.client.ws_connect("/talk/b", headers=BEARER)
        await websocket.send_str("hello")
        await websocket.receive_str()
        nodes.first.server.drop_owners()
        await nodes.b.has_ended.wait()
        await websocket.close()


async def test_a_websocket_that_the_owner_closes_keeps_code_and_reason(tmp_path: Path) -> None:
    async with (
        cluster(tmp_path) as nodes,
        nodes.first.client.ws_connect("/talk/b", headers=BEARER, autoclose=False) as websocket,
    ):
        await websocket.send_str("leave")
        closed = await websocket.receive()
        assert (closed.type, closed.data, closed.extra) == (WSMsgType.CLOSE, 4001, "enough")


async def test_a_client_is_told_to_connect_again_if_the_owner_is_lost(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes, nodes.first.client.ws_connect("/talk/b", headers=BEARER) as websocket:
        await websocket.send_str("die")
        await websocket.receive()
        assert websocket.close_code == WSCloseCode.SERVICE_RESTART


async def test_a_client_is_told_that_a_node_goes_away(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        async with nodes.first.client.ws_connect("/talk/b", headers=BEARER) as websocket:
            await websocket.send_str("hello")
            await websocket.receive_str()
            async with asyncio.TaskGroup() as group:
                group.create_task(nodes.second.server.__aexit__(None, None, None), name="stop the owner")
                await websocket.receive()
                assert websocket.close_code == WSCloseCode.GOING_AWAY
        nodes.a.owners["b"] = "a"
        async with nodes.first.client.ws_connect("/talk/b", headers=BEARER) as websocket:
            await websocket.send_str("hello")
            assert await websocket.receive_str() == "a heard hello of owner"


async def test_the_first_node_goes_away_with_its_sockets_and_streams(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        websocket = await nodes.first.client.ws_connect("/talk/b", headers=BEARER)
        stream = await nodes.first.client.get("/events/b", headers=BEARER)
        await nodes.b.has_begun.wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(nodes.first.server.__aexit__(None, None, None), name="stop the first node")
            await websocket.receive()
            assert websocket.close_code == WSCloseCode.GOING_AWAY
            with pytest.raises(aiohttp.ClientError):
                await stream.read()
        await nodes.b.has_ended.wait()


async def test_a_websocket_finds_the_new_owner(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes, asyncio.TaskGroup() as group:
        nodes.located += ["http://127.0.0.1:1", nodes.urls["b"]]
        nodes.a.owners["b"] = "a third node"
        group.create_task(nodes.move_to("b"), name="move")
        async with nodes.first.client.ws_connect("/talk/b", headers=BEARER) as websocket:
            await websocket.send_str("hello")
            assert await websocket.receive_str() == "b heard hello of owner"


async def test_a_conversation_that_moves_while_it_is_looked_for_is_found(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        assert (await nodes.get("/api/lose/a"))["node"] == "b"
        status, _, _ = await nodes.fail("GET", "/api/refuse/b")
        assert status == HTTPStatus.CONFLICT, "nothing has moved"
        assert nodes.b.handled == ["GET /api/lose/a", "GET /api/refuse/b"]


async def test_requests_to_a_node_that_hangs_are_given_up_when_it_is_removed(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes, hanging_node() as (hanging, has_asked):
        nodes.located.append(hanging)
        asking = asyncio.create_task(nodes.get("/api/look/b"))
        await has_asked.wait()
        nodes.forwarder.drop(hanging)
        assert (await asking)["node"] == "b"
        has_asked.clear()
        nodes.located.append(hanging)
        changing = asyncio.create_task(nodes.fail("POST", "/api/echo/b", json={}))
        await has_asked.wait()
        nodes.forwarder.drop(hanging)
        status, problem, _ = await changing
        assert (status, "may have carried out" in problem["detail"]) == (HTTPStatus.BAD_GATEWAY, True)


async def test_streams_and_sockets_of_a_removed_node_are_cut(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes, nodes.first.client.ws_connect("/talk/b", headers=BEARER) as socket:
        async with nodes.first.client.get("/events/b", headers=BEARER) as response:
            assert await response.content.readany() == b"data: first\n\n"
            nodes.forwarder.drop(nodes.urls["b"])
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.content.readany()
        assert (await socket.receive()).data == WSCloseCode.SERVICE_RESTART


async def test_a_node_does_without_an_owner_that_is_out_of_reach(tmp_path: Path) -> None:
    async with cluster(tmp_path) as nodes:
        signed = {"X-Signature": "signed"}
        async with nodes.first.client.post("/anywhere/b", data=b"ding", headers=signed) as response:
            assert await response.read() == b"ding"
        nodes.located.append(HeldElsewhere("b"))
        async with nodes.first.client.post("/anywhere/b", data=b"ding", headers=signed) as response:
            assert await response.read() == b"taken: ding"


@asynccontextmanager
async def hanging_node() -> AsyncIterator[tuple[str, asyncio.Event]]:
    """Run a node that answers nothing. The event is set when it has read the header of a request."""
    has_asked, has_ended = asyncio.Event(), asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        has_asked.set()
        await has_ended.wait()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    async with server:
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", has_asked
        finally:
            has_ended.set()
