"""A cable between a bot and its platform: TCP on the loopback that can tear, be cut for a while, and go dead."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from gateway.daemon import Daemon

__all__ = ["Cable", "back", "laid", "noticed", "settled", "until"]

LOOK_EVERY = 0.02


class _Strand:
    """One connection through the cable, from a bot to its platform."""

    def __init__(self, bot: asyncio.StreamWriter, platform: asyncio.StreamWriter) -> None:
        self._ends = (bot, platform)
        self.is_dead = False

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on what comes, or swallow it; when one end of a dead one is closed, the other does not hear of it."""
        while data := await reader.read(65_536):
            if not self.is_dead:
                writer.write(data)
                await writer.drain()
        if not self.is_dead:
            writer.close()

    def tear(self) -> None:
        for end in self._ends:
            end.transport.abort()


class Cable:
    """What was connected when it went dead stays dead; once it is healed, new connections are sound."""

    def __init__(self, target: str) -> None:
        address = urlsplit(target)
        self._target = (address.hostname, address.port)
        self._strands: dict[_Strand, asyncio.Task[None] | None] = {}
        self._server: asyncio.Server | None = None
        self._port = 0
        self._is_dead = False

    def through(self, url: str) -> str:
        """Return `url` by way of the cable."""
        return urlsplit(url)._replace(netloc=f"127.0.0.1:{self._port}").geturl()

    def tear(self) -> None:
        """Break every connection; a new one can be made at once."""
        for strand in self._strands:
            strand.tear()

    def cut(self) -> None:
        """Break every connection, and refuse new ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.tear()

    def die(self) -> None:
        """Swallow every byte in both directions from now on, without closing anything."""
        self._is_dead = True
        for strand in self._strands:
            strand.is_dead = True

    async def heal(self) -> None:
        self._is_dead = False
        if self._server is None:
            self._server = await asyncio.start_server(self._plugged, "127.0.0.1", self._port)
            self._port = self._server.sockets[0].getsockname()[1]

    async def take_up(self) -> None:
        """Remove the cable, and with it whatever goes through it."""
        self.cut()
        tasks = [task for task in self._strands.values() if task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _plugged(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        strand = _Strand(writer, far_writer)
        strand.is_dead = self._is_dead
        self._strands[strand] = asyncio.current_task()
        try:
            async with asyncio.TaskGroup() as ways:
                ways.create_task(strand.carry(reader, far_writer), name="cable:there")
                ways.create_task(strand.carry(far_reader, writer), name="cable:back")
        except* OSError:
            pass
        finally:
            strand.tear()
            del self._strands[strand]


@asynccontextmanager
async def laid(target: str) -> AsyncIterator[Cable]:
    """Lay a cable to the server at `target`."""
    cable = Cable(target)
    await cable.heal()
    try:
        yield cable
    finally:
        await cable.take_up()


async def until(is_true: Callable[[], object], *, within: float) -> None:
    """Return once something holds of which no event tells."""
    async with asyncio.timeout(within):
        while not is_true():  # noqa: ASYNC110 - as above
            await asyncio.sleep(LOOK_EVERY)


async def noticed(daemon: Daemon, *, within: float) -> str:
    """Wait until the only channel is known to be down; return why."""
    await until(lambda: daemon.health().channels[0].state == "down", within=within)
    return daemon.health().channels[0].reason


async def back(daemon: Daemon) -> None:
    await until(lambda: daemon.health().ready, within=60)


async def settled(daemon: Daemon) -> None:
    """Return once nothing is on its way out: what is cut then may have arrived, and comes twice."""
    while (await daemon.status.facts()).replies_waiting:
        pass
