"""All MCP servers of the settings, each with a task of its own."""

import asyncio
from collections.abc import Iterator, Mapping

from config import McpSettings
from gateway.agent.tools import Tool
from gateway.mcp.server import McpServer

__all__ = ["McpServers"]


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
        for name, task in zip(names, ending, strict=True):
            del self._servers[name]
            task.cancel()
        if ending:
            await asyncio.wait(ending)
