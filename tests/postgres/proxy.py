"""A proxy between a client and PostgreSQL that cuts connections at a chosen moment."""

import asyncio
import shutil
import threading
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from psycopg.conninfo import conninfo_to_dict

_TIMEOUT = 60.0
_CHUNK_BYTES = 65_536
# https://www.postgresql.org/docs/current/protocol-message-formats.html - a type and a length; a byte of status follows.
_READY_FOR_QUERY = b"Z\x00\x00\x00\x05"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trigger:
    """The bytes in a client's message that cause a cut, and whether the server still gets that message."""

    match: bytes
    is_forwarded: bool


class PostgresProxy:
    """Forwards everything between clients and the server at `target`, a URL, until a test wants something else.

    It runs in a thread of its own, so synchronous and asynchronous tests can use it.
    """

    def __init__(self, target: str) -> None:
        parameters = conninfo_to_dict(target)
        socket = f".s.PGSQL.{parameters['port']}"
        self._target = f"{parameters['host']}/{socket}"
        self._folder = Path(mkdtemp(prefix="gatehouse-proxy-", dir="/tmp"))  # Paths of sockets must be short.
        self._socket = self._folder / socket
        self.url = target.replace(f"host={parameters['host']}", f"host={self._folder}")
        self.was_cut = threading.Event()
        """Set by every cut, and cleared by `cut_before` and `cut_after`."""
        self._trigger: _Trigger | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self._flows = asyncio.Event()
        self._flows.set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="postgres-proxy", daemon=True)
        self._thread.start()
        self.accept()

    def cut(self) -> None:
        """Cut all connections now. New ones are accepted."""
        self._run(self._cut())

    def cut_before(self, match: bytes) -> None:
        """Cut all connections when a client sends `match`. The server does not get that message."""
        self._arm(_Trigger(match=match, is_forwarded=False))

    def cut_after(self, match: bytes) -> None:
        """Cut all connections when the server has answered a message with `match`. The client gets no answer."""
        self._arm(_Trigger(match=match, is_forwarded=True))

    def stall(self) -> None:
        """Forward nothing more, in both directions, but keep the connections."""
        self._loop.call_soon_threadsafe(self._flows.clear)

    def resume(self) -> None:
        """Forward again, starting with what came in meanwhile."""
        self._loop.call_soon_threadsafe(self._flows.set)

    def refuse(self) -> None:
        """Refuse new connections, as if no server was running. Existing ones stay."""
        self._run(self._refuse())

    def accept(self) -> None:
        """Accept new connections again."""
        self._run(self._accept())

    def close(self) -> None:
        self.refuse()
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_TIMEOUT)
        self._loop.close()
        shutil.rmtree(self._folder)

    def _arm(self, trigger: _Trigger) -> None:
        self.was_cut.clear()
        self._trigger = trigger

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:  # Any: what `async def` yields to its loop.
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_TIMEOUT)

    # Everything below runs in the thread of the proxy.

    async def _accept(self) -> None:
        if self._listener is None:
            self._listener = await asyncio.start_unix_server(self._serve, self._socket)

    async def _refuse(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            self._socket.unlink(missing_ok=True)  # Python 3.13 does this itself.

    async def _cut(self) -> None:
        tasks = list(self._connections)
        self._cut_all()
        if tasks:
            await asyncio.wait(tasks)

    def _cut_all(self) -> None:
        for task in self._connections:
            task.cancel()
        self.was_cut.set()

    async def _serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        writers = [to_client]
        try:
            with suppress(OSError):  # No server is running, or a peer has gone.
                from_server, to_server = await asyncio.open_unix_connection(self._target)
                writers.append(to_server)
                withholds = asyncio.Event()
                async with asyncio.TaskGroup() as group:
                    answers = group.create_task(self._forward_answers(from_server, to_client, withholds))
                    requests = group.create_task(self._forward_requests(from_client, to_server, withholds))
                    await asyncio.wait([answers, requests], return_when=asyncio.FIRST_COMPLETED)
                    answers.cancel()
                    requests.cancel()
        finally:
            self._connections.discard(task)
            for writer in writers:
                writer.transport.abort()

    async def _forward_requests(
        self, client: asyncio.StreamReader, server: asyncio.StreamWriter, withholds: asyncio.Event
    ) -> None:
        previous = b""
        while data := await self._read(client):
            trigger = self._trigger
            # A match can begin in the data before, but must end in the new data.
            if trigger and trigger.match in previous[-len(trigger.match) + 1 :] + data:
                self._trigger = None
                if not trigger.is_forwarded:
                    self._cut_all()
                    return
                withholds.set()
            previous = data
            await self._write(server, data)

    async def _forward_answers(
        self, server: asyncio.StreamReader, client: asyncio.StreamWriter, withholds: asyncio.Event
    ) -> None:
        withheld = b""
        while data := await self._read(server):
            if withholds.is_set():
                withheld += data
                if withheld[-6:-1] == _READY_FOR_QUERY:
                    break
            else:
                await self._write(client, data)
        if withholds.is_set():
            self._cut_all()

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        """Return the next data, or nothing once the connection has ended."""
        try:
            data = await reader.read(_CHUNK_BYTES)
        except OSError:
            return b""
        await self._flows.wait()
        return data

    async def _write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        with suppress(OSError):  # The peer has gone, which the reader of its side reports.
            writer.write(data)
            await writer.drain()
