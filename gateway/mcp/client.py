"""Opens MCP SDK clients. Only this module and the two transports import the SDK, which takes a second."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import Context
from types import TracebackType
from typing import Any, Self, TextIO

from anyio import EndOfStream
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse

from config import McpSettings
from gateway.mcp.http import open_http_client
from gateway.mcp.stdio import run_program

_MAX_WAITING = 32
"""Messages to a server that wait to be sent. The calls of our own agents are fewer."""


def open_client(settings: McpSettings, errors: TextIO) -> Client:
    """Return a client that connects when it is entered. A program's stderr goes to `errors`."""

    @asynccontextmanager
    async def connect() -> AsyncGenerator[Any]:  # Any: the SDK does not export the type.
        if settings.command:
            async with run_program(settings, errors) as (received, to_send):
                yield _with_limits(received, to_send)
        else:
            # `open_http_client` limits the size of events as well.
            transport = streamable_http_client(
                str(settings.url), http_client=(client := open_http_client(settings)), max_sse_event_size=None
            )
            async with client, transport as (received, to_send):
                yield _with_limits(received, to_send)

    return Client(connect(), read_timeout_seconds=settings.timeout)


def _with_limits(received: Any, to_send: Any) -> "tuple[_ReceiveStream, _SendStream]":  # noqa: ANN401 - as below.
    sends = _SendStream(to_send)
    return _ReceiveStream(received, sends), sends


class _SendStream:
    """Counts the messages that wait until the server reads them.

    The SDK answers each request of a server in a task of its own. A server that sends requests and reads no answers
    would fill the memory with tasks.
    """

    def __init__(self, to_send: Any) -> None:  # noqa: ANN401 - a type that the SDK does not export.
        self.has_room = asyncio.Event()
        self.has_room.set()
        self._to_send = to_send
        self._waiting = 0

    async def send(self, message: SessionMessage) -> None:
        self._waiting += 1
        if self._waiting >= _MAX_WAITING:
            self.has_room.clear()
        try:
            await self._to_send.send(message)
        finally:
            self._waiting -= 1
            if self._waiting < _MAX_WAITING:
                self.has_room.set()

    async def aclose(self) -> None:
        await self._to_send.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


class _ReceiveStream:
    """Receives nothing while too many messages wait to be sent, and removes the output schemas from lists of tools.

    The SDK checks each result against its schema, in Python and on the event loop. A server could send a schema that
    takes hours, such as a regular expression that backtracks. Models do not need these schemas.
    """

    def __init__(self, received: Any, sends: _SendStream) -> None:  # noqa: ANN401 - as above.
        self._received = received
        self._sends = sends

    @property
    def last_context(self) -> Context | None:
        """The SDK restores it when it handles a message."""
        return getattr(self._received, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        await self._sends.has_room.wait()
        received: SessionMessage | Exception = await self._received.receive()
        if isinstance(received, SessionMessage) and isinstance(received.message, JSONRPCResponse):
            tools = received.message.result.get("tools")
            for each in tools if isinstance(tools, list) else ():
                if isinstance(each, dict):
                    each.pop("outputSchema", None)
        return received

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except EndOfStream as end:
            raise StopAsyncIteration from end

    async def aclose(self) -> None:
        await self._received.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()
