"""The stream of server-sent events of one response, which stays open while the model is silent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from aiohttp import web

from gateway.openai_door.session_choice import SESSION_HEADER
from gateway.sessions import SessionMeta

KEEPALIVE = 15.0
"""Seconds of silence after which a comment is sent, so that proxies keep the connection open."""
WRITE_TIMEOUT = 60.0
"""Seconds that a client may take to read what was sent to it."""

_encode = msgspec.json.Encoder().encode


class EventStream:
    """Its header is sent with the first event. Until then, an error gets a response with its own status."""

    def __init__(self, request: web.Request, keepalive: float) -> None:
        self._request = request
        self._keepalive = keepalive
        self._writing = asyncio.Lock()
        self._last_write = asyncio.get_running_loop().time()
        self.response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}
        )

    @property
    def has_begun(self) -> bool:
        return self.response.prepared

    def name_session(self, session: SessionMeta | None) -> None:
        """Tell the client which session the response belongs to."""
        if session is not None and not self.has_begun:
            self.response.headers[SESSION_HEADER] = session.id

    async def send(self, data: object, event: str | None = None) -> None:
        """Send an event. JSON has no line breaks, so one `data` line is enough."""
        head = b"" if event is None else b"event: %s\n" % event.encode()
        await self.write(b"%sdata: %s\n\n" % (head, data if isinstance(data, bytes) else _encode(data)))

    async def write(self, data: bytes) -> None:
        """Raise `ConnectionError` if the client has gone, or does not read."""
        async with self._writing:
            if not self.response.prepared:
                await self.response.prepare(self._request)
            try:
                async with asyncio.timeout(WRITE_TIMEOUT):
                    await self.response.write(data)
            except TimeoutError:
                raise ConnectionResetError("The client does not read.") from None
            self._last_write = asyncio.get_running_loop().time()

    async def keep_alive(self) -> None:
        """Send a comment whenever nothing was sent for a while, until cancelled or until the client has gone."""
        loop = asyncio.get_running_loop()
        while True:
            wait = self._last_write + self._keepalive - loop.time()
            if wait > 0:
                await asyncio.sleep(wait)
                continue
            try:
                await self.write(b": keep-alive\n\n")
            except ConnectionError:  # The server cancels the handler too.
                if self._request.transport is not None:
                    self._request.transport.abort()
                return


@asynccontextmanager
async def event_stream(request: web.Request, keepalive: float = KEEPALIVE) -> AsyncIterator[EventStream]:
    """Open a stream, and keep it alive until the block ends."""
    stream = EventStream(request, keepalive)
    failure: Exception | None = None
    async with asyncio.TaskGroup() as tasks:
        keeping = tasks.create_task(stream.keep_alive(), name="openai:keep_alive")
        try:
            yield stream
        except Exception as error:  # noqa: BLE001 - it is raised below, and not as a part of a group.
            failure = error
        finally:
            keeping.cancel()
    if failure is not None:
        raise failure
