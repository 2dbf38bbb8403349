"""One MCP server: kept connected, its tools made ours. While it is away, they say so."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import structlog

from config import McpSettings
from gateway.agent.protocol import ToolSpec
from gateway.agent.tools import Tool, ToolContext, ToolFailed
from gateway.aio import backoff
from gateway.conversation import Json
from gateway.mcp.last_words import LastWords
from gateway.mcp.naming import tool_name
from gateway.mcp.results import as_text
from gateway.text import clean, excerpt

if TYPE_CHECKING:
    from mcp import Client

__all__ = ["McpServer"]

log = structlog.get_logger()

MAX_TOOLS = 200
MAX_DESCRIPTION_CHARS = 2_000
LOOK_INTERVAL = 30.0
"""Seconds between two looks at the list of tools, which also tell whether the server is still there."""
WAITED_FOR = 10.0
"""Seconds that turns wait at the most for a server that has just been started."""
LOST = "the connection was lost"
STEADY_AFTER = 60.0
"""A server that was there this long starts its backoff anew."""


class McpServer:
    """`run` connects, and connects again with growing pauses, until it is cancelled."""

    def __init__(self, name: str, settings: McpSettings) -> None:
        self.name = name
        self.settings = settings
        self.tools: tuple[Tool, ...] = ()
        """As last listed; they stay while the server is away, since a conversation may speak of them."""
        self.trouble = "it is being started"
        """Why its tools cannot be used now; empty while they can. It may name programs and addresses."""
        self.tried = asyncio.Event()
        """Set once its tools are known, or it has failed, or it takes too long."""
        self._client: Client | None = None
        self._lost = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        waits = backoff()
        loop.call_later(WAITED_FOR, self.tried.set)
        while True:
            started = loop.time()
            words = LastWords(self.name)
            try:
                await self._serve(words)
            except Exception as failure:  # noqa: BLE001 - whatever a server does, it is tried again, and told
                self._down(_reason(failure), words)
            if loop.time() - started > STEADY_AFTER:
                waits = backoff()
            await asyncio.sleep(next(waits))

    async def _serve(self, words: LastWords) -> None:
        """Be connected until the connection is lost, which is an exception."""
        opening = await asyncio.to_thread(import_module, "gateway.mcp.opening")
        self._lost.clear()
        async with AsyncExitStack() as closing:
            errors = await closing.enter_async_context(words.listening())
            async with asyncio.timeout(self.settings.timeout):
                client: Client = await closing.enter_async_context(opening.open_client(self.settings, errors))
                self.tools = await self._list(client)
            self._client, self.trouble = client, ""
            self.tried.set()
            log.info("mcp_server_up", server=self.name, tools=len(self.tools))
            try:
                await self._watch(client)
            finally:
                self._client, self.trouble = None, LOST

    async def _watch(self, client: "Client") -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_INTERVAL):
                    await self._lost.wait()
                    raise ConnectionError(LOST)
            self.tools = await self._list(client)

    async def _list(self, client: "Client") -> tuple[Tool, ...]:
        listed = [each async for each in _pages(client)]
        if len(listed) > MAX_TOOLS:
            log.warning("mcp_tools_left_out", server=self.name, listed=len(listed), most=MAX_TOOLS)
        return tuple(self._tool(each) for each in listed[:MAX_TOOLS])

    def _tool(self, listed: Any) -> Tool:  # noqa: ANN401 - a type of the SDK, which is not loaded here
        schema: dict[str, Json] = listed.input_schema
        description = excerpt(clean(listed.description or listed.title or ""), MAX_DESCRIPTION_CHARS)
        hints = listed.annotations
        return Tool(
            spec=ToolSpec(name=tool_name(self.name, listed.name), description=description, schema=schema),
            run=partial(self._call, listed.name),
            concurrent=bool(hints and hints.read_only_hint),
            deadline=self.settings.timeout,
        )

    async def _call(self, tool: str, _context: ToolContext, arguments: dict[str, Json]) -> str:
        if self._client is None:
            raise ToolFailed(f"The MCP server {self.name} cannot be used now. It will be tried again.")
        from mcp import MCPError  # noqa: PLC0415 - loaded by now, since there is a client

        try:
            return as_text(await self._client.call_tool(tool, arguments))
        except MCPError as failure:
            if failure.error.code == _CONNECTION_CLOSED:
                self._lost.set()  # The next look at the tools would notice it, but later.
            raise ToolFailed(f"The MCP server {self.name} could not do that: {failure.error.message}") from failure

    def _down(self, reason: str, words: LastWords) -> None:
        self.trouble = f"{reason} ({words.line})" if words.line else reason
        self.tried.set()
        log.warning("mcp_server_lost", server=self.name, reason=self.trouble)


_CONNECTION_CLOSED = -32000


async def _pages(client: "Client") -> AsyncIterator[Any]:  # Any: as above.
    cursor: str | None = None
    for _ in range(MAX_TOOLS):
        page = await client.list_tools(cursor=cursor, cache_mode="refresh")
        for each in page.tools:
            yield each
        cursor = page.next_cursor
        if cursor is None:
            return


def _reason(failure: BaseException) -> str:
    """Say what the innermost failure is."""
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    if isinstance(failure, TimeoutError):
        return "it did not answer in time"
    if isinstance(failure, FileNotFoundError):
        return f"there is no program {failure.filename}"
    return excerpt(clean(str(failure)), 200) or type(failure).__name__
