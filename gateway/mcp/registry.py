"""Runs the configured MCP servers, each in its own task, and offers their tools."""

import asyncio
from collections.abc import Iterator, Mapping

from config import McpSettings
from gateway.agent.tools import Tool
from gateway.mcp.server import McpServer

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

    async def follow(self, settings: Mapping[str, McpSettings]) -> None:
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
