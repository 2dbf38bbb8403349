"""A TCP proxy between a bot and its platform that can reset connections, refuse them, and stall."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from gateway.daemon import Daemon
from tests.polling import until


class _Connection:
    """One connection from a bot through the proxy to the platform."""

    def __init__(self, bot: asyncio.StreamWriter, platform: asyncio.StreamWriter) -> None:
        self._ends = (bot, platform)
        self.is_stalled = False

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward bytes in one direction. A stalled connection drops them, and does not forward a close."""
        while data := await reader.read(65_536):
            if not self.is_stalled:
                writer.write(data)
                await writer.drain()
        if not self.is_stalled:
            writer.close()

    def reset(self) -> None:
        for end in self._ends:
            end.transport.abort()


class FaultyProxy:
    """A connection that has stalled stays stalled. After `restore`, new connections work."""

    def __init__(self, target: str) -> None:
        address = urlsplit(target)
        self._target = (address.hostname, address.port)
        self._connections: dict[_Connection, asyncio.Task[None] | None] = {}
        self._server: asyncio.Server | None = None
        self._port = 0
        self._is_stalled = False

    def url(self, url: str) -> str:
        """Return the URL that leads to `url` through the proxy."""
        return urlsplit(url)._replace(netloc=f"127.0.0.1:{self._port}").geturl()

    def reset(self) -> None:
        """Break every connection. New ones work at once."""
        for connection in self._connections:
            connection.reset()

    def disconnect(self) -> None:
        """Break every connection, and refuse new ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.reset()

    def stall(self) -> None:
        """Drop every byte in both directions from now on, without closing anything."""
        self._is_stalled = True
        for connection in self._connections:
            connection.is_stalled = True

    async def restore(self) -> None:
        self._is_stalled = False
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
            self._port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self.disconnect()
        tasks = [task for task in self._connections.values() if task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        platform_reader, platform_writer = await asyncio.open_connection(*self._target)
        connection = _Connection(writer, platform_writer)
        connection.is_stalled = self._is_stalled
        self._connections[connection] = asyncio.current_task()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(connection.forward(reader, platform_writer), name="proxy:to-platform")
                tasks.create_task(connection.forward(platform_reader, writer), name="proxy:to-bot")
        except* OSError:
            pass
        finally:
            connection.reset()
            del self._connections[connection]


@asynccontextmanager
async def faulty_proxy(target: str) -> AsyncIterator[FaultyProxy]:
    """Run a proxy to the server at `target`."""
    proxy = FaultyProxy(target)
    await proxy.restore()
    try:
        yield proxy
    finally:
        await proxy.close()


async def wait_until_down(daemon: Daemon, *, within: float) -> str:
    """Wait until the daemon reports its only channel as down, and return the reason."""
    await until(lambda: daemon.status.health().channels[0].state == "down", within=within)
    return daemon.status.health().channels[0].reason


async def wait_until_ready(daemon: Daemon) -> None:
    await until(lambda: daemon.status.health().ready, within=60)


async def wait_until_replies_sent(daemon: Daemon) -> None:
    """Wait until no send is in progress. A connection that breaks during a send could cause a repeat."""

    async def is_idle() -> bool:
        return not (await daemon.status.report()).replies_waiting

    await until(is_idle)
