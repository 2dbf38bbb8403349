"""Opens MCP SDK clients. Only this module and the two transports import the SDK, which takes a second."""

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


def open_client(settings: McpSettings, errors: TextIO) -> Client:
    """Return a client that connects when it is entered. A program's stderr goes to `errors`."""

    @asynccontextmanager
    async def connect() -> AsyncGenerator[Any]:  # Any: the SDK does not export the type.
        if settings.command:
            async with run_program(settings, errors) as (received, to_send):
                yield _WithoutOutputSchemas(received), to_send
        else:
            # `open_http_client` limits the size of events as well.
            transport = streamable_http_client(
                str(settings.url), http_client=(client := open_http_client(settings)), max_sse_event_size=None
            )
            async with client, transport as (received, to_send):
                yield _WithoutOutputSchemas(received), to_send

    return Client(connect(), read_timeout_seconds=settings.timeout)


class _WithoutOutputSchemas:
    """Removes the output schemas from lists of tools before the SDK sees them.

    The SDK checks each result against its schema, in Python and on the event loop. A server could send a schema that
    takes hours, such as a regular expression that backtracks. Models do not need these schemas.
    """

    def __init__(self, received: Any) -> None:  # noqa: ANN401 - a type that the SDK does not export.
        self._received = received

    @property
    def last_context(self) -> Context | None:
        """The SDK restores it when it handles a message."""
        return getattr(self._received, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
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
