"""The rate limit of the API, and the headers that report it."""

from pathlib import Path

import pytest
from aiohttp import ClientResponse

from gateway.contract import TokenScope
from tests.http.examples import EXAMPLES
from tests.http.harness import BEARER, Time, program, serving

READ = program(TokenScope.READ)
ADMIN = program(TokenScope.ADMIN)


def reported(response: ClientResponse) -> tuple[str | None, str | None, str | None]:
    limit, remaining, reset = (response.headers.get(f"RateLimit-{name}") for name in ("Limit", "Remaining", "Reset"))
    return limit, remaining, reset


async def test_responses_report_what_is_left(tmp_path: Path) -> None:
    async with serving(tmp_path, EXAMPLES, rate_limit=lambda: 60, time=Time()) as running:
        for path, left in (("/api/example", "59"), ("/api/example/x", "58"), ("/api/admin", "57"), ("/v1/x", None)):
            async with running.client.get(path, headers=READ) as response:
                assert reported(response)[1] == left
        async with running.client.get("/api/example", headers=READ) as response:
            assert reported(response) == ("60", "56", "4")
            assert "x-ratelimit-limit-requests" not in response.headers


async def test_clients_of_openai_get_their_own_headers_too(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, EXAMPLES, rate_limit=lambda: 60, time=Time()) as running,
        running.client.get("/v1/example/refuse", headers=READ) as response,
    ):
        assert reported(response) == ("60", "59", "1")
        assert response.headers["x-ratelimit-limit-requests"] == "60"
        assert response.headers["x-ratelimit-remaining-requests"] == "59"
        assert response.headers["x-ratelimit-reset-requests"] == "1s"


async def test_streams_report_it_too(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, EXAMPLES, rate_limit=lambda: 60, time=Time()) as running,
        running.client.get("/api/stream", headers=READ) as response,
    ):
        assert reported(response) == ("60", "59", "1")


@pytest.mark.parametrize("path", ["/api/example", "/v1/example/refuse"])
async def test_too_many_requests_are_refused_until_the_allowance_grows(tmp_path: Path, path: str) -> None:
    time = Time()
    async with serving(tmp_path, EXAMPLES, rate_limit=lambda: 2, time=time) as running:
        for _ in range(2):
            assert await running.status("GET", path, headers=READ) != 429
        async with running.client.get(path, headers=READ) as response:
            assert (response.status, response.headers["Retry-After"]) == (429, "30")
            assert reported(response) == ("2", "0", "60")
            answer = await response.json()
        sentence = "This token may send 2 requests a minute. Try again in 30 seconds."
        if path.startswith("/v1"):
            expected = {"message": sentence, "type": "requests", "param": None, "code": "rate_limit_exceeded"}
            assert answer == {"error": expected}
        else:
            assert (answer["status"], answer["detail"]) == (429, sentence)
        time.now += 30
        assert await running.status("GET", path, headers=READ) != 429
        assert await running.status("GET", path, headers=READ) == 429


async def test_each_token_has_its_own_limit_and_so_has_the_owner(tmp_path: Path) -> None:
    async with serving(tmp_path, EXAMPLES, rate_limit=lambda: 1, time=Time()) as running:
        for headers in (READ, ADMIN, BEARER):
            assert await running.status("GET", "/api/example", headers=headers) == 200
            assert await running.status("GET", "/api/example", headers=headers) == 429
        # The owner's cookie shares the limit of the owner's token.
        cookie = running.own | running.cookie()
        assert await running.status("GET", "/api/example", headers=cookie) == 429


async def test_the_limit_is_that_of_the_api_only(tmp_path: Path) -> None:
    async with serving(tmp_path, EXAMPLES, rate_limit=lambda: 1, time=Time()) as running:
        for _ in range(3):
            async with running.client.get("/example", headers=BEARER) as response:
                assert (response.status, reported(response)) == (200, (None, None, None))
            async with running.control.get("/api/example") as response:
                assert (response.status, reported(response)) == (200, (None, None, None))


async def test_a_request_without_a_credential_uses_up_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path, EXAMPLES, rate_limit=lambda: 1, time=Time()) as running:
        for headers in ({}, {"Authorization": "Bearer gh_read_wrong"}):
            async with running.client.get("/api/example", headers=headers) as response:
                assert (response.status, reported(response)) == (401, (None, None, None))
        assert await running.status("GET", "/api/example", headers=READ) == 200


async def test_no_limit_reports_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path, EXAMPLES) as running, running.client.get("/api/example", headers=READ) as response:
        assert reported(response) == (None, None, None)


async def test_a_lower_limit_applies_at_once(tmp_path: Path) -> None:
    limits = [100]
    async with serving(tmp_path, EXAMPLES, rate_limit=lambda: limits[0], time=Time()) as running:
        assert await running.status("GET", "/api/example", headers=READ) == 200
        limits[0] = 1
        assert await running.status("GET", "/api/example", headers=READ) == 200
        assert await running.status("GET", "/api/example", headers=READ) == 429
