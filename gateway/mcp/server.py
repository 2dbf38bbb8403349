"""One MCP server: keeps it connected and turns its tools into ours. While it is down, its tools say so."""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Iterator, Mapping
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
from gateway.mcp.arguments import check_arguments
from gateway.mcp.limits import TOO_LARGE, LeftOutTool, select_tools
from gateway.text import clean, excerpt

log = structlog.get_logger()

if TYPE_CHECKING:
    from mcp import Client


MAX_DESCRIPTION_CHARS = 2_000
POLL_INTERVAL = 30.0
"""Seconds between two requests for the list of tools, which also show that the server is still there."""
READY_TIMEOUT = 10.0
"""Seconds for which turns wait for a server that was just started."""
BACKOFF_RESET_AFTER = 60.0
"""A server that was connected for this long is reconnected without delay."""
LOST = "the connection was lost"

_CONNECTION_CLOSED = -32000
"""An error code of the MCP SDK."""

SEPARATOR = "__"
_MAX_TOOL_NAME = 64
"""The limit of the OpenAI and Anthropic APIs, which also forbid other characters than these."""
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_-]")


def tool_name(server: str, tool: str) -> str:
    """Return `server__tool`. If that is not a valid name, it is changed, and part of a hash keeps it unique."""
    full = f"{server}{SEPARATOR}{tool}"
    name = _FORBIDDEN.sub("_", full)
    if name == full and len(name) <= _MAX_TOOL_NAME:
        return name
    mark = sha256(full.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{name[: _MAX_TOOL_NAME - len(mark) - 1]}-{mark}"


def server_of(name: str) -> str | None:
    """Return the server of a tool name, or None for a built-in tool."""
    server, separator, _ = name.partition(SEPARATOR)
    return server if separator else None


class McpServer:
    """`run` connects, and reconnects with growing delays, until it is cancelled."""

    def __init__(self, name: str, settings: McpSettings) -> None:
        self.name = name
        self.settings = settings
        self.tools: tuple[Tool, ...] = ()
        """As last listed. They stay while the server is down, since conversations may refer to them."""
        self.left_out: tuple[LeftOutTool, ...] = ()
        """Tools that exceed a limit, as last listed."""
        self.trouble = "it is being started"
        """Why its tools cannot be used now, or an empty string. It may name programs and addresses."""
        self.ready = asyncio.Event()
        """Set once its tools are known, it has failed, or it has taken too long."""
        self._client: Client | None = None
        self._lost = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        delays = backoff_delays()
        loop.call_later(READY_TIMEOUT, self.ready.set)
        while True:
            started = loop.time()
            stderr = StderrTail(self.name)
            try:
                await self._stay_connected(stderr)
            except Exception as failure:  # noqa: BLE001 - after any failure of a server, it is reported and restarted.
                reason = _describe_failure(failure)
                self.trouble = f"{reason} ({stderr.line})" if stderr.line else reason
                self.ready.set()
                log.warning("mcp_server_lost", server=self.name, reason=self.trouble)
            if loop.time() - started > BACKOFF_RESET_AFTER:
                delays = backoff_delays()
            await asyncio.sleep(next(delays))

    async def _stay_connected(self, stderr: "StderrTail") -> None:
        """Connect, and poll the list of tools until the connection is lost, which raises an exception."""
        # Imported in a thread, because it takes a second.
        client_module = await asyncio.to_thread(import_module, "gateway.mcp.client")
        self._lost.clear()
        async with AsyncExitStack() as stack:
            errors = await stack.enter_async_context(stderr.listening())
            async with asyncio.timeout(self.settings.timeout):
                client: Client = await stack.enter_async_context(client_module.open_client(self.settings, errors))
                self.tools = await self._list_tools(client)
            self._client, self.trouble = client, ""
            self.ready.set()
            log.info("mcp_server_connected", server=self.name, tools=len(self.tools))
            try:
                while True:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(POLL_INTERVAL):
                            await self._lost.wait()
                            raise ConnectionError(LOST)
                    self.tools = await self._list_tools(client)
            finally:
                self._client, self.trouble = None, LOST

    async def _list_tools(self, client: "Client") -> tuple[Tool, ...]:
        listed: list[Any] = []  # Any: types of the SDK, which this module does not import.
        cursor: str | None = None
        for _ in range(self.settings.max_tools):  # A server could return pages without end.
            page = await client.list_tools(cursor=cursor, cache_mode="refresh")
            listed += page.tools
            cursor = page.next_cursor
            if cursor is None or len(listed) > self.settings.max_tools:
                break
        kept, left_out = select_tools(listed, self.settings)
        for each in set(left_out).difference(self.left_out):  # Not again with every poll.
            log.warning("mcp_tool_left_out", server=self.name, tool=each.name, reason=each.reason)
        self.left_out = left_out
        return tuple(
            Tool(
                spec=ToolSpec(
                    name=tool_name(self.name, each.name),
                    description=excerpt(clean(each.description or each.title or ""), MAX_DESCRIPTION_CHARS),
                    schema=each.input_schema,
                ),
                run=partial(self._call_tool, each.name),
                check=partial(check_arguments, each.name, each.input_schema),
                # The server's own promise that the tool changes nothing.
                concurrent=bool(each.annotations and each.annotations.read_only_hint),
                deadline=self.settings.timeout,
            )
            for each in kept
        )

    async def _call_tool(self, tool: str, _context: ToolContext, arguments: dict[str, Json]) -> str:
        if self._client is None:
            raise ToolFailed(f"The MCP server {self.name} cannot be used now. Gatehouse keeps trying to connect.")
        from mcp import MCPError  # noqa: PLC0415 - loaded by now, since there is a client.

        try:
            return result_text(await self._client.call_tool(tool, arguments))
        except MCPError as failure:
            if TOO_LARGE in failure.error.message:
                limit = self.settings.max_result_bytes
                log.warning("mcp_result_too_large", server=self.name, tool=tool, limit=limit)
                raise ToolFailed(
                    f"The result of {tool} is larger than {limit:,} bytes, so it was not read. Ask for less at once. "
                    f"The operator can raise mcp.{self.name}.max_result_bytes."
                ) from failure
            if failure.error.code == _CONNECTION_CLOSED:
                self._lost.set()  # The next poll would notice it as well, but later.
            raise ToolFailed(f"The MCP server {self.name} reported an error: {failure.error.message}") from failure


def result_text(result: Any) -> str:  # noqa: ANN401 - a type of the SDK, which this module does not import.
    """Return the text of a `CallToolResult`. Raises `ToolFailed` if it is an error."""
    parts: list[str] = []
    for block in result.content:
        match block.type:
            case "text":
                parts.append(str(block.text))
            case "resource" if hasattr(block.resource, "text"):
                parts.append(str(block.resource.text))
            case "resource_link":
                parts.append(f"[{block.name}: {block.uri}]")
            case kind:
                mime = getattr(block, "mime_type", None) or getattr(getattr(block, "resource", None), "mime_type", None)
                parts.append(f"[{kind} of type {mime or 'unknown'}, which cannot be shown here]")
    if not parts and result.structured_content is not None:
        parts = [msgspec.json.encode(result.structured_content).decode()]
    text = "\n\n".join(parts) or "(nothing)"
    if result.is_error:
        raise ToolFailed(text)
    return text


def _describe_failure(failure: BaseException) -> str:
    while isinstance(failure, BaseExceptionGroup):  # The SDK runs in nested task groups.
        failure = failure.exceptions[0]
    if isinstance(failure, TimeoutError):
        return "it didn't answer in time"
    if isinstance(failure, FileNotFoundError):
        return f"there is no program {failure.filename}"
    return excerpt(clean(str(failure)), 200) or type(failure).__name__


class StderrTail:
    """Keeps the last line that a program wrote to stderr, which often says why it exited."""

    _MAX_LINE_BYTES = 8_192
    _MAX_LINES_AT_ONCE = 20
    _MAX_KEPT_CHARS = 200

    def __init__(self, server: str) -> None:
        self.line = ""
        self._server = server

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[TextIO]:
        """Yield a file for the program's stderr and read it. Failures inside come as an exception group."""
        ours, theirs = os.pipe()
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=self._MAX_LINE_BYTES)
        pipe = os.fdopen(ours, "rb", buffering=0)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)

        def keep(lines: list[bytes]) -> None:
            # Of a flood, most lines are ignored: decoding them all would take the time of the chats.
            for line in lines[-self._MAX_LINES_AT_ONCE :]:
                if text := clean(line.decode(errors="replace")).strip():
                    self.line = excerpt(text, self._MAX_KEPT_CHARS)
                    log.debug("mcp_server_stderr", server=self._server, line=text)

        async def read_lines() -> None:
            unfinished = b""
            while chunk := await reader.read(self._MAX_LINE_BYTES):
                *lines, unfinished = (unfinished + chunk).split(b"\n")
                keep(lines)
                unfinished = unfinished[-self._MAX_LINE_BYTES :]
            keep([unfinished])

        with os.fdopen(theirs, "w") as file, closing(transport):
            async with asyncio.TaskGroup() as tasks:
                listener = tasks.create_task(read_lines(), name=f"mcp:{self._server}:stderr")
                yield file
                listener.cancel()


STOP_TIMEOUT = 10.0
"""Seconds until a cancelled task is cancelled again: a failure while it ends can hide the first cancellation."""


class McpServers:
    """Call `start` before the first turn. `follow` applies new settings and restarts only the servers that changed."""

    def __init__(self) -> None:
        self.servers: dict[str, McpServer] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._tasks: asyncio.TaskGroup | None = None

    def __iter__(self) -> Iterator[McpServer]:
        return iter(self.servers.values())

    def tools(self) -> Iterator[Tool]:
        for server in self.servers.values():
            yield from server.tools

    async def wait_ready(self) -> None:
        """Wait until each server has listed its tools, has failed, or has taken too long."""
        for server in tuple(self):
            await server.ready.wait()

    def start(self, tasks: asyncio.TaskGroup, settings: Mapping[str, McpSettings]) -> None:
        self._tasks = tasks
        for name, each in settings.items():
            self._start(name, each)

    async def reload(self, settings: Mapping[str, McpSettings]) -> None:
        """Stop servers that were removed or changed, and start those that are new or changed."""
        changed = [name for name, server in self.servers.items() if settings.get(name) != server.settings]
        await self._stop(changed)
        for name in settings.keys() - self.servers.keys():
            self._start(name, settings[name])

    async def stop(self) -> None:
        """Stop all servers. Programs get a few seconds to exit."""
        await self._stop(list(self.servers))

    def _start(self, name: str, settings: McpSettings) -> None:
        if self._tasks is None:
            raise RuntimeError("call start first")
        server = self.servers[name] = McpServer(name, settings)
        self._running[name] = self._tasks.create_task(server.run(), name=f"mcp:{name}")

    async def _stop(self, names: list[str]) -> None:
        ending = [self._running.pop(name) for name in names]
        for name in names:
            self.servers.pop(name).ready.set()  # A turn may be waiting for it.
        while ending:
            for task in ending:
                task.cancel()
            _, left = await asyncio.wait(ending, timeout=STOP_TIMEOUT)
            ending = list(left)
