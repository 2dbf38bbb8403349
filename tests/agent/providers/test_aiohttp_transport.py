"""Tests of the transport against a server that sends any given bytes."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest

from gateway.agent.providers.aiohttp_transport import AiohttpTransport

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"
WHOLE = HEAD + b"\r\n2\r\nhi\r\n0\r\n\r\n"


class Peer:
    """Reads requests, and answers each with the same bytes; where `hangs_up`, it closes the connection after that."""

    def __init__(self, answer: bytes, *, hangs_up: bool) -> None:
        self.url = ""
        self.connections = 0
        self.closed = asyncio.Event()
        self._answer = answer
        self._hangs_up = hangs_up

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(self._answer)
                await writer.drain()
                if self._hangs_up:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            self.closed.set()
        finally:
            writer.close()


@asynccontextmanager
async def peer(answer: bytes, *, hangs_up: bool = False) -> AsyncIterator[tuple[Peer, httpx2.AsyncClient]]:
    other = Peer(answer, hangs_up=hangs_up)
    async with (
        asyncio.timeout(30),
        await asyncio.start_server(other.serve, "127.0.0.1", 0) as server,
        httpx2.AsyncClient(transport=AiohttpTransport(), trust_env=False) as client,
    ):
        other.url = "http://{}:{}/".format(*server.sockets[0].getsockname())
        yield other, client


async def test_a_connection_is_reused() -> None:
    async with peer(WHOLE) as (other, client):
        for _ in range(3):
            assert (await client.get(other.url)).text == "hi"
        assert other.connections == 1


async def test_a_compressed_response_is_read() -> None:
    body = gzip.compress(b"hi")
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with peer(head + body) as (other, client):
        assert (await client.get(other.url)).text == "hi"


async def test_an_unfinished_response_closes_its_connection() -> None:
    async with peer(HEAD + b"\r\n2\r\nhi\r\n") as (other, client):
        async with client.stream("GET", other.url) as answer:
            assert await anext(answer.aiter_bytes()) == b"hi"
        await other.closed.wait()


async def test_long_headers_are_accepted() -> None:
    async with peer(HEAD + b"X-Long: " + b"x" * 30_000 + b"\r\n\r\n0\r\n\r\n") as (other, client):
        assert len((await client.get(other.url)).headers["X-Long"]) == 30_000


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"", httpx2.ReadError),
        (b"HELLO\r\n\r\n", httpx2.RemoteProtocolError),
        (HEAD + b"\r\nzz\r\n", httpx2.RemoteProtocolError),
        (HEAD + b"\r\n9\r\nhi", httpx2.RemoteProtocolError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi", httpx2.RemoteProtocolError),
    ],
)
async def test_an_invalid_response_raises_a_client_error(answer: bytes, kind: type[Exception]) -> None:
    async with peer(answer, hangs_up=True) as (other, client):
        with pytest.raises(kind):
            await client.get(other.url)


async def test_a_response_that_does_not_come_times_out() -> None:
    async with peer(b"") as (other, client):
        with pytest.raises(httpx2.ReadTimeout):
            await client.get(other.url, timeout=httpx2.Timeout(30, read=0.05))


async def test_a_tls_handshake_that_never_ends_times_out() -> None:
    async with peer(b"") as (other, client):
        with pytest.raises(httpx2.ConnectTimeout):
            await client.get(other.url.replace("http:", "https:"), timeout=httpx2.Timeout(30, connect=0.05))
