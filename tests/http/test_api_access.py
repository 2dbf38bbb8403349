"""API tokens on the routes of the API: scopes, formats of errors, and streams."""

import asyncio
from http import HTTPStatus
from pathlib import Path

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from gateway.contract import Access, Caller, Route, TokenScope
from gateway.http.auth import MAX_WRONG_ATTEMPTS
from gateway.http.responses import HttpLimits
from tests.http.examples import EXAMPLES
from tests.http.harness import BEARER, EXPIRED, TIMEOUT, Time, program, read_all, serving

READ = program(TokenScope.READ)


async def test_an_owner_has_every_scope(tmp_path: Path) -> None:
    async with serving(tmp_path, EXAMPLES) as running:
        for headers in (BEARER, running.own | running.cookie(), program(TokenScope.ADMIN)):
            for path in ("/api/example", "/api/example/x", "/api/admin"):
                assert await running.status("GET", path, headers=headers) == 200
        async with running.control.get("/api/admin") as response:
            assert response.status == 200


async def test_a_missing_scope_is_named(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, EXAMPLES) as running,
        running.client.post("/api/example", json={}, headers=READ) as response,
    ):
        assert (response.status, response.content_type) == (403, "application/problem+json")
        assert await response.json() == {
            "type": "about:blank",
            "title": "Forbidden",
            "status": 403,
            "detail": "This token lacks the scope `prompt`. Create one that has it with `gatehouse token create`.",
            "scope": "prompt",
        }


async def test_a_request_without_a_token_is_told_how_to_get_one(tmp_path: Path) -> None:
    async with serving(tmp_path, EXAMPLES) as running, running.client.get("/api/example") as response:
        assert (response.status, response.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert "gatehouse token create" in (await response.json())["detail"]


async def test_wrong_api_tokens_count_as_wrong_attempts(tmp_path: Path) -> None:
    time = Time()
    wrong = {"Authorization": "Bearer gh_read_wrong", "X-Forwarded-For": "192.0.2.1"}
    async with serving(tmp_path, EXAMPLES, time=time) as running:
        for _ in range(MAX_WRONG_ATTEMPTS):
            assert await running.status("GET", "/api/example", headers=wrong) == 401
        async with running.client.get("/api/example", headers=wrong) as response:
            assert response.status == 429
            assert int(response.headers["Retry-After"]) > 0
            assert response.content_type == "application/problem+json"
        right = READ | {"X-Forwarded-For": "192.0.2.1"}
        assert await running.status("GET", "/api/example", headers=right) == 429
        time.now += 61
        assert await running.status("GET", "/api/example", headers=right) == 200


async def test_an_expired_token_is_no_guess(tmp_path: Path) -> None:
    async with serving(tmp_path, EXAMPLES) as running:
        headers = {"Authorization": f"Bearer {EXPIRED}", "X-Forwarded-For": "192.0.2.1"}
        for _ in range(MAX_WRONG_ATTEMPTS + 5):
            assert await running.status("GET", "/api/example", headers=headers) == 401


PROBLEMS = [
    ("GET", "/api/nowhere", {}, 404, "There is nothing at this address."),
    ("GET", "/api", {}, 404, "There is nothing at this address."),
    ("GET", "/hooks/nowhere", {}, 404, "There is nothing at this address."),
    ("PUT", "/api/example", READ, 405, "This address doesn't accept that method."),
    ("GET", "/api/refuse", READ, 409, "Not today."),
    ("GET", "/api/crash", READ, 500, "Something went wrong. The gateway's log has the details."),
    ("POST", "/hooks/example", {}, 401, "Only the platform that this webhook belongs to may call it."),
    ("GET", "/api/example", {"Origin": "http://evil.example"}, 403, "Requests from pages of other sites are refused."),
    ("GET", "/api/example", {"Expect": "more"}, 417, "The only `Expect` that is supported is `100-continue`."),
]


@pytest.mark.parametrize(("method", "path", "headers", "status", "detail"), PROBLEMS)
async def test_errors_of_the_api_are_problem_documents(
    tmp_path: Path, method: str, path: str, headers: dict[str, str], status: int, detail: str
) -> None:
    async with serving(tmp_path, EXAMPLES) as running:
        with capture_logs():
            async with running.client.request(method, path, headers=headers) as response:
                assert (response.status, response.content_type) == (status, "application/problem+json")
                title = HTTPStatus(status).phrase
                expected = {"type": "about:blank", "title": title, "status": status, "detail": detail}
                assert await response.json() == expected


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [(b"{", "application/json", 400), (b"{}", "text/plain", 415), (b" " * 5001, "application/json", 413)],
)
async def test_refused_bodies_get_problem_documents(
    tmp_path: Path, body: bytes, content_type: str, status: int
) -> None:
    headers = program(TokenScope.PROMPT) | {"Content-Type": content_type}
    async with (
        serving(tmp_path, EXAMPLES, max_body_bytes=5000) as running,
        running.client.post("/api/example", data=body, headers=headers) as response,
    ):
        assert (response.status, response.content_type) == (status, "application/problem+json")
        assert (await response.json())["status"] == status


async def test_a_problem_document_may_have_more_members(tmp_path: Path) -> None:
    async with serving(tmp_path, EXAMPLES) as running, running.client.get("/api/explain", headers=READ) as response:
        assert await response.json() == {
            "type": "too_full",
            "title": "Unprocessable Entity",
            "status": 422,
            "detail": "Too full.",
            "param": "text",
            "code": "full",
            "limit": 5,
        }


OPENAI_ERRORS = [
    ("GET", "/v1/nowhere", {}, 404, "invalid_request_error", None, None),
    ("POST", "/v1/example", {}, 401, "invalid_request_error", None, "invalid_api_key"),
    ("POST", "/v1/example", READ, 403, "invalid_request_error", None, "insufficient_permissions"),
    ("DELETE", "/v1/example", READ, 405, "invalid_request_error", None, None),
    ("GET", "/v1/example/refuse", READ, 409, "invalid_request_error", None, None),
    ("GET", "/v1/example/explain", READ, 422, "too_full", "text", "full"),
    ("GET", "/v1/example/crash", READ, 500, "server_error", None, None),
]


@pytest.mark.parametrize(("method", "path", "headers", "status", "kind", "param", "code"), OPENAI_ERRORS)
async def test_errors_under_v1_have_the_format_of_openai(
    tmp_path: Path,
    method: str,
    path: str,
    headers: dict[str, str],
    status: int,
    kind: str,
    param: str | None,
    code: str | None,
) -> None:
    async with serving(tmp_path, EXAMPLES) as running:
        with capture_logs():
            async with running.client.request(method, path, headers=headers) as response:
                assert (response.status, response.content_type) == (status, "application/json")
                [error] = (await response.json()).values()
                assert isinstance(error.pop("message"), str)
                assert error == {"type": kind, "param": param, "code": code}


@pytest.mark.parametrize("path", ["/apix", "/v1x", "/hooksx", "/v12/x"])
async def test_other_addresses_keep_the_plain_format(tmp_path: Path, path: str) -> None:
    async with serving(tmp_path) as running:
        assert await running.error("GET", path) == "There is nothing at this address."


async def test_a_stream_has_no_deadline(tmp_path: Path) -> None:
    limits = HttpLimits(handler=0.05, anonymous=0.1, closing=0.5)
    async with (
        serving(tmp_path, EXAMPLES, limits=limits) as running,
        running.client.get("/api/stream", headers=READ) as response,
    ):
        assert await response.content.read(5) == b"first"
        rest = asyncio.ensure_future(response.content.read(1))
        done, _ = await asyncio.wait([rest], timeout=0.5)  # The claim is about time passing.
        assert not done
        rest.cancel()


async def test_a_stream_has_no_head(tmp_path: Path) -> None:
    async with serving(tmp_path, EXAMPLES) as running:
        assert await running.status("HEAD", "/api/stream", headers=READ) == 405


async def test_closing_the_server_cuts_streams_at_once(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(TIMEOUT),
        serving(tmp_path, EXAMPLES, limits=HttpLimits(closing=TIMEOUT * 10)) as running,
        running.connect() as (reader, writer),
    ):
        writer.write(running.head("GET /api/stream", READ))
        await reader.readuntil(b"first")
        await running.server.__aexit__(None, None, None)
        await read_all(reader)


async def test_the_handler_of_a_stream_ends_when_its_client_leaves(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def wait(request: web.Request, _: Caller) -> web.StreamResponse:
        await web.StreamResponse().prepare(request)
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    route = Route(method="GET", path="/api/wait", access=Access.API, handle=wait, is_stream=True)
    async with asyncio.timeout(TIMEOUT), serving(tmp_path, [route]) as running:
        async with running.connect() as (reader, writer):
            writer.write(running.head("GET /api/wait", READ))
            await reader.readuntil(b"\r\n\r\n")
            assert not ended.is_set()
        await ended.wait()


async def test_a_token_can_be_cut_off(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(TIMEOUT),
        serving(tmp_path, EXAMPLES) as running,
        running.connect() as (cut, first),
        running.connect() as (idle, second),
        running.connect() as (other, third),
        running.connect() as (own, fourth),
    ):
        first.write(running.head("GET /api/stream", READ))
        await cut.readuntil(b"first")
        second.write(running.head("GET /api/example", READ))
        await idle.readuntil(b"}")
        third.write(running.head("GET /api/stream", program(TokenScope.ADMIN)))
        await other.readuntil(b"first")
        fourth.write(running.head("GET /api/stream", BEARER))
        await own.readuntil(b"first")
        running.server.drop_token("id-of-read")
        await read_all(cut)
        await read_all(idle)
        running.server.drop_owners()
        await read_all(own)
        assert not other.at_eof()


async def test_programs_leave_connections_for_the_owner(tmp_path: Path) -> None:
    async with serving(tmp_path, EXAMPLES, limits=HttpLimits(max_authenticated=8)) as running:
        streams = [await running.client.get("/api/stream", headers=READ) for _ in range(7)]
        assert await running.status("GET", "/api/example", headers=READ) == 503
        assert await running.status("GET", "/api/example", headers=BEARER) == 200
        for stream in streams:
            stream.close()
