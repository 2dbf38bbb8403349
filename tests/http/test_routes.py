"""Every route with every kind of bad credential. A route that is missing in `expected_access` fails the tests."""

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from channels.web.channel import page_files
from config import HttpSettings, Secret, Settings
from gateway.admin.client import ControlClient
from gateway.build import open_daemon
from gateway.contract import Access, Route, TokenScope
from gateway.errors import Refused
from gateway.http.auth import COOKIE_LIFETIME, Auth
from gateway.http.routes import ChannelHealth, Health, core_routes
from gateway.http.server import HttpServer
from tests.http.examples import EXAMPLES
from tests.http.harness import BEARER, EXPIRED, TOKEN, Running, Time, program, serving


@pytest.fixture
async def mounted_routes(tmp_path: Path) -> list[Route]:
    """All routes of a daemon with every built-in channel, and the examples, which cover every rule."""
    token = {"token": "123456:made-up-by-this-test-0123456789abcd"}
    channels: dict[str, dict[str, object]] = {
        point.name: {**token} for point in entry_points(group="gatehouse.channels")
    }
    channels["telegram"] = {**token, "options": {"webhook_url": "https://bot.example.org"}}
    channels["discord"] = {"token": "made-up.by-this.test"}
    settings = Settings.model_validate({"gateway": {"data_dir": tmp_path / "daemon"}, "channels": channels})
    async with open_daemon(settings, listen=False) as daemon:
        core = {"/auth", "/healthz", "/readyz"}
        own = [route for route in daemon.server.routes if f"/{route.path.split('/')[1]}" not in core]
        return [*EXAMPLES, *own]


def expected_access() -> dict[tuple[str, str], Access]:
    """Who may call each route. Written by hand, so that each new route gets a decision."""
    return {
        ("POST", "/auth/exchange"): Access.PUBLIC,
        ("POST", "/auth/logout"): Access.OWNER,
        ("POST", "/auth/link"): Access.CONTROL,
        ("GET", "/auth/whoami"): Access.OWNER,
        ("GET", "/healthz"): Access.PUBLIC,
        ("GET", "/readyz"): Access.PUBLIC,
        ("GET", "/status"): Access.OWNER,
        ("GET", "/metrics"): Access.OWNER,
        ("POST", "/reload"): Access.CONTROL,
        ("POST", "/log-level"): Access.CONTROL,
        ("POST", "/config/check"): Access.CONTROL,
        ("POST", "/doctor"): Access.CONTROL,
        ("POST", "/doctor/storage"): Access.CONTROL,
        ("GET", "/spool"): Access.CONTROL,
        ("POST", "/spool/retry"): Access.CONTROL,
        ("GET", "/pair"): Access.CONTROL,
        ("POST", "/pair/approve"): Access.CONTROL,
        ("POST", "/pair/deny"): Access.CONTROL,
        ("POST", "/pair/revoke"): Access.CONTROL,
        ("POST", "/pair/role"): Access.CONTROL,
        ("GET", "/tokens"): Access.CONTROL,
        ("POST", "/tokens/create"): Access.CONTROL,
        ("POST", "/tokens/revoke"): Access.CONTROL,
        ("GET", "/sessions/list"): Access.CONTROL,
        ("GET", "/sessions/lines"): Access.CONTROL,
        ("GET", "/sessions/transcript"): Access.CONTROL,
        ("GET", "/sessions/verify"): Access.CONTROL,
        ("GET", "/sessions/import"): Access.CONTROL,
        ("POST", "/memory/import"): Access.CONTROL,
        ("GET", "/sessions/move"): Access.CONTROL,
        ("GET", "/sessions/move-belongings"): Access.CONTROL,
        ("POST", "/sessions/delete"): Access.CONTROL,
        ("POST", "/sessions/restore"): Access.CONTROL,
        ("GET", "/backup"): Access.CONTROL,
        ("POST", "/files"): Access.OWNER,
        ("GET", "/files/{folder}/{name}"): Access.OWNER,
        **{("GET", path): Access.PUBLIC for path in page_files()},
        ("POST", "/telegram/default/webhook"): Access.CHANNEL,
        ("POST", "/hooks/{name}"): Access.CHANNEL,
        ("GET", "/web/ws"): Access.OWNER,
        ("GET", "/terminal/ws"): Access.CONTROL,
        ("POST", "/api/sessions"): Access.API,
        ("GET", "/api/sessions"): Access.API,
        ("GET", "/api/sessions/{id}"): Access.API,
        ("PATCH", "/api/sessions/{id}"): Access.API,
        ("DELETE", "/api/sessions/{id}"): Access.API,
        ("POST", "/api/sessions/{id}/prompt"): Access.API,
        ("GET", "/api/sessions/{id}/messages"): Access.API,
        ("GET", "/api/sessions/{id}/events"): Access.API,
        ("POST", "/api/sessions/{id}/complete"): Access.API,
        ("POST", "/api/sessions/{id}/stop"): Access.API,
        ("POST", "/api/sessions/{id}/resume"): Access.API,
        ("POST", "/api/sessions/{id}/undo"): Access.API,
        ("POST", "/api/sessions/{id}/archive"): Access.API,
        ("POST", "/api/sessions/{id}/restore"): Access.API,
        ("GET", "/api/sessions/{id}/export"): Access.API,
        ("GET", "/api/sessions/{id}/files/{name}"): Access.API,
        ("POST", "/api/sessions/{id}/approvals/{approvalId}"): Access.API,
        ("GET", "/api/search"): Access.API,
        ("POST", "/api/files"): Access.API,
        ("POST", "/api/schedules"): Access.API,
        ("GET", "/api/schedules"): Access.API,
        ("GET", "/api/schedules/{id}"): Access.API,
        ("PATCH", "/api/schedules/{id}"): Access.API,
        ("DELETE", "/api/schedules/{id}"): Access.API,
        ("POST", "/api/schedules/{id}/run"): Access.API,
        ("GET", "/api/schedules/{id}/runs"): Access.API,
        ("GET", "/api/repos"): Access.API,
        ("GET", "/api/agents"): Access.API,
        ("GET", "/api/roles"): Access.API,
        ("GET", "/api/usage"): Access.API,
        ("GET", "/api/status"): Access.API,
        ("GET", "/api/overview"): Access.API,
        ("GET", "/api/events"): Access.API,
        ("GET", "/api/logs"): Access.API,
        ("GET", "/api/approvals"): Access.API,
        ("GET", "/api/grants"): Access.API,
        ("DELETE", "/api/grants/{id}"): Access.API,
        ("GET", "/api/people"): Access.API,
        ("POST", "/api/people/approve"): Access.API,
        ("POST", "/api/people/deny"): Access.API,
        ("POST", "/api/people/revoke"): Access.API,
        ("POST", "/api/people/role"): Access.API,
        ("GET", "/api/dead-letters"): Access.API,
        ("POST", "/api/dead-letters/retry"): Access.API,
        ("POST", "/api/dead-letters/drop"): Access.API,
        ("GET", "/api/usage/history"): Access.API,
        ("POST", "/api/sessions/{id}/reply"): Access.API,
        ("POST", "/api/doctor"): Access.API,
        ("POST", "/api/doctor/repair"): Access.API,
        ("GET", "/api/backup"): Access.API,
        ("POST", "/api/restart"): Access.API,
        ("GET", "/api/agents/details"): Access.API,
        ("GET", "/api/mcp"): Access.API,
        ("POST", "/api/agents/{id}/tools/{tool}/try"): Access.API,
        ("GET", "/api/settings"): Access.API,
        ("PATCH", "/api/settings"): Access.API,
        ("POST", "/api/settings/preview"): Access.API,
        ("POST", "/api/reload"): Access.API,
        ("GET", "/api/openapi.json"): Access.PUBLIC,
        ("GET", "/api/docs"): Access.PUBLIC,
        ("GET", "/api/docs.css"): Access.PUBLIC,
        ("GET", "/v1/models"): Access.API,
        ("GET", "/v1/models/{id}"): Access.API,
        ("POST", "/v1/chat/completions"): Access.API,
        ("POST", "/v1/responses"): Access.API,
        ("GET", "/v1/responses/{id}"): Access.API,
        ("DELETE", "/v1/responses/{id}"): Access.API,
        ("GET", "/v1/responses/{id}/input_items"): Access.API,
        ("GET", "/api/example"): Access.API,
        ("GET", "/api/example/{name}"): Access.API,
        ("POST", "/api/example"): Access.API,
        ("DELETE", "/api/example/{name}"): Access.API,
        ("GET", "/api/refuse"): Access.API,
        ("GET", "/api/crash"): Access.API,
        ("GET", "/api/explain"): Access.API,
        ("GET", "/api/stream"): Access.API,
        ("GET", "/api/admin"): Access.API,
        ("POST", "/v1/example"): Access.API,
        ("GET", "/v1/example/refuse"): Access.API,
        ("GET", "/v1/example/crash"): Access.API,
        ("GET", "/v1/example/explain"): Access.API,
        ("POST", "/hooks/example"): Access.CHANNEL,
        ("GET", "/example"): Access.OWNER,
        ("POST", "/example"): Access.OWNER,
        ("POST", "/example/public"): Access.PUBLIC,
        ("GET", "/example/public"): Access.PUBLIC,
        ("GET", "/example/things/{name}"): Access.OWNER,
        ("DELETE", "/example/things/{name}"): Access.OWNER,
        ("POST", "/example/control"): Access.CONTROL,
        ("GET", "/example/control"): Access.CONTROL,
        ("GET", "/example/crash"): Access.OWNER,
        ("GET", "/example/crash-midway"): Access.OWNER,
        ("GET", "/example/refuse"): Access.OWNER,
        ("GET", "/example/lose"): Access.OWNER,
        ("GET", "/example/elsewhere"): Access.OWNER,
        ("GET", "/example/hang"): Access.OWNER,
        ("GET", "/example/talk"): Access.OWNER,
        ("GET", "/example/nonsense"): Access.OWNER,
    }


def filled(path: str) -> str:
    return re.sub(r"\{\w+\}", "x", path)


def bad_credentials(running: Running, time: Time) -> Iterator[dict[str, str]]:
    other = Auth(Secret("the-token-of-another-gateway"), time.clock())
    cookie = running.cookie()["Cookie"]
    name, value = cookie.split("=", 1)
    yield {}
    api_tokens = ("gh_", "gh_read", "gh_read_", "gh_read_secre", "gh_read_secretx", "GH_READ_SECRET", EXPIRED)
    for token in ("", "wrong", "null", "undefined", TOKEN[:-1], f"{TOKEN}x", TOKEN.upper(), *api_tokens):
        yield {"Authorization": f"Bearer {token}"}
    yield {"Authorization": f"Basic {TOKEN}"}
    yield {"Authorization": TOKEN}
    yield {"Authorization": ""}
    yield running.own | {"Cookie": f"{name}="}
    yield running.own | {"Cookie": f"{name}=null"}
    yield running.own | {"Cookie": f"{name}={TOKEN}"}
    yield running.own | {"Cookie": f"{name}={value[:-1]}"}
    yield running.own | {"Cookie": f"{name}={value.replace('v1.1', 'v1.9', 1)}"}
    yield running.own | {"Cookie": f"gatehouse_1={value}"}
    yield running.own | running.cookie(other)
    yield running.own | running.cookie(_auth_long_ago(time))
    yield {"Cookie": cookie}
    yield {"Cookie": cookie, "Sec-Fetch-Site": "cross-site"}
    yield {"Cookie": cookie, "Sec-Fetch-Site": "none"}
    yield {"Cookie": cookie, "Origin": "null"}
    yield {"Cookie": cookie, "Origin": "http://evil.example"}
    yield {"Cookie": cookie, "Origin": f"http://localhost:{running.server.port}"}
    yield {"X-Forwarded-For": "127.0.0.1", "X-Forwarded-User": "owner"}


def _auth_long_ago(time: Time) -> Auth:
    return Auth(Secret(TOKEN), Time(time.now - COOKIE_LIFETIME - 1).clock())


def guarded(routes: Sequence[Route]) -> list[Route]:
    return [route for route in routes if route.access is not Access.PUBLIC]


def refusal(access: Access, headers: dict[str, str], own: str) -> int:
    if headers.get("Origin", own) != own:
        return 403
    return 404 if access is Access.CONTROL else 401


async def test_every_route_has_the_expected_access(tmp_path: Path, mounted_routes: list[Route]) -> None:
    async with serving(tmp_path, mounted_routes) as running:
        assert {(route.method, route.path): route.access for route in running.server.routes} == expected_access()


async def test_no_bad_credential_opens_any_route(tmp_path: Path, mounted_routes: list[Route]) -> None:
    time = Time()
    async with serving(tmp_path, mounted_routes, time=time) as running:
        for route in guarded(running.server.routes):
            for headers in bad_credentials(running, time):
                time.now += 60  # Otherwise these would be too many attempts.
                path = filled(route.path)
                json: dict[str, str] | None = {} if route.method == "POST" else None
                status = await running.status(route.method, f"{path}?token={TOKEN}", headers=headers, json=json)
                assert status == refusal(route.access, headers, running.server.url), (route, headers)


async def test_no_bad_credential_opens_a_websocket(tmp_path: Path, mounted_routes: list[Route]) -> None:
    time = Time()
    async with serving(tmp_path, mounted_routes, time=time) as running:
        for route in guarded(running.server.routes):
            for headers in bad_credentials(running, time) if route.method == "GET" else ():
                time.now += 60
                status = await running.upgrade(filled(route.path), headers)
                assert status == refusal(route.access, headers, running.server.url), (route, headers)


async def test_no_api_token_opens_a_route_that_is_not_for_it(tmp_path: Path, mounted_routes: list[Route]) -> None:
    """Not even `admin` opens the routes of the owner and of the control socket."""
    async with serving(tmp_path, mounted_routes) as running:
        for route in guarded(running.server.routes):
            for scope in TokenScope:
                status = await running.status(
                    route.method,
                    filled(route.path),
                    headers=program(scope),
                    json={} if route.method == "POST" else None,
                    allow_redirects=False,
                )
                match route.access:
                    case Access.API if scope in {TokenScope.ADMIN, route.scope} or route.scope is None:
                        assert status not in {401, 403}, (route, scope)
                    case Access.CONTROL:
                        assert status == 404, (route, scope)
                    case Access.CHANNEL:
                        assert status == 401, (route, scope)
                    case _:
                        assert status == 403, (route, scope)


FOR_EVERY_TOKEN = {
    ("GET", "/api/example"),
    ("GET", "/api/sessions"),
    ("GET", "/api/sessions/{id}"),
    ("PATCH", "/api/sessions/{id}"),
    ("DELETE", "/api/sessions/{id}"),
    ("GET", "/api/sessions/{id}/messages"),
    ("GET", "/api/sessions/{id}/events"),
    ("POST", "/api/sessions/{id}/complete"),
    ("POST", "/api/sessions/{id}/stop"),
    ("POST", "/api/sessions/{id}/resume"),
    ("GET", "/api/sessions/{id}/export"),
    ("GET", "/api/sessions/{id}/files/{name}"),
    ("POST", "/api/sessions/{id}/approvals/{approvalId}"),
    ("GET", "/api/search"),
    ("GET", "/api/repos"),
    ("GET", "/api/agents"),
    ("GET", "/api/usage"),
    ("GET", "/api/usage/history"),
    ("GET", "/api/status"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{id}"),
}
"""Routes without a scope: each token sees and changes only the sessions that it may. `tests/api` checks that."""


async def test_every_other_route_of_the_api_names_a_scope(mounted_routes: list[Route]) -> None:
    without = {(route.method, route.path) for route in mounted_routes if route.access is Access.API and not route.scope}
    assert without == FOR_EVERY_TOKEN


async def test_a_bad_credential_is_anonymous_on_public_routes(tmp_path: Path, mounted_routes: list[Route]) -> None:
    time = Time()
    async with serving(tmp_path, mounted_routes, time=time) as running:
        for headers in bad_credentials(running, time):
            time.now += 60
            async with running.client.get("/example/public", headers=headers) as response:
                assert response.status == 403 or await response.json() == {"caller": ""}


@pytest.mark.parametrize("extra", [{}, {"Cookie": "gatehouse=x"}, {"X-Token": "bogus"}])
async def test_the_token_is_accepted_next_to_bogus_credentials(tmp_path: Path, extra: dict[str, str]) -> None:
    async with serving(tmp_path) as running:
        bogus = {"Cookie": f"gatehouse_{running.server.port}=bogus"} | running.own
        for _ in range(15):
            assert await running.status("GET", "/auth/whoami", headers=BEARER | bogus | extra) == 200


async def test_a_cookie_is_accepted_next_to_a_wrong_token(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        headers = running.cookie() | running.own | {"Authorization": "Bearer wrong"}
        assert await running.status("GET", "/auth/whoami", headers=headers) == 200


async def test_control_routes_do_not_exist_over_tcp_even_for_the_owner(tmp_path: Path) -> None:
    async with serving(tmp_path, EXAMPLES) as running:
        assert await running.status("GET", "/example/control", headers=BEARER) == 404
        assert await running.status("POST", "/auth/link", headers=BEARER, json={}) == 404


async def test_a_link_signs_a_browser_in_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        async with running.control.post("/auth/link", json={}) as response:
            page, _, code = (await response.json())["url"].partition("#code=")
        assert page == f"{running.server.url}/"
        async with running.client.post("/auth/exchange", json={"code": code}, headers=running.own) as response:
            cookie = response.cookies[f"gatehouse_{running.server.port}"]
            assert response.status == 200
        assert (cookie["httponly"], cookie["samesite"], cookie["path"], cookie["max-age"]) == (
            True,
            "Strict",
            "/",
            str(COOKIE_LIFETIME),
        )
        headers = running.own | {"Cookie": f"{cookie.key}={cookie.value}"}
        assert await running.status("GET", "/auth/whoami", headers=headers) == 200
        sentence = await running.error("POST", "/auth/exchange", json={"code": code}, headers=running.own)
        assert sentence == "This link has been used or has expired. Run `gatehouse link` for a new one."


@pytest.mark.parametrize("body", [{}, {"code": None}, {"code": 7}, {"code": ["x"]}, {"code": ""}, {"code": "x" * 9999}])
async def test_a_wrong_code_is_refused(tmp_path: Path, body: dict[str, object]) -> None:
    async with serving(tmp_path) as running:
        running.auth.mint_code()
        assert await running.status("POST", "/auth/exchange", json=body) == 401


async def test_a_code_expires_after_an_hour(tmp_path: Path) -> None:
    time = Time()
    async with serving(tmp_path, time=time) as running:
        code = running.auth.mint_code()
        time.now += 3600
        assert await running.status("POST", "/auth/exchange", json={"code": code}) == 401


async def test_logging_out_deletes_the_cookie(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        headers = running.own | running.cookie()
        async with running.client.post("/auth/logout", json={}, headers=headers) as response:
            assert response.status == 200
            assert response.cookies[f"gatehouse_{running.server.port}"].value == ""


async def test_our_own_page_may_use_its_cookie_for_a_get_without_origin(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        headers = running.cookie() | {"Sec-Fetch-Site": "same-origin"}
        assert await running.status("GET", "/auth/whoami", headers=headers) == 200


async def test_readiness_shows_reasons_only_to_the_owner(tmp_path: Path) -> None:
    since = datetime(2026, 3, 1, tzinfo=UTC)
    down = ChannelHealth(name="web", account="default", state="down", reason="a secret reason", since=since)
    second = ChannelHealth(name="web", account="two", state="up", reason="", since=since)
    health = Health(ready=False, channels=(down, second), troubles=("The disk is slow.",))
    async with serving(tmp_path, health=lambda: health) as running:
        async with running.client.get("/readyz") as response:
            assert response.status == 503
            assert await response.json() == {"status": "not ready", "channels": {"web": "down", "web:two": "up"}}
        async with running.client.get("/readyz", headers=BEARER) as response:
            found = await response.json()
    assert found["channels"]["web"] == {"state": "down", "reason": "a secret reason", "since": since.isoformat()}
    assert found["troubles"] == ["The disk is slow."]


async def test_liveness_needs_no_credential(tmp_path: Path) -> None:
    async with serving(tmp_path) as running, running.client.get("/healthz") as response:
        assert (response.status, await response.json()) == (200, {"status": "alive"})


async def test_a_link_needs_a_port(tmp_path: Path) -> None:
    auth = Auth(Secret(TOKEN))
    routes = core_routes(auth=auth, health=lambda: Health(ready=True), url=lambda: "")
    path = tmp_path / "control.sock"
    server = HttpServer(HttpSettings(), auth=auth, routes=routes, control_path=path, listen=False)
    async with server, ControlClient(tmp_path) as control:
        with pytest.raises(Refused, match="gatehouse run"):
            await control.post("/auth/link")
