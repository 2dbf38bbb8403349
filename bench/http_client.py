"""A small HTTP client for benchmarks. It does so little that the server under measurement is the bottleneck."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple, TypeVar

OPENING_TIMEOUT = 30

_Protocol = TypeVar("_Protocol", bound=asyncio.Protocol)


class Response(NamedTuple):
    status: int
    body: bytes


class Connection(asyncio.Protocol):
    """A connection that stays open, for one request at a time. Responses must have a `Content-Length`."""

    def __init__(self, server: "Server") -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self._response: asyncio.Future[Response] | None = None

    async def request(self, method: str, path: str, body: bytes = b"") -> Response:
        assert self._transport is not None
        self._response = asyncio.get_running_loop().create_future()
        self._transport.write(self._server.head(method, path, len(body)) + body)
        return await self._response

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not end or self._response is None:
            return
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(body) >= length:
            self._received = b""
            self._response.set_result(Response(int(head[9:12]), body))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._response is not None and not self._response.done():
            self._response.set_exception(exc or ConnectionError("The server has closed the connection."))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class EventStream(asyncio.Protocol):
    """Reads server-sent events, and passes each on as it came, with the frames of the chunks that it was sent in."""

    def __init__(self, request: bytes, on_event: Callable[[bytes], None]) -> None:
        self._request = request
        self._on_event = on_event
        self._rest = b""
        self._transport: asyncio.Transport | None = None
        self.is_open = asyncio.Event()
        """Set when the first event has come."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        *events, self._rest = (self._rest + data).split(b"\n\n")
        if events:
            self.is_open.set()
        for event in events:
            self._on_event(event)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class Pool:
    """Some connections to one server. A request waits for a free one."""

    def __init__(self, connections: list[Connection]) -> None:
        self._free: asyncio.Queue[Connection] = asyncio.Queue(len(connections))
        for connection in connections:
            self._free.put_nowait(connection)

    async def request(self, method: str, path: str, body: bytes = b"") -> Response:
        connection = await self._free.get()
        try:
            return await connection.request(method, path, body)
        finally:
            self._free.put_nowait(connection)


class Server(NamedTuple):
    """An HTTP server on this machine."""

    port: int
    token: str = ""

    def head(self, method: str, path: str, length: int) -> bytes:
        return (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nAuthorization: Bearer {self.token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        ).encode()

    @asynccontextmanager
    async def connected(self, connections: int = 1) -> AsyncIterator[Pool]:
        async with AsyncExitStack() as closing:
            opened = [await self._connect(lambda: Connection(self)) for _ in range(connections)]
            for connection in opened:
                closing.callback(connection.close)
            yield Pool(opened)

    @asynccontextmanager
    async def following(self, path: str, on_event: Callable[[bytes], None]) -> AsyncIterator[None]:
        """Follow an event stream, whose first event has come when the block begins."""
        request = self.head("GET", path, 0)
        stream = await self._connect(lambda: EventStream(request, on_event))
        try:
            async with asyncio.timeout(OPENING_TIMEOUT):
                await stream.is_open.wait()
            yield
        finally:
            stream.close()

    async def _connect(self, make: Callable[[], _Protocol]) -> _Protocol:
        _, protocol = await asyncio.get_running_loop().create_connection(make, "127.0.0.1", self.port)
        return protocol
