"""One MCP server: kept connected, its tools made ours. While it is away, they say so."""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from functools import partial
from hashlib import sha256
from importlib import import_module
from typing import TYPE_CHECKING, Any, TextIO

import msgspec
import structlog

from config import McpSettings
from gateway.agent.protocol import ToolSpec
from gateway.agent.tools import Tool, ToolContext, ToolFailed
from gateway.aio import backoff_delays
from gateway.conversation import Json
from gateway.text import clean, excerpt

log = structlog.get_logger()

_MAX_LINE_BYTES = 8_192
_WIDTH = 200


class StderrTail:
    """The newest line; `listening` gives the file to write to."""

    def __init__(self, server: str) -> None:
        self.line = ""
        self._server = server

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[TextIO]:
        """While inside, hear what is written to the file. What goes wrong there comes in a group of exceptions."""
        ours, theirs = os.pipe()
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_MAX_LINE_BYTES)
        pipe = os.fdopen(ours, "rb", buffering=0)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        with os.fdopen(theirs, "w") as file, closing(transport):
            async with asyncio.TaskGroup() as tasks:
                listener = tasks.create_task(self._listen(reader), name=f"mcp:{self._server}:stderr")
                yield file
                listener.cancel()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """Take lines as they come; one that is too long comes in pieces."""
        while True:
            try:
                line = await reader.readuntil(b"\n")
            except asyncio.LimitOverrunError as long:
                line = await reader.readexactly(long.consumed)
            except asyncio.IncompleteReadError as end:
                line = end.partial
                if not line:
                    return
            if words := clean(line.decode(errors="replace")).strip():
                self.line = excerpt(words, _WIDTH)
                log.debug("mcp_server_said", server=self._server, line=words)


def result_text(result: Any) -> str:  # noqa: ANN401 - a type of the SDK, which this module does not load
    """Put the parts of a `CallToolResult` together; raise `ToolFailed` where it says that it is an error."""
    parts = [_part(block) for block in result.content]
    if not parts and result.structured_content is not None:
        parts = [msgspec.json.encode(result.structured_content).decode()]
    text = "\n\n".join(parts) or "(nothing)"
    if result.is_error:
        raise ToolFailed(text)
    return text


def _part(block: Any) -> str:  # noqa: ANN401 - as above
    match block.type:
        case "text":
            return str(block.text)
        case "resource" if hasattr(block.resource, "text"):
            return str(block.resource.text)
        case "resource_link":
            return f"[{block.name}: {block.uri}]"
        case kind:
            mime = getattr(block, "mime_type", None) or getattr(getattr(block, "resource", None), "mime_type", None)
            return f"[{kind} of type {mime or 'unknown'}, which cannot be shown here]"


SEPARATOR = "__"
_LONGEST = 64
"""Neither of the two big APIs takes a longer name, or other characters than these."""
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_-]")


def tool_name(server: str, tool: str) -> str:
    """Return `server__tool`. Where that has to be changed to be a name, a part of a hash keeps it apart from others."""
    plain = f"{server}{SEPARATOR}{tool}"
    name = _FORBIDDEN.sub("_", plain)
    if name == plain and len(name) <= _LONGEST:
        return name
    mark = sha256(plain.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{name[: _LONGEST - len(mark) - 1]}-{mark}"


def server_of(name: str) -> str | None:
    """Return the server that a tool's name begins with, or None where it is no server's."""
    server, separator, _ = name.partition(SEPARATOR)
    return server if separator else None


if TYPE_CHECKING:
    from mcp import Client


MAX_TOOLS = 200
MAX_DESCRIPTION_CHARS = 2_000
POLL_INTERVAL = 30.0
"""Seconds between two looks at the list of tools, which also tell whether the server is still there."""
READY_TIMEOUT = 10.0
"""Seconds that turns wait at the most for a server that has just been started."""
LOST = "the connection was lost"
BACKOFF_RESET_AFTER = 60.0
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
        self.ready = asyncio.Event()
        """Set once its tools are known, or it has failed, or it takes too long."""
        self._client: Client | None = None
        self._lost = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        waits = backoff_delays()
        loop.call_later(READY_TIMEOUT, self.ready.set)
        while True:
            started = loop.time()
            words = StderrTail(self.name)
            try:
                await self._serve(words)
            except Exception as failure:  # noqa: BLE001 - whatever a server does, it is tried again, and told
                self._down(_reason(failure), words)
            if loop.time() - started > BACKOFF_RESET_AFTER:
                waits = backoff_delays()
            await asyncio.sleep(next(waits))

    async def _serve(self, words: StderrTail) -> None:
        """Be connected until the connection is lost, which is an exception."""
        opening = await asyncio.to_thread(import_module, "gateway.mcp.client")
        self._lost.clear()
        async with AsyncExitStack() as closing:
            errors = await closing.enter_async_context(words.listening())
            async with asyncio.timeout(self.settings.timeout):
                client: Client = await closing.enter_async_context(opening.open_client(self.settings, errors))
                self.tools = await self._list(client)
            self._client, self.trouble = client, ""
            self.ready.set()
            log.info("mcp_server_up", server=self.name, tools=len(self.tools))
            try:
                await self._watch(client)
            finally:
                self._client, self.trouble = None, LOST

    async def _watch(self, client: "Client") -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_INTERVAL):
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
            return result_text(await self._client.call_tool(tool, arguments))
        except MCPError as failure:
            if failure.error.code == _CONNECTION_CLOSED:
                self._lost.set()  # The next look at the tools would notice it, but later.
            raise ToolFailed(f"The MCP server {self.name} could not do that: {failure.error.message}") from failure

    def _down(self, reason: str, words: StderrTail) -> None:
        self.trouble = f"{reason} ({words.line})" if words.line else reason
        self.ready.set()
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
