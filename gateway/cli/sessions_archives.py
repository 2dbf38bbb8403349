"""Two ways to the sessions: through the daemon that runs, or in its files, under its lock, while none does."""

import asyncio
import json
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from urllib.parse import quote, urlencode

import msgspec
from aiohttp import ClientWebSocketResponse, WSMsgType

from config import Settings
from gateway.admin.archive import Archive, ListedSession, LocalArchive, closing, split_lines
from gateway.admin.client import ControlClient, is_running
from gateway.admin.session_routes import FRAME_TIMEOUT
from gateway.backup.restore import require_complete_restore
from gateway.data_dir import DataDirLock, prepare_data_dir
from gateway.errors import Refused
from gateway.sessions import SessionManager, SessionMeta, VerifyReport, VisibleLine
from gateway.spool import Spool

__all__ = ["RemoteArchive", "open_archive", "open_local_archive", "open_stores", "receive_stream"]

_listed_decoder = msgspec.json.Decoder(ListedSession)
_spoken_decoder = msgspec.json.Decoder(VisibleLine)


@asynccontextmanager
async def open_archive(settings: Settings, *, as_found: bool = False) -> AsyncIterator[Archive]:
    """Open the way that is open; `CannotStart` when somebody holds the files and does not answer."""
    directory = settings.gateway.data_dir
    if await asyncio.to_thread(is_running, directory):
        async with ControlClient(directory) as control:
            yield RemoteArchive(control)
    else:
        async with open_local_archive(settings, as_found=as_found) as archive:
            yield archive


@asynccontextmanager
async def open_local_archive(settings: Settings, *, as_found: bool = False) -> AsyncIterator[Archive]:
    """Be the one owner of the files for a while. `as_found` mends nothing first, and then only `verify` works."""
    async with open_stores(settings, as_found=as_found) as (manager, _):
        yield LocalArchive(manager)


@asynccontextmanager
async def open_stores(
    settings: Settings, *, as_found: bool = False
) -> AsyncIterator[tuple[SessionManager, Spool | None]]:
    """Open sessions and spool under the lock; without the spool where all is to stay `as_found`."""
    directory = settings.gateway.data_dir
    prepare_data_dir(directory)
    async with AsyncExitStack() as stack:
        stack.enter_context(DataDirLock(directory))
        require_complete_restore(directory)
        # What a crash has left in the spool belongs to the sessions too.
        spool = None if as_found else await stack.enter_async_context(await Spool.open(directory))
        manager = await SessionManager.open(directory / "sessions", settings.session, _now, journal=spool)
        stack.push_async_callback(manager.close)
        if not as_found:
            await manager.recover()
        yield manager, spool


class RemoteArchive:
    """The archive of a running daemon; `gateway.admin.session_routes` is its other end."""

    def __init__(self, control: ControlClient) -> None:
        self._control = control

    async def sessions(self, scope: str | None = None) -> AsyncIterator[ListedSession]:
        query = {} if scope is None else {"scope": scope}
        async with closing(self._stream("list", query)) as blocks:
            async for line in split_lines(blocks):
                yield _listed_decoder.decode(line)

    async def lines(self, key: str, limit: int) -> list[VisibleLine]:
        blocks = self._stream("lines", {"key": key, "limit": str(limit)})
        return [_spoken_decoder.decode(line) async for line in split_lines(blocks)]

    async def export(self, key: str) -> AsyncIterator[bytes]:
        async with closing(self._stream("transcript", {"key": key})) as blocks:
            async for block in blocks:
                yield block

    async def bring_in(self, blocks: AsyncIterable[bytes]) -> SessionMeta:
        async with await self._control.websocket("/sessions/import") as socket:
            try:
                async for block in blocks:
                    await socket.send_bytes(block)
                await socket.send_str(json.dumps({"end": True}))
            except ConnectionError:
                pass  # The daemon has had enough; what it says comes next.
            outcome = await _outcome(socket)
        return msgspec.convert(outcome["session"], SessionMeta)

    async def delete(self, key: str) -> None:
        await self._control.post("/sessions/delete", {"key": key})

    async def verify(self) -> VerifyReport:
        async with await self._control.websocket("/sessions/verify") as socket:
            outcome = await _outcome(socket)
        return msgspec.convert(outcome["report"], VerifyReport)

    def _stream(self, what: str, query: dict[str, str]) -> AsyncIterator[bytes]:
        return receive_stream(self._control, f"/sessions/{what}?{urlencode(query, quote_via=quote)}")


async def receive_stream(control: ControlClient, path: str) -> AsyncIterator[bytes]:
    """Yield the binary frames of a WebSocket up to its end; `Refused` when it ends with an error."""
    async with await control.websocket(path) as socket:
        while isinstance(frame := await _frame(socket), bytes):
            yield frame


async def _outcome(socket: ClientWebSocketResponse) -> dict[str, object]:
    """Wait for the text frame at the end."""
    while isinstance(frame := await _frame(socket), bytes):
        pass
    return frame


async def _frame(socket: ClientWebSocketResponse) -> bytes | dict[str, object]:
    try:
        message = await socket.receive(timeout=FRAME_TIMEOUT)
    except TimeoutError as late:
        raise Refused("The daemon did not answer in time; see its log.") from late
    if message.type is WSMsgType.BINARY:
        return bytes(message.data)
    if message.type is not WSMsgType.TEXT:
        raise Refused("The daemon broke off before it had finished; see its log, or try again.")
    outcome: dict[str, object] = json.loads(message.data)
    if "error" in outcome:
        raise Refused(str(outcome["error"]))
    return outcome


def _now() -> datetime:
    return datetime.now(UTC)
