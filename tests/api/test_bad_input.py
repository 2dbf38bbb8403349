"""Bad input on every route: each gets a problem document with a fitting status, and nothing crashes or leaks."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from structlog.testing import capture_logs

from gateway.contract import Access, Route
from tests.api.harness import Api, Json, api
from tests.daemon.harness import Parrot, settings

PROBLEM = "application/problem+json"
TRICKS = (
    "..",
    ".",
    "%2e%2e",
    "..%2f..%2fhttp.token",
    "..%5c..%5chttp.token",
    "%00",
    "x%00y",
    "%0d%0aX-Injected:%20yes",
    "%ff%fe",
    "%ed%a0%80",
    "%f0%9f%98%80",
    "%",
    "%zz",
    "CON",
    "-rf",
    "~root",
    "%7bid%7d",
    "null",
    "*",
    "agent:main:api:direct:x",
    "7B0C9A52-0000-4000-8000-000000000000",
    "a" * 4_000,
    "%20",
    "%25%32%65",
)
DEEP = b'{"text":' + b"[" * 10_000 + b"]" * 10_000 + b"}"
NO_OBJECTS = (
    b"null",
    b"[]",
    b"5",
    b'"x"',
    b"{",
    b"{}}",
    b"{'text': 'x'}",
    b'{"text": NaN}',
    b'{"text": Infinity}',
    b'{"text": "\xff\xfe"}',
    b'{"text": "\xed\xa0\x80"}',
    b'{"text": "\\ud800"}',
    b'{"text": "a\x00b"}',
    '{"text": "x"}'.encode("utf-16"),
    b'\xef\xbb\xbf{"text": "x"}',
    b'{"text": "x"} trailing',
    b"\x00",
    DEEP,
)


@dataclass(frozen=True, kw_only=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def problem(self) -> Json:
        """Return the problem document. Fails if this is none."""
        assert self.headers["content-type"] == PROBLEM, self
        found: Json = json.loads(self.body)
        assert found["status"] == self.status
        assert found["type"] == "about:blank"
        assert found["title"]
        assert found["detail"]
        return found


@dataclass(frozen=True, kw_only=True)
class Raw:
    """Sends bytes that no HTTP client would send."""

    program: Api

    async def send(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        kind: str = "application/json",
        headers: tuple[str, ...] = (),
    ) -> Reply:
        lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{self.program.daemon.server.port}", *headers]
        lines += [f"Authorization: Bearer {self.program.token}", "Connection: close"]
        if body is not None:
            lines += [f"Content-Length: {len(body)}", f"Content-Type: {kind}"]
        return await self.exchange("\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b""))

    async def exchange(self, data: bytes) -> Reply:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.program.daemon.server.port)
        try:
            writer.write(data)
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            status, *fields = head.split("\r\n")
            headers = {name.lower(): value for name, _, value in (field.partition(": ") for field in fields)}
            return Reply(status=int(status.split()[1]), headers=headers, body=await reader.read())
        finally:
            writer.close()

    def routes(self) -> list[Route]:
        return [
            route
            for route in self.program.daemon.server.routes
            if route.access is Access.API and route.path.startswith("/api/")
        ]


def filled(route: Route, *, id: str = "x", other: str = "x") -> str:  # noqa: A002 - the name in the path.
    """Return the path of a route with an `id`, and with `other` in the place of every other name."""
    return re.sub(r"\{\w+\}", lambda _: other, route.path.replace("{id}", id))


@asynccontextmanager
async def raw(tmp_path: Path) -> AsyncIterator[Raw]:
    """Run a daemon, and check at the end that no request has crashed in it."""
    configured = settings(tmp_path, api={"rate_limit": 0, "max_active_sessions": 100})
    with capture_logs() as logs:
        async with api(configured, Parrot.answering) as program:
            yield Raw(program=program)
    assert not [line for line in logs if line["log_level"] in ("error", "critical")]


async def test_tricks_in_paths_find_nothing(tmp_path: Path) -> None:
    async with raw(tmp_path) as client:
        session = await client.program.start()
        for route in client.routes():
            for trick in TRICKS if "{" in route.path else ():
                for path in (
                    filled(route, id=trick),
                    filled(route, id=session["id"], other=trick),
                ):
                    if path.count(trick) == 0:
                        continue
                    body = {"POST": b"{}", "PATCH": b'{"title": "x"}'}.get(route.method)
                    reply = await client.send(route.method, path, body=body)
                    assert reply.status in (400, 404, 405, 422), (route.path, trick, reply)
                    assert "x-injected" not in reply.headers
                    if reply.status != 400:  # Not even aiohttp can read that path.
                        assert reply.problem
        assert (await client.program.read(session))["status"] == "active"


async def test_wrong_methods_are_named_with_the_right_ones(tmp_path: Path) -> None:
    async with raw(tmp_path) as client:
        served: dict[str, set[str]] = {}
        for route in client.routes():
            also = {"HEAD"} if route.method == "GET" and not route.is_stream else set()
            served.setdefault(filled(route), set()).update({route.method} | also)
        for path, methods in served.items():
            for method in {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"} - methods:
                reply = await client.send(method, path)
                assert reply.status == 405, (method, path, reply)
                assert set(reply.headers["allow"].split(",")) == methods, (method, path)
                if method != "HEAD":
                    assert reply.problem


async def test_bodies_that_are_no_json_objects_are_refused(tmp_path: Path) -> None:
    async with raw(tmp_path) as client:
        session = await client.program.start()
        for route in client.routes():
            if route.method == "GET" or route.takes_file:
                continue
            path = filled(route, id=session["id"])
            for body in NO_OBJECTS:
                reply = await client.send(route.method, path, body=body)
                assert reply.status == 400, (route, body[:40], reply)
                assert "JSON object" in reply.problem["detail"]
            for kind in (
                "text/plain",
                "application/x-www-form-urlencoded",
                "multipart/form-data; boundary=x",
                "application/json; charset=latin-1",
                "application/jsonx",
                "",
            ):
                reply = await client.send(route.method, path, body=b"{}", kind=kind)
                assert reply.status == 415, (route, kind, reply)
                assert reply.problem
            reply = await client.send(route.method, path, body=b"{}", headers=("Content-Encoding: gzip",))
            assert reply.status == 415
        assert (await client.program.read(session))["status"] == "active"


def with_each(field: str, *values: object, **more: object) -> list[Json]:
    """Return a body for each value of a field."""
    return [{field: value, **more} for value in values]


async def test_values_of_wrong_types_are_refused(tmp_path: Path) -> None:
    async with raw(tmp_path) as client:
        session = await client.program.start()
        wrong: dict[str, list[Json]] = {
            "POST /api/sessions": [
                *with_each("title", "", 5, [], {}, "x" * 201),
                *with_each("agent", 5, "", "Main", "../x", "x" * 65, "nobody", []),
                *with_each("repoId", 5, "", "App", "../x", "/etc", "x" * 65, "unknown"),
                {"colour": "red"},
                {"Title": "x"},
                {"repo_id": "x"},
            ],
            "PATCH /api/sessions/{id}": [
                {},
                {"title": None},
                {"title": 5},
                {"title": ""},
                {"title": "x", "status": "x"},
            ],
            "POST /api/sessions/{id}/prompt": [
                {},
                *with_each("text", None, 5, 1e308, [], {}, "", " \n\t", "x" * 150_000),
                *with_each("attachments", None, 5, {}, [5], [{}], [{"name": "x"}], ["x"], text="x"),
                {"text": "x", "role": "system"},
                {"text": "x", "sender": "owner", "isOwner": True},
            ],
            "POST /api/sessions/{id}/approvals/{approvalId}": [
                {},
                *with_each("decision", "yes", None, 5, ""),
                {"decision": "approve", "by": "owner"},
            ],
        }
        for route, bodies in wrong.items():
            method, path = route.replace("{id}", session["id"]).replace("{approvalId}", "x").split()
            for body in bodies:
                reply = await client.send(method, path, body=json.dumps(body).encode())
                assert reply.status == 422, (route, body, reply)
                assert reply.problem
        # The last one of two equal keys counts, as in every JSON parser that Python has.
        reply = await client.send("PATCH", f"/api/sessions/{session['id']}", body=b'{"title": "one", "title": "two"}')
        assert (reply.status, json.loads(reply.body)["title"]) == (200, "two")


async def test_wrong_queries_are_refused(tmp_path: Path) -> None:
    async with raw(tmp_path) as client:
        session = await client.program.start()
        wrong = {
            "/api/sessions": [
                *(f"limit={value}" for value in ("0", "201", "-1", "1.5", "", "1e400", "x", "1&limit=1")),
                *(f"offset={value}" for value in ("-1", "10000001", "9" * 400)),
                *("status=open", "status=active;error", "x=1", "LIMIT=1", "archived=perhaps", f"q={'x' * 201}"),
            ],
            "/api/search": ["", "q=", "q=" + "x" * 201, "q=x&limit=0", "q=x&q=y"],
            "/api/usage": ["day=x", "day=2026-02-31", "day=2026-11-18T00:00:00Z", "day=0000-01-01", "day=", "day=1"],
            "/api/sessions/{id}/messages": [
                *(f"since={value}" for value in ("x", "-1", "0.5", "9" * 30, "1&since=2", "2026-11-18")),
                *(f"since={value}" for value in ("2026-11-18T09:30:00", "2026-13-18T09:30:00Z")),
            ],
            "/api/sessions/{id}/events": ["since=x", "since=-1", f"since={'9' * 30}", "since=1.5", "from=1"],
            "/api/sessions/{id}/export": ["format=xml", "format=", "format=JSON", "path=/etc"],
            "/api/sessions/{id}/files/x": ["name=" + "x" * 201, "path=/etc/passwd"],
        }
        for path, queries in wrong.items():
            for query in queries:
                reply = await client.send("GET", f"{path.replace('{id}', session['id'])}?{query}")
                assert reply.status == 422, (path, query, reply)
                assert reply.problem
        for query in ("permanent=perhaps", "permanent=", "force=true", "permanent=true&permanent=true"):
            reply = await client.send("DELETE", f"/api/sessions/{session['id']}?{query}")
            assert reply.status == 422, query
        reply = await client.send("GET", "/api/sessions?q=%00%ff%ed%a0%80&channel=%2e%2e%2f&repoId=*&agent=%")
        assert (reply.status, json.loads(reply.body)["total"]) == (200, 0)
        assert (await client.program.read(session))["status"] == "active"


async def test_large_bodies_are_not_read(tmp_path: Path) -> None:
    async with raw(tmp_path) as client:
        session = await client.program.start()
        path, server = f"/api/sessions/{session['id']}/prompt", client.program.daemon.server
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {client.program.token}\r\nConnection: close\r\n"
        )
        reply = await client.exchange(f"{head}Content-Length: 1000000000000\r\n\r\n".encode())
        assert reply.status == 413
        assert reply.problem
        # An endless body in chunks.
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        sent, chunk = 0, b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        answer = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
        while not answer.done():
            writer.write(chunk)
            await writer.drain()
            sent += 0x10000
            assert sent < 1 << 30, "the whole body was read"
        assert b" 413 " in await answer
        writer.write(b"0\r\n\r\n")  # Otherwise the server would wait for the rest for a moment.
        await reader.read()
        writer.close()
        # Lengths that contradict each other, or are none.
        for wrong in ("Content-Length: 5\r\nTransfer-Encoding: chunked", "Content-Length: -1", "Content-Length: 1e3"):
            reply = await client.exchange(f"{head}{wrong}\r\n\r\n".encode() + b"0\r\n\r\n")
            assert reply.status == 400, wrong
        assert (await client.program.read(session))["messages"] == []


async def test_a_download_cannot_inject_headers(tmp_path: Path) -> None:
    async with raw(tmp_path) as client:
        program = client.program
        session = await program.start()
        body = {"text": "read", "attachments": [{"name": "a.txt", "data": "aGVsbG8="}]}
        status, _ = await program.call("POST", f"/api/sessions/{session['id']}/prompt", body)
        assert status == 202
        await program.answered(session)
        url = (await program.read(session))["messages"][0]["content"]["attachments"][0]["url"].partition("?")[0]
        for name in ("a%0d%0aX-Injected:%20yes", "%22;%20filename=x", "..%2f..%2fx", "%00", "%e2%80%ae", "x" * 200, ""):
            reply = await client.send("GET", f"{url}?name={name}")
            assert (reply.status, reply.body) == (200, b"hello"), name
            assert "x-injected" not in reply.headers
            assert reply.headers["content-type"] == "application/octet-stream"
            assert reply.headers["content-disposition"].startswith("attachment; filename*=UTF-8''")
        # A file of one session is not there in another one.
        other = await program.start()
        reply = await client.send("GET", url.replace(session["id"], other["id"]))
        assert reply.status == 404


async def test_after_its_deletion_every_route_of_a_session_is_not_found(tmp_path: Path) -> None:
    async with raw(tmp_path) as client:
        program = client.program
        session = await program.start()
        await program.prompt(session, "hello", Idempotency_Key="k")
        await program.answered(session)
        status, _ = await program.call("DELETE", f"/api/sessions/{session['id']}?permanent=true")
        assert status == 200
        bodies = {"prompt": b'{"text": "x"}', "x": b'{"decision": "deny"}', session["id"]: b'{"title": "x"}'}
        bodies["reply"] = bodies["prompt"]
        bodies["undo"] = b'{"message": "x"}'
        for route in client.routes():
            if not route.path.startswith("/api/sessions/{id}"):
                continue
            path = filled(route, id=session["id"])
            body = None if route.method in ("GET", "DELETE") else bodies.get(path.rpartition("/")[2], b"{}")
            reply = await client.send(route.method, path, body=body)
            assert reply.status == 404, (route.path, reply)
            assert reply.problem


async def test_a_response_to_head_has_no_body(tmp_path: Path) -> None:
    """A client that keeps the connection would take a body for the next response."""
    async with raw(tmp_path) as client:
        session = await client.program.start()
        await client.program.prompt(session, "hello")
        await client.program.answered(session)
        for route in client.routes():
            if route.method == "GET" and not route.is_stream:
                reply = await client.send("HEAD", filled(route, id=session["id"]))
                assert reply.status in (200, 404, 422), route.path
                assert reply.body == b"", route.path
