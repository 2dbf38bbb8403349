"""Slow, idle and malicious clients, over raw sockets."""

import asyncio
import contextlib
import logging
from pathlib import Path

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from gateway.contract import Access, Caller, Route
from gateway.descriptors import connections_within
from gateway.http.responses import HttpLimits
from tests.http.examples import EXAMPLES
from tests.http.harness import BEARER, TIMEOUT, read_all, serving

BRIEF = HttpLimits(header=0.2)
QUICK = HttpLimits(body=0.2, keep_alive=0.2, linger=0.1)
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize("start", [b"", b"GET", b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: b\r\n"])
async def test_a_connection_without_a_complete_header_is_closed(tmp_path: Path, start: bytes) -> None:
    async with serving(tmp_path, limits=BRIEF) as running:
        assert await running.raw(start) == b""


async def test_a_header_that_arrives_slowly_does_not_extend_the_deadline(tmp_path: Path) -> None:
    async with serving(tmp_path, limits=BRIEF) as running, running.connect() as (reader, writer):
        writer.write(b"GET /healthz HTTP/1.1\r\n")
        closed = asyncio.ensure_future(read_all(reader))
        with contextlib.suppress(ConnectionError):
            while not closed.done():
                writer.write(b"X-Drip: 1\r\n")
                await asyncio.wait([closed], timeout=0.02)
        assert await closed == b""


async def test_a_second_header_has_a_deadline_too(tmp_path: Path) -> None:
    async with serving(tmp_path, limits=QUICK) as running:
        answer = await running.raw(running.head("GET /auth/whoami", BEARER) + b"GET /auth")
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.count(b"HTTP/1.1") == 1


async def test_a_slow_body_times_out(tmp_path: Path) -> None:
    async with serving(tmp_path, EXAMPLES, limits=QUICK) as running:
        head = running.head("POST /example", BEARER | JSON | {"Content-Length": "100"})
        assert (await running.raw(head + b'{"a":')).startswith(b"HTTP/1.1 408")


async def test_an_anonymous_request_is_refused_before_its_body_arrives(tmp_path: Path) -> None:
    async with serving(tmp_path, EXAMPLES, limits=QUICK) as running:
        head = running.head("POST /example", JSON | {"Content-Length": "1000000"})
        assert (await running.raw(head)).startswith(b"HTTP/1.1 401")


@pytest.mark.parametrize("path", ["/example", "/example/public"])
async def test_a_chunked_body_ends_at_the_size_limit(tmp_path: Path, path: str) -> None:
    async with serving(tmp_path, EXAMPLES, limits=QUICK, max_body_bytes=100_000) as running:
        async with running.connect() as (reader, writer):
            writer.write(running.head(f"POST {path}", BEARER | JSON | {"Transfer-Encoding": "chunked"}))
            answer = asyncio.ensure_future(read_all(reader))
            with contextlib.suppress(ConnectionError):
                while not answer.done():
                    writer.write(b"2710\r\n" + b" " * 10_000 + b"\r\n")
                    await writer.drain()
                    await asyncio.sleep(0)
            assert (await answer)[:12] in {b"HTTP/1.1 413", b""}
        assert await running.status("GET", "/healthz") == 200


async def test_a_broken_chunk_is_a_bad_request(tmp_path: Path) -> None:
    async with serving(tmp_path, EXAMPLES, limits=QUICK) as running:
        head = running.head("POST /example", BEARER | JSON | {"Transfer-Encoding": "chunked"})
        assert b" 400 " in (await running.raw(head + b"zz\r\n")).partition(b"\r\n")[0]


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 this is TLS",
        b"\x00" * 100 + b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nBad Header\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: a\x00b\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 10_000 + b"\r\n",
    ],
)
async def test_an_invalid_request_gets_an_error_message_and_is_not_logged(
    tmp_path: Path, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path, limits=QUICK) as running:
        answer = await running.raw(garbage)
        assert await running.status("GET", "/healthz") == 200
    assert b" 400 " in answer.partition(b"\r\n")[0]
    assert answer.endswith(b'{"error": "This is not a valid HTTP request."}')
    assert b"Content-Security-Policy" in answer
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_two_hundred_idle_sockets_do_not_block_new_clients(tmp_path: Path) -> None:
    async with serving(tmp_path, limits=HttpLimits(max_anonymous=8)) as running, contextlib.AsyncExitStack() as idle:
        readers = [(await idle.enter_async_context(running.connect()))[0] for _ in range(200)]
        assert await running.status("GET", "/healthz") == 200
        # The oldest were closed; the server holds on to the newest.
        assert [await read_all(reader) for reader in readers[:150]] == [b""] * 150
        assert not readers[-1].at_eof()


async def test_stalled_bodies_do_not_block_new_clients(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, EXAMPLES, limits=HttpLimits(max_anonymous=4)) as running,
        contextlib.AsyncExitStack() as idle,
    ):
        for _ in range(20):
            _, writer = await idle.enter_async_context(running.connect())
            writer.write(running.head("POST /example/public", JSON | {"Content-Length": "2"}))
        assert await running.status("GET", "/healthz") == 200


async def test_a_new_connection_is_closed_while_all_anonymous_ones_are_being_served(tmp_path: Path) -> None:
    entered, may_leave = asyncio.Semaphore(0), asyncio.Event()

    async def wait(_request: web.Request, _: Caller) -> web.StreamResponse:
        entered.release()
        await may_leave.wait()
        return web.json_response({})

    waiting = Route(method="GET", path="/wait", access=Access.PUBLIC, handle=wait)
    async with (
        serving(tmp_path, [waiting], limits=HttpLimits(max_anonymous=3)) as running,
        contextlib.AsyncExitStack() as open_ones,
        asyncio.timeout(TIMEOUT),
    ):
        busy = [await open_ones.enter_async_context(running.connect()) for _ in range(3)]
        for _, writer in busy:
            writer.write(running.head("GET /wait"))
            await entered.acquire()
        assert await running.raw(b"") == b""
        may_leave.set()
        for reader, _ in busy:
            assert (await read_all(reader)).startswith(b"HTTP/1.1 200")
        assert await running.status("GET", "/healthz") == 200


async def test_an_anonymous_client_has_one_request_per_connection(tmp_path: Path) -> None:
    async with serving(tmp_path) as running:
        answer = await running.raw(running.head("GET /healthz") * 3)
        assert answer.count(b"HTTP/1.1 200") == 1
        assert b"Connection: close" in answer


async def test_an_owner_can_send_several_requests_on_a_connection(tmp_path: Path) -> None:
    async with serving(tmp_path, limits=QUICK) as running:
        answer = await running.raw(running.head("GET /auth/whoami", BEARER) * 3)
        assert answer.count(b"HTTP/1.1 200") == 3


async def test_connections_of_an_owner_do_not_count_as_anonymous(tmp_path: Path) -> None:
    async with serving(tmp_path, EXAMPLES, limits=HttpLimits(max_anonymous=2)) as running:
        talks = [await running.client.ws_connect("/example/talk", headers=BEARER) for _ in range(10)]
        async with contextlib.AsyncExitStack() as idle:
            for _ in range(10):
                await idle.enter_async_context(running.connect())
            for talk in talks:
                await talk.send_str("still here")
                assert await talk.receive_str(timeout=TIMEOUT) == "STILL HERE"
        for talk in talks:
            await talk.close()


async def test_connections_of_owners_are_limited_too(tmp_path: Path) -> None:
    async with serving(tmp_path, EXAMPLES, limits=HttpLimits(max_authenticated=2)) as running:
        talks = [await running.client.ws_connect("/example/talk", headers=BEARER) for _ in range(2)]
        assert "Too many connections" in await running.error("GET", "/auth/whoami", headers=BEARER)
        assert await running.status("GET", "/healthz") == 200
        for talk in talks:
            await talk.close()


async def test_idle_connections_of_an_owner_are_limited(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, limits=HttpLimits(max_idle=2)) as running,
        contextlib.AsyncExitStack() as stack,
        asyncio.timeout(TIMEOUT),
    ):
        open_ones = [await stack.enter_async_context(running.connect()) for _ in range(6)]
        for reader, writer in open_ones:
            writer.write(running.head("GET /auth/whoami", BEARER))
            assert b" 200 " in await reader.readline()
        for reader, _ in open_ones[:4]:
            await read_all(reader)  # Returns once the server has closed the connection.
        for reader, writer in open_ones[4:]:
            await reader.readuntil(b"}")
            writer.write(running.head("GET /auth/whoami", BEARER))
            assert b" 200 " in await reader.readline()


async def test_idle_connections_make_room_for_a_new_one_of_an_owner(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, EXAMPLES, limits=HttpLimits(max_authenticated=2)) as running,
        running.connect() as (reader, writer),
        running.client.ws_connect("/example/talk", headers=BEARER) as talk,
    ):
        writer.write(running.head("GET /auth/whoami", BEARER))
        assert b" 200 " in await reader.readline()
        assert await running.status("GET", "/auth/whoami", headers=BEARER) == 200
        await read_all(reader)
        await talk.send_str("still here")
        assert await talk.receive_str(timeout=TIMEOUT) == "STILL HERE"


async def test_connections_of_a_token_do_not_keep_the_operator_out(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, EXAMPLES, limits=HttpLimits(max_authenticated=1, max_control=1)) as running,
        running.client.ws_connect("/example/talk", headers=BEARER),
        running.control.get("/auth/whoami") as answer,
    ):
        assert answer.status == 200


@pytest.mark.parametrize("is_in_cluster", [False, True])
@pytest.mark.parametrize("descriptors", [32, 64, 100, 256, 1024, 8192])
def test_the_limits_leave_descriptors_for_other_work(descriptors: int, *, is_in_cluster: bool) -> None:
    """A node of a cluster may need two for a connection: it forwards requests to other nodes."""
    connections = connections_within(descriptors, is_in_cluster=is_in_cluster)
    limits = HttpLimits.within(connections)
    total = limits.max_anonymous + limits.max_authenticated + limits.max_control
    assert total <= connections
    assert connections * (2 if is_in_cluster else 1) <= descriptors - min(256, descriptors // 2)
    assert min(limits.max_anonymous, limits.max_authenticated, limits.max_control, limits.max_idle) >= 2


async def test_an_anonymous_client_that_stalls_is_cut_off(tmp_path: Path) -> None:
    """Its header is complete, so only the limit of the whole connection ends it."""
    async with serving(tmp_path, EXAMPLES, limits=HttpLimits(anonymous=0.3)) as running:
        head = running.head("POST /example/public", JSON | {"Content-Length": "2"})
        assert await running.raw(head) == b""


async def test_a_refused_upgrade_closes_the_connection_cleanly(tmp_path: Path) -> None:
    """A client that sends WebSocket frames before the upgrade gets a response, and its connection is closed."""
    async with serving(tmp_path, EXAMPLES, limits=QUICK) as running:
        asking = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
        answer = await running.raw(running.head("GET /example/talk", asking) + b"\x81\x85" + b"x" * 100_000)
        assert answer.startswith(b"HTTP/1.1 401")
        assert await running.status("GET", "/healthz") == 200


@given(data=st.binary(max_size=300), is_request=st.booleans())
async def test_arbitrary_bytes_do_not_break_the_server(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, *, is_request: bool
) -> None:
    async with serving(tmp_path_factory.mktemp("data"), limits=QUICK) as running:
        async with running.connect() as (reader, writer):
            writer.write((b"GET /healthz HTTP/1.1\r\n" if is_request else b"") + data + b"\r\n\r\n")
            writer.write_eof()
            assert (await read_all(reader))[:5] in {b"", b"HTTP/"}
        assert await running.status("GET", "/healthz") == 200
