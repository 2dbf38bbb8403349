import asyncio
import os
import socket
from pathlib import Path

import pytest
from aiohttp import web

from config import HttpSettings, Secret
from gateway.admin.client import ControlClient, NotRunning, is_running
from gateway.contract import Access, Caller, Route
from gateway.errors import GatehouseError, Refused
from gateway.http.auth import Auth
from gateway.http.server import HttpServer
from tests.http.examples import EXAMPLES


async def _not_ready(_request: web.Request, _: Caller) -> web.StreamResponse:
    return web.json_response({"status": "not ready"}, status=503)


async def _no_json(_request: web.Request, _: Caller) -> web.StreamResponse:
    return web.Response(text="hello")


ROUTES = [
    *EXAMPLES,
    Route(method="GET", path="/not-ready", access=Access.PUBLIC, handle=_not_ready),
    Route(method="GET", path="/no-json", access=Access.PUBLIC, handle=_no_json),
]


def daemon(data_dir: Path) -> HttpServer:
    path = data_dir / "control.sock"
    auth = Auth(Secret("an-unused-token"))
    return HttpServer(HttpSettings(), auth=auth, routes=ROUTES, control_path=path, listen=False)


@pytest.fixture(params=["short", "long"])
def data_dir(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Two directories, one with a path that is too long for a Unix socket."""
    found = tmp_path if request.param == "short" else tmp_path / ("x" * 120)
    found.mkdir(exist_ok=True)
    return found


async def test_sends_get_and_post_requests_to_the_daemon(data_dir: Path) -> None:
    async with daemon(data_dir), ControlClient(data_dir) as control:
        assert (await control.get("/example"))["caller"]
        assert (await control.post("/example/control", {"a": [1]}))["heard"] == {"a": [1]}
        assert (await control.post("/example/control"))["heard"] == {}


async def test_opens_a_websocket(data_dir: Path) -> None:
    async with daemon(data_dir), ControlClient(data_dir) as control, await control.websocket("/example/talk") as talk:
        await talk.send_str("hello")
        assert await talk.receive_str(timeout=60) == "HELLO"


async def test_a_websocket_that_is_unavailable_for_now_is_not_refused(tmp_path: Path) -> None:
    async with daemon(tmp_path), ControlClient(tmp_path) as control:
        with pytest.raises(GatehouseError, match="right now") as unavailable:
            await control.websocket("/not-ready")
        assert not isinstance(unavailable.value, Refused)
        with pytest.raises(Refused, match="404"):
            await control.websocket("/nothing")


async def test_an_error_carries_the_daemons_message(tmp_path: Path) -> None:
    async with daemon(tmp_path), ControlClient(tmp_path) as control:
        with pytest.raises(Refused, match="Not today"):
            await control.get("/example/refuse")
        with pytest.raises(Refused, match="There is nothing at this address"):
            await control.get("/nowhere")
        with pytest.raises(Refused, match="same version"):
            await control.websocket("/nowhere")
        with pytest.raises(Refused, match="not JSON"):
            await control.get("/no-json")


async def test_an_error_status_without_an_error_message_is_a_normal_answer(tmp_path: Path) -> None:
    async with daemon(tmp_path), ControlClient(tmp_path) as control:
        assert await control.get("/not-ready") == {"status": "not ready"}


async def test_without_a_daemon_the_error_says_how_to_start_one(data_dir: Path) -> None:
    async with ControlClient(data_dir) as control:
        with pytest.raises(NotRunning, match="gatehouse run"):
            await control.get("/healthz")
        with pytest.raises(NotRunning, match="gatehouse run"):
            await control.websocket("/example/talk")


async def test_no_daemon_runs_in_a_missing_data_directory(tmp_path: Path) -> None:
    missing = tmp_path / ("x" * 120)
    assert not is_running(missing)
    with pytest.raises(NotRunning):
        async with ControlClient(missing):
            pytest.fail("entered")


async def test_finds_a_running_daemon(data_dir: Path) -> None:
    assert not is_running(data_dir)
    async with daemon(data_dir):
        assert await asyncio.to_thread(is_running, data_dir)
    assert not is_running(data_dir)


def test_a_socket_left_by_a_killed_daemon_does_not_count_as_running(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / "control.sock"))
    assert not is_running(tmp_path)


async def test_leaves_no_file_descriptor_open(data_dir: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - Only the number counts.
    async with ControlClient(data_dir) as control:
        with pytest.raises(NotRunning):
            await control.get("/healthz")
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208 - As above.
