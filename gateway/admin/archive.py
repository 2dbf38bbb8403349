"""Opens the session archive for the command line: on the files, or through the running daemon (`RemoteArchive`).

An archive lists, reads, exports, imports, deletes and verifies the sessions of all scopes. `LocalArchive`, which works
on the files, is in `session_routes.py`, because the daemon uses it as well.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote, urlencode

import msgspec
from aiohttp import ClientWebSocketResponse, WSMsgType

from config import Settings, StorageEngine
from gateway.admin.client import ControlClient, is_running
from gateway.admin.session_move import SessionMover
from gateway.admin.session_routes import FRAME_TIMEOUT, ListedSession, LocalArchive
from gateway.data_dir import DataDirLock, prepare_data_dir, require_complete_restore
from gateway.errors import Refused
from gateway.files.shared import shared_files
from gateway.files.store import FileStore
from gateway.memory.queue import leaving_operations
from gateway.memory.store import ImportedMemory, memory_folder
from gateway.sessions import SessionManager, SessionMeta, VerifyReport, VisibleLine
from gateway.sessions.entries import Header
from gateway.sessions.storage.codec import DamagedEntry, decode
from gateway.sessions.storage.interface import SessionStorage
from gateway.sessions.transfer import split_lines
from gateway.spool import Spool
from gateway.storage import open_storage

_LISTED_DECODER = msgspec.json.Decoder(ListedSession)
_LINE_DECODER = msgspec.json.Decoder(VisibleLine)


class RemoteArchive:
    """The sessions of a running daemon, with the same methods as `LocalArchive`.

    `gateway.admin.session_routes` is the daemon's side.
    """

    def __init__(self, control: ControlClient) -> None:
        self._control = control

    async def sessions(
        self, scope: str | None = None, *, are_archived: bool = False
    ) -> AsyncGenerator[ListedSession, None]:
        query = {} if scope is None else {"scope": scope}
        if are_archived:
            query["archived"] = "1"
        async with aclosing(self._stream("list", query)) as blocks:
            async for line in split_lines(blocks):
                yield _LISTED_DECODER.decode(line)

    async def lines(self, key: str, limit: int) -> list[VisibleLine]:
        async with aclosing(self._stream("lines", {"key": key, "limit": str(limit)})) as blocks:
            return [_LINE_DECODER.decode(line) async for line in split_lines(blocks)]

    def export(self, key: str) -> AsyncGenerator[bytes, None]:
        return self._stream("transcript", {"key": key})

    async def import_session(self, blocks: AsyncIterable[bytes], *, activates: bool = False) -> SessionMeta:
        parts = aiter(blocks)
        first = await anext(parts, b"")
        wanted = {**_key_of(first), **({"activates": "yes"} if activates else {})}
        query = f"?{urlencode(wanted, quote_via=quote)}" if wanted else ""
        async with await self._control.websocket(f"/sessions/import{query}") as socket:
            try:
                if first:
                    await socket.send_bytes(first)
                async for block in parts:
                    await socket.send_bytes(block)
                await socket.send_str(json.dumps({"end": True}))
            except ConnectionError:
                pass  # The daemon has refused the session. The reason is in its last frame.
            outcome = await _receive_outcome(socket)
        return msgspec.convert(outcome["session"], SessionMeta)

    async def import_memory(self, scope: str, memory: ImportedMemory) -> int:
        query = urlencode({"scope": scope}, quote_via=quote)
        outcome = await self._control.post(f"/memory/import?{query}", msgspec.to_builtins(memory))
        return msgspec.convert(outcome["new"], int)

    async def delete(self, key: str) -> None:
        await self._control.post("/sessions/delete", {"key": key})

    async def move(self, key: str, scope: str, *, activates: bool = False) -> SessionMeta:
        wanted = {"key": key, "scope": scope} | ({"activates": "yes"} if activates else {})
        query = urlencode(wanted, quote_via=quote)
        async with await self._control.websocket(f"/sessions/move?{query}") as socket:
            outcome = await _receive_outcome(socket)
        return msgspec.convert(outcome["session"], SessionMeta)

    async def move_belongings(self, source: str, target: str) -> list[str]:
        query = urlencode({"source": source, "target": target}, quote_via=quote)
        async with await self._control.websocket(f"/sessions/move-belongings?{query}") as socket:
            outcome = await _receive_outcome(socket)
        return msgspec.convert(outcome["left"], list[str])

    async def restore(self, key: str) -> SessionMeta:
        outcome = await self._control.post("/sessions/restore", {"key": key})
        return msgspec.convert(outcome["session"], SessionMeta)

    async def verify(self) -> VerifyReport:
        async with await self._control.websocket("/sessions/verify") as socket:
            outcome = await _receive_outcome(socket)
        return msgspec.convert(outcome["report"], VerifyReport)

    def _stream(self, resource: str, query: dict[str, str]) -> AsyncGenerator[bytes, None]:
        return receive_stream(self._control, f"/sessions/{resource}?{urlencode(query, quote_via=quote)}")


def _key_of(block: bytes) -> dict[str, str]:
    """Return a query with the key of the session that begins with this block. In a cluster, its node imports it."""
    try:
        header = decode(block.partition(b"\n")[0])
    except DamagedEntry:  # The gateway says what is wrong with it.
        return {}
    return {"key": header.key} if isinstance(header, Header) else {}


Archive: TypeAlias = LocalArchive | RemoteArchive


@asynccontextmanager
async def open_archive(settings: Settings, *, as_found: bool = False) -> AsyncIterator[Archive]:
    """Ask the daemon if it runs, otherwise open its files. `as_found` is for `open_local_archive`.

    Raises `CannotStart` if another process holds the files and does not answer.
    """
    directory = settings.gateway.data_dir
    if await asyncio.to_thread(is_running, directory):
        async with ControlClient(directory) as control:
            yield RemoteArchive(control)
    else:
        async with open_local_archive(settings, as_found=as_found) as archive:
            yield archive


@asynccontextmanager
async def open_local_archive(settings: Settings, *, as_found: bool = False) -> AsyncIterator[LocalArchive]:
    """Open the files under the lock. With `as_found` nothing is repaired, and only `verify` works."""
    async with open_stores(settings, as_found=as_found) as (manager, spool):
        mover = None
        if spool is not None:
            files = FileStore(
                settings.gateway.data_dir / "files", settings.files.max_stored_bytes, shared_files(settings)
            )
            mover = SessionMover(lambda: settings, manager, spool, files)
        yield LocalArchive(manager, mover, memory=None if as_found else _MemoryFolders(settings))


class _MemoryFolders:
    """The memory files of a gateway that does not run."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def fetch_memory(self, scope: str) -> Path:
        if self._settings.cluster.enabled:  # The files of a node that does not run may be old.
            raise Refused("The memory of a cluster can only be changed while this node runs. Start it, and try again.")
        return memory_folder(self._settings.gateway.data_dir, scope)

    async def memory_may_have_changed(self, scope: str) -> None:
        """Do nothing: the next start reads the files."""


@asynccontextmanager
async def open_stores(
    settings: Settings, *, as_found: bool = False
) -> AsyncIterator[tuple[SessionManager, Spool | None]]:
    """Open sessions and spool under the lock. With `as_found` nothing is repaired, and the spool is None."""
    directory = settings.gateway.data_dir
    prepare_data_dir(directory)
    async with AsyncExitStack() as stack:
        stack.enter_context(DataDirLock(directory))
        require_complete_restore(directory)
        # After a crash, the spool's journal holds entries that are missing in the transcripts.
        spool: Spool | None = None
        storage: SessionStorage | Path = directory / "sessions"
        if not as_found or settings.storage.engine is not StorageEngine.FILES:
            spool, storage = await stack.enter_async_context(open_storage(settings))
        files = FileStore(directory / "files", settings.files.max_stored_bytes, shared_files(settings))
        if not as_found:
            await files.open()
        manager = await SessionManager.open(
            storage,
            settings.session,
            lambda: datetime.now(UTC),
            leaving_operations=partial(leaving_operations, lambda: settings.session),
            remove_files=files.remove_session,
            journal=spool,
        )
        stack.push_async_callback(manager.close)
        if not as_found:
            await manager.recover()
        yield manager, spool


async def receive_stream(control: ControlClient, path: str) -> AsyncGenerator[bytes, None]:
    """Yield the binary frames of a WebSocket of the daemon. Raises `Refused` if it ends with an error."""
    async with await control.websocket(path) as socket:
        while isinstance(frame := await _receive_frame(socket), bytes):
            yield frame


async def _receive_outcome(socket: ClientWebSocketResponse) -> dict[str, object]:
    """Skip keepalive frames, and return the outcome, which the last frame holds."""
    while isinstance(frame := await _receive_frame(socket), bytes):
        pass
    return frame


async def _receive_frame(socket: ClientWebSocketResponse) -> bytes | dict[str, object]:
    """Return the bytes of a binary frame, or the outcome in a text frame. Raises `Refused` if that is an error."""
    try:
        message = await socket.receive(timeout=FRAME_TIMEOUT)
    except TimeoutError as error:
        raise Refused("The gateway didn't answer in time. Check its log.") from error
    if message.type is WSMsgType.BINARY:
        return bytes(message.data)
    if message.type is not WSMsgType.TEXT:
        raise Refused("The gateway closed the connection too early. Try again, or check its log.")
    outcome: dict[str, object] = json.loads(message.data)
    if "error" in outcome:
        raise Refused(str(outcome["error"]))
    return outcome
