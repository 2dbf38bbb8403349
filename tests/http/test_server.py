import asyncio
import os
import socket
import stat
import tempfile
from pathlib import Path

import aiohttp
import pytest
from structlog.testing import capture_logs

from config import HttpSettings, Secret
from gateway.contract import Access, Route
from gateway.errors import CannotStart
from gateway.http.auth import Auth
from gateway.http.responses import SECURITY_HEADERS, HttpLimits
from gateway.http.server import HttpServer
from tests.http.examples import EXAMPLES, look
from tests.http.harness import BEARER, TIMEOUT, TOKEN, read_all, serving


def server(data_dir: Path, *, routes: list[Route] | None = None, listen: bool = True, **settings: object) -> HttpServer:
    chosen = HttpSettings.model_validate({"port": 0, "token": TOKEN, **settings})
    path = data_dir / "control.sock"
    return HttpServer(chosen, auth=Auth(Secret(TOKEN)), routes=routes or [], control_path=path, listen=listen)


async def refuses_to_start(it: HttpServer) -> str:
    with pytest.raises(CannotStart) as refusal:
        async with it:
            pytest.fail("started")
    return str(refusal.value)


async def test_a_port_in_use_is_reported_with_a_fix(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        sentence = await refuses_to_start(server(tmp_path, port=port))
    assert f"Port {port} on 127.0.0.1 is in use" in sentence
    assert "gatehouse config set http.port N" in sentence
    assert not (tmp_path / "control.sock").exists()


@pytest.mark.parametrize("host", ["203.0.113.1", "no.such.host.invalid", "not an address", "x" * 300])
async def test_a_foreign_address_is_reported_with_a_fix(tmp_path: Path, host: str) -> None:
    sentence = await refuses_to_start(server(tmp_path, host=host))
    assert host in sentence
    assert "gatehouse config set http.host 127.0.0.1" in sentence


async def test_duplicate_routes_are_refused(tmp_path: Path) -> None:
    twice = [Route(method="GET", path="/same", access=access, handle=look) for access in (Access.OWNER, Access.PUBLIC)]
    assert "GET /same" in await refuses_to_start(server(tmp_path, routes=twice))
    assert not (tmp_path / "control.sock").exists()


async def test_duplicate_routes_are_refused_in_any_order(tmp_path: Path) -> None:
    routes = [Route(method="GET", path=path, access=Access.OWNER, handle=look) for path in ("/one", "/two", "/one")]
    assert "Two channels serve the HTTP route GET /one" in await refuses_to_start(server(tmp_path, routes=routes))


async def test_a_file_in_the_sockets_place_is_kept(tmp_path: Path) -> None:
    (tmp_path / "control.sock").write_text("precious")
    assert "control.sock is in the way" in await refuses_to_start(server(tmp_path))
    assert (tmp_path / "control.sock").read_text() == "precious"


async def test_a_missing_data_directory_is_reported(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert f"Can't create the control socket {missing}/control.sock" in await refuses_to_start(server(missing))


async def test_the_control_socket_is_private_with_any_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        async with server(tmp_path):
            assert stat.S_IMODE((tmp_path / "control.sock").stat().st_mode) == 0o600
    finally:
        os.umask(before)


async def test_a_socket_left_by_a_killed_daemon_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / "control.sock"))
    async with serving(tmp_path) as running, running.control.get("/auth/whoami") as response:
        assert response.status == 200
    assert not (tmp_path / "control.sock").exists()


async def test_without_a_port_only_the_control_socket_responds(tmp_path: Path) -> None:
    async with server(tmp_path, listen=False, routes=EXAMPLES) as quiet:
        assert (quiet.url, quiet.port) == ("", 0)
        connector = aiohttp.UnixConnector(str(tmp_path / "control.sock"))
        async with (
            aiohttp.ClientSession("http://any", connector=connector) as client,
            client.get("/example") as response,
        ):
            assert response.status == 200


async def test_the_kernel_identifies_callers_of_the_control_socket(tmp_path: Path) -> None:
    async with serving(tmp_path, EXAMPLES) as running:
        for path in ("/example", "/example/control", "/example/public"):
            async with running.control.get(path, headers={"Host": "anything"}) as response:
                assert (await response.json())["caller"] not in {"", "owner"}


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to connect as another user")
async def test_another_user_is_anonymous_even_with_access_to_the_socket() -> None:
    with tempfile.TemporaryDirectory() as directory:
        data_dir = Path(directory)
        async with serving(data_dir, EXAMPLES) as running:
            os.chmod(data_dir, 0o755)  # noqa: PTH101, S103 - The fault itself.
            os.chmod(running.control_path, 0o666)  # noqa: PTH101, S103 - The fault itself.
            reader, writer = await asyncio.open_unix_connection(sock=connected_as(65534, running.control_path))
            writer.write(running.head("GET /example", {"Connection": "close"}))
            assert (await read_all(reader)).startswith(b"HTTP/1.1 401")
            writer.close()


def connected_as(uid: int, path: Path) -> socket.socket:
    """Connect to a Unix socket; the kernel notes who we are at that moment."""
    connection = socket.socket(socket.AF_UNIX)
    os.seteuid(uid)
    try:
        connection.connect(str(path))
    finally:
        os.seteuid(0)
    return connection


async def test_a_foreign_page_cannot_use_the_control_socket(tmp_path: Path) -> None:
    foreign = {"Origin": "http://evil.example"}
    async with serving(tmp_path, EXAMPLES) as running, running.control.get("/example", headers=foreign) as response:
        assert response.status == 403


@pytest.mark.parametrize(("host", "browsable"), [("0.0.0.0", "127.0.0.1"), ("::1", "[::1]")])  # noqa: S104 - The case.
async def test_a_browser_can_open_the_url(tmp_path: Path, host: str, browsable: str) -> None:
    async with serving(tmp_path, host=host) as running:
        assert running.server.url == f"http://{browsable}:{running.server.port}"
        assert await running.status("GET", "/healthz") == 200


@pytest.mark.parametrize(
    "path", ["/healthz", "/readyz", "/nowhere", "/example", "/example/crash", "/auth/link", "/example/refuse"]
)
@pytest.mark.parametrize("credential", [{}, BEARER], ids=["stranger", "owner"])
async def test_every_response_has_the_security_headers(tmp_path: Path, path: str, credential: dict[str, str]) -> None:
    async with serving(tmp_path, EXAMPLES) as running, running.client.get(path, headers=credential) as response:
        assert {name: response.headers[name] for name in SECURITY_HEADERS} == SECURITY_HEADERS
        assert "Server" not in response.headers
        assert response.content_type == "application/json"


async def test_a_crash_is_logged_and_its_details_are_hidden_from_the_caller(tmp_path: Path) -> None:
    async with serving(tmp_path, EXAMPLES) as running:
        with capture_logs() as logs:
            sentence = await running.error("GET", "/example/crash?secret=1", headers=BEARER)
    assert sentence == "Something went wrong. The gateway's log has the details."
    [entry] = logs
    assert isinstance(entry.pop("exc_info"), ValueError)
    assert entry == {"event": "request_failed", "log_level": "error", "method": "GET", "route": "/example/crash"}


async def test_a_crash_during_the_response_cuts_the_connection(tmp_path: Path) -> None:
    async with serving(tmp_path, EXAMPLES) as running:
        with capture_logs() as logs:
            answer = await running.raw(running.head("GET /example/crash-midway", BEARER))
    assert b"half of" in answer
    assert b"error" not in answer
    assert not answer.endswith(b"0\r\n\r\n")
    assert [entry["event"] for entry in logs] == ["request_failed"]


async def test_a_lost_connection_to_another_server_is_an_error(tmp_path: Path) -> None:
    async with serving(tmp_path, EXAMPLES) as running:
        with capture_logs() as logs:
            assert await running.status("GET", "/example/lose", headers=BEARER) == 500
    assert [entry["event"] for entry in logs] == ["request_failed"]


async def test_a_handler_may_redirect(tmp_path: Path) -> None:
    async with serving(tmp_path, EXAMPLES) as running:
        assert await running.status("GET", "/example/elsewhere", headers=BEARER, allow_redirects=False) == 303


async def test_an_unknown_expect_header_fails_with_the_security_headers(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        answer = await running.raw(running.head("GET /healthz", {"Expect": "wonders", "Connection": "close"}))
    assert answer.startswith(b"HTTP/1.1 417")
    assert b"Content-Security-Policy" in answer


async def test_the_message_of_a_refusal_reaches_the_caller(tmp_path: Path) -> None:
    async with serving(tmp_path, EXAMPLES) as running:
        assert await running.error("GET", "/example/refuse", headers=BEARER) == "Not today."


async def test_a_handler_that_hangs_times_out(tmp_path: Path) -> None:
    async with serving(tmp_path, EXAMPLES, limits=HttpLimits(handler=0.1)) as running:
        assert await running.status("GET", "/example/hang", headers=BEARER) == 504


async def test_a_wrong_method_is_refused_with_the_allowed_ones(tmp_path: Path) -> None:
    async with serving(tmp_path) as running, running.client.delete("/healthz") as response:
        assert (response.status, response.headers["Allow"]) == (405, "GET,HEAD")


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/example", "/example/things/x"])
async def test_head_responds_like_get_without_the_body(tmp_path: Path, path: str) -> None:
    async with serving(tmp_path, EXAMPLES) as running:
        async with running.client.get(path, headers=BEARER) as whole:
            expected = whole.status, whole.headers["Content-Length"], whole.headers["Content-Type"]
        async with running.client.head(path, headers=BEARER) as head:
            assert (head.status, head.headers["Content-Length"], head.headers["Content-Type"]) == expected
            assert await head.read() == b""
        assert await running.status("HEAD", "/example") == 401


async def test_head_opens_no_websocket(tmp_path: Path) -> None:
    async with serving(tmp_path, EXAMPLES) as running:
        asking = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
        key = {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
        assert await running.status("HEAD", "/example/talk", headers=BEARER | asking | key) == 405


async def test_a_websocket_of_our_page_outlives_the_handler_deadline(tmp_path: Path) -> None:
    async with serving(tmp_path, EXAMPLES, limits=HttpLimits(handler=0.05, anonymous=0.5)) as running:
        headers = running.cookie() | running.own
        async with running.client.ws_connect("/example/talk", headers=headers) as talk:
            await asyncio.sleep(0.6)  # The claim is about time passing.
            await talk.send_str("hello")
            assert await talk.receive_str(timeout=TIMEOUT) == "HELLO"


async def test_a_failed_websocket_never_gets_an_http_response(tmp_path: Path) -> None:
    async with serving(tmp_path, EXAMPLES) as running:
        with capture_logs() as logs:
            async with running.client.ws_connect("/example/nonsense", headers=BEARER) as talk:
                message = await talk.receive(timeout=TIMEOUT)
    assert message.type in {aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.CLOSE}
    assert talk.close_code == aiohttp.WSCloseCode.ABNORMAL_CLOSURE
    assert [entry["event"] for entry in logs] == ["request_failed"]


async def test_closing_tells_websockets_that_the_server_is_going_away(tmp_path: Path) -> None:
    async with aiohttp.ClientSession() as client:
        async with server(tmp_path, routes=EXAMPLES) as closing:
            talk = await client.ws_connect(f"{closing.url}/example/talk", headers=BEARER)
            goodbye = asyncio.ensure_future(talk.receive())
        async with asyncio.timeout(TIMEOUT):
            message = await goodbye
        assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, aiohttp.WSCloseCode.GOING_AWAY)
        await talk.close()


async def test_closing_does_not_wait_long_for_clients_or_handlers(tmp_path: Path) -> None:
    """Neither for a handler that hangs nor for a WebSocket whose client does not close it."""
    asking = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
    key = {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
    async with (
        asyncio.timeout(TIMEOUT),
        serving(tmp_path, EXAMPLES, limits=HttpLimits(closing=0.1)) as running,
        running.connect() as (hanging, asker),
        running.connect() as (silent, talker),
    ):
        asker.write(running.head("GET /example/hang", BEARER))
        talker.write(running.head("GET /example/talk", BEARER | asking | key))
        await silent.readuntil(b"\r\n\r\n")
        await running.server.__aexit__(None, None, None)
        assert await hanging.read() == b""


async def test_a_request_on_a_new_connection_is_answered_while_the_server_closes(tmp_path: Path) -> None:
    """Neither a client that has just connected nor one that waits to be accepted gets a reset connection."""
    async with asyncio.timeout(TIMEOUT), serving(tmp_path) as running:
        async with running.connect() as (connected, first):
            with socket.create_connection(("127.0.0.1", running.server.port)) as waiting:  # Not accepted yet.
                closing = asyncio.create_task(running.server.__aexit__(None, None, None))
                await asyncio.sleep(0)
                waiting.sendall(running.head("GET /healthz"))
                first.write(running.head("GET /healthz"))
                assert (await connected.read()).startswith(b"HTTP/1.1 200")
                assert (await asyncio.to_thread(waiting.recv, 100)).startswith(b"HTTP/1.1 200")
                await closing
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", running.server.port))


async def test_responses_end_their_connections_before_the_server_closes(tmp_path: Path) -> None:
    async with serving(tmp_path, EXAMPLES) as running:
        for is_ending in (False, True):
            if is_ending:
                running.server.end_connections()
            async with running.client.get("/api/example", headers=BEARER) as response:
                assert (response.headers.get("Connection") == "close") is is_ending


async def test_a_closed_port_can_be_reopened_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        port = running.server.port
        assert await running.status("GET", "/healthz") == 200
    async with serving(tmp_path, port=port) as running:
        assert await running.status("GET", "/healthz") == 200


async def test_a_data_directory_with_a_long_path_has_a_control_socket(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 100) / ("y" * 100)
    deep.mkdir(parents=True)
    async with server(deep, listen=False):
        assert stat.S_IMODE((deep / "control.sock").stat().st_mode) == 0o600
