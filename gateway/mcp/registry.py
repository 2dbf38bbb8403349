"""All MCP servers of the settings, each with a task of its own."""

import asyncio
from collections.abc import Iterator, Mapping

from config import McpSettings
from gateway.agent.tools import Tool
from gateway.mcp.server import McpServer

__all__ = ["McpServers"]

STOP_TIMEOUT = 10.0
"""Seconds after which a server that was told to end is told again: a failure on the way out can hide the first time."""


class McpServers:
    """`start` before the first turn; `follow` puts new settings in force, and leaves alone what has not changed."""

    def __init__(self) -> None:
        self._servers: dict[str, McpServer] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._tasks: asyncio.TaskGroup | None = None

    def __iter__(self) -> Iterator[McpServer]:
        return iter(self._servers.values())

    def tools(self) -> Iterator[Tool]:
        for server in self._servers.values():
            yield from server.tools

    async def wait_ready(self) -> None:
        """Wait until the tools of those that were just started are known; not for long, whatever becomes of them."""
        for server in tuple(self):
            await server.ready.wait()

    def start(self, tasks: asyncio.TaskGroup, settings: Mapping[str, McpSettings]) -> None:
        self._tasks = tasks
        for name, each in settings.items():
            self._start(name, each)

    async def follow(self, settings: Mapping[str, McpSettings]) -> None:
        changed = [name for name, server in self._servers.items() if settings.get(name) != server.settings]
        await self._stop(changed)
        for name in settings.keys() - self._servers.keys():
            self._start(name, settings[name])

    async def stop(self) -> None:
        """End every server; programs get some seconds to end by themselves."""
        await self._stop(list(self._servers))

    def _start(self, name: str, settings: McpSettings) -> None:
        if self._tasks is None:
            raise RuntimeError("start comes first")
        server = self._servers[name] = McpServer(name, settings)
        self._running[name] = self._tasks.create_task(server.run(), name=f"mcp:{name}")

    async def _stop(self, names: list[str]) -> None:
        ending = [self._running.pop(name) for name in names]
        for name in names:
            self._servers.pop(name).ready.set()  # Somebody may be waiting for it.
        while ending:
            for task in ending:
                task.cancel()
            _, left = await asyncio.wait(ending, timeout=STOP_TIMEOUT)
            ending = list(left)
