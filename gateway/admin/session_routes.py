"""The session archive (`LocalArchive`), and its routes on the control socket. `RemoteArchive` is their client.

All routes but delete are WebSockets, because these have no deadline and no size limit. Binary frames carry JSON lines
or a file, cut anywhere; an empty frame is a keepalive. A text frame comes last, with the outcome or an `error`.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import aclosing, contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import msgspec
from aiohttp import WSMsgType, web
from msgspec import Struct

from gateway.admin.session_move import SessionMover, scope_of
from gateway.contract import Access, Caller, Route
from gateway.errors import HeldElsewhere, Refused
from gateway.memory.queue import ScopeMemory
from gateway.memory.store import ImportedMemory, MemoryStore
from gateway.sessions import SessionManager, SessionMeta, VerifyReport, VisibleLine
from gateway.sessions.keys import parse_key
from gateway.sessions.session import meta_of
from gateway.sessions.transfer import join_into_blocks

FRAME_TIMEOUT = 60.0
"""Seconds that the client and the daemon each wait for the other's next WebSocket frame."""


class ListedSession(Struct, frozen=True, kw_only=True):
    meta: SessionMeta
    is_active: bool
    is_archived: bool = False
    epoch: int = 0
    """How often the active session of its scope has changed. Archived sessions don't say it."""
    highest_number: int = 0
    """The highest number that a session of its scope has had."""


class LocalArchive:
    """The sessions in the files, for the process that holds the data directory's lock.

    All methods raise `Refused`, with a message for the operator, if they cannot do their work.
    """

    def __init__(
        self,
        manager: SessionManager,
        mover: SessionMover | None = None,
        delete: Callable[[str], Awaitable[None]] | None = None,
        memory: ScopeMemory | None = None,
    ) -> None:
        self._manager = manager
        self._mover = mover
        self._delete = delete or manager.delete
        self._memory = memory

    async def sessions(
        self, scope: str | None = None, *, are_archived: bool = False
    ) -> AsyncGenerator[ListedSession, None]:
        """Yield the sessions of one scope, or of all. The sessions of a scope come together, newest first."""
        if are_archived:
            for name in await self._manager.archived_scopes() if scope is None else [scope]:
                for archived in await self._manager.archive.list(name):
                    yield ListedSession(meta=archived.meta, is_active=False, is_archived=True)
            return
        async with aclosing(self._manager.everywhere(scope)) as scopes:
            async for found in scopes:
                for key in found.ordered_sessions:
                    meta = meta_of(key, found.sessions[key])
                    is_active = key == found.active_session_key
                    yield ListedSession(
                        meta=meta, is_active=is_active, epoch=found.epoch, highest_number=found.highest_number
                    )

    def require_here(self, key: str) -> None:
        """Raise `HeldElsewhere` if another node of a cluster owns the session."""
        _check_key(key)
        self._manager.require_here(parse_key(key)[0])

    def require_scope(self, scope: str) -> None:
        """Raise `HeldElsewhere` if another node of a cluster owns the scope."""
        self._manager.require_here(scope_of(scope))

    async def lines(self, key: str, limit: int) -> list[VisibleLine]:
        """Return the last `limit` messages that a person sees, oldest first."""
        await self._require_session(key)
        return await self._manager.lines(key, limit)

    async def export(self, key: str) -> AsyncGenerator[bytes, None]:
        """Yield the transcript byte for byte, in pieces that end anywhere."""
        await self._require_session(key, may_be_archived=True)
        with _refuse_os_errors("Can't read the transcript"):
            async with aclosing(self._manager.export_lines(key)) as lines:
                async for line in lines:
                    yield line

    async def import_session(self, blocks: AsyncIterable[bytes], *, activates: bool = False) -> SessionMeta:
        """Store a transcript that `export` has written, byte for byte. `activates` is for `import_lines`."""
        with _refuse_os_errors("Can't store the session"):
            return await self._manager.import_lines(None, blocks, activates=activates)

    async def import_memory(self, scope: str, memory: ImportedMemory) -> int:
        """Add statements from another gateway to the memory of a scope, once. Return how many are new."""
        self.require_scope(scope)
        if self._memory is None:
            raise Refused("The memory can't be changed while its files are only looked at.")
        with _refuse_os_errors("Can't change the memory"):
            store = MemoryStore(await self._memory.fetch_memory(scope))
            new = await asyncio.to_thread(store.import_statements, memory)
            await self._memory.memory_may_have_changed(scope)
        return new

    async def delete(self, key: str) -> None:
        await self._require_session(key, may_be_archived=True)
        await self._delete(key)

    async def move(self, key: str, scope: str, *, activates: bool = False) -> SessionMeta:
        """Move a session to another scope, where it gets the next free number."""
        await self._require_session(key, may_be_archived=True)
        self._require_target(scope)
        with _refuse_os_errors("Can't move the session"):
            return await self._require_mover().move(key, scope_of(scope), activates=activates)

    async def move_belongings(self, source: str, target: str) -> list[str]:
        """Move what belongs to a scope and not to one session. Return sentences about what stays."""
        self.require_scope(source)
        self._require_target(target)
        with _refuse_os_errors("Can't move the notes or the workspace"):
            return await self._require_mover().move_belongings(scope_of(source), scope_of(target))

    def _require_target(self, scope: str) -> None:
        try:
            self.require_scope(scope)
        except HeldElsewhere as error:
            raise Refused(
                f"Two nodes of the cluster serve this session and the scope {scope}, so it can't be moved now. "
                "Stop all nodes but one, and try again."
            ) from error

    def _require_mover(self) -> SessionMover:
        if self._mover is None:
            raise Refused("Sessions can't be moved while their files are only looked at.")
        return self._mover

    async def restore(self, key: str) -> SessionMeta:
        """Bring a session back from the archive."""
        self.require_here(key)
        archived = await self._manager.archive.find(key)
        if archived is None:
            raise Refused("This session is not in the archive. `gatehouse sessions list --archived` shows those.")
        return await self._manager.archive.restore(archived, await self._manager.copy_displaced(archived))

    async def verify(self) -> VerifyReport:
        with _refuse_os_errors("Can't read the sessions folder"):
            return await self._manager.verify()

    async def _require_session(self, key: str, *, may_be_archived: bool = False) -> None:
        self.require_here(key)
        if self._manager.find(key) is None and not (may_be_archived and await self._manager.archive.is_archived(key)):
            raise Refused("This session doesn't exist. `gatehouse sessions list` shows all sessions.")


def _check_key(key: str) -> None:
    try:
        parse_key(key)
    except ValueError as error:
        raise Refused("This is not a session key. `gatehouse sessions list` shows the keys.") from error


@contextmanager
def _refuse_os_errors(failure: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Refused(f"{failure}: {error.strerror or error}.") from error


KEEPALIVE_INTERVAL = 10.0
MAX_LINES = 100_000

_T = TypeVar("_T")


def session_routes(archive: LocalArchive) -> list[Route]:
    """Return the routes. In a cluster, they raise `HeldElsewhere` before they open a WebSocket."""
    require_here = partial(_require_here, archive)

    async def list_sessions(query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        async for listed in archive.sessions(query.get("scope"), are_archived="archived" in query):
            yield msgspec.json.encode(listed) + b"\n"

    async def read_lines(query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        limit = required_text(query, "limit")
        # A number of more digits than `int` accepts must not crash us.
        if not limit.isdecimal() or not 0 < int(limit[:9]) <= MAX_LINES:
            raise Refused(f"The number of lines must be from 1 to {MAX_LINES}.")
        for line in await archive.lines(required_text(query, "key"), int(limit)):
            yield msgspec.json.encode(line) + b"\n"

    async def verify(request: web.Request, _: Caller) -> web.StreamResponse:
        async def talk(socket: web.WebSocketResponse) -> dict[str, object]:
            report = await _with_keepalive(socket, archive.verify())
            return {"report": msgspec.to_builtins(report)}

        return await _run_websocket(request, talk)

    async def import_session(request: web.Request, _: Caller) -> web.StreamResponse:
        require_here(request.query)

        async def talk(socket: web.WebSocketResponse) -> dict[str, object]:
            async with aclosing(_receive_blocks(socket)) as blocks:
                activates = "activates" in request.query
                meta = await _with_keepalive(socket, archive.import_session(blocks, activates=activates))
            return {"session": msgspec.to_builtins(meta)}

        return await _run_websocket(request, talk)

    async def move(request: web.Request, _: Caller) -> web.StreamResponse:
        require_here(request.query)

        async def talk(socket: web.WebSocketResponse) -> dict[str, object]:
            key, scope = required_text(request.query, "key"), required_text(request.query, "scope")
            activates = "activates" in request.query
            meta = await _with_keepalive(socket, archive.move(key, scope, activates=activates))
            return {"session": msgspec.to_builtins(meta)}

        return await _run_websocket(request, talk)

    async def move_belongings(request: web.Request, _: Caller) -> web.StreamResponse:
        require_here({"scope": request.query.get("source", "")})

        async def talk(socket: web.WebSocketResponse) -> dict[str, object]:
            source, target = required_text(request.query, "source"), required_text(request.query, "target")
            return {"left": await _with_keepalive(socket, archive.move_belongings(source, target))}

        return await _run_websocket(request, talk)

    async def import_memory(request: web.Request, _: Caller) -> web.StreamResponse:
        require_here(request.query)
        try:
            memory = msgspec.json.decode(await request.read(), type=ImportedMemory)
        except msgspec.MsgspecError as error:
            raise Refused(f"The statements can't be read: {error}.") from error
        return web.json_response({"new": await archive.import_memory(required_text(request.query, "scope"), memory)})

    async def delete(request: web.Request, _: Caller) -> web.StreamResponse:
        await archive.delete(required_text(await request.json(), "key"))
        return web.json_response({"status": "deleted"})

    async def restore(request: web.Request, _: Caller) -> web.StreamResponse:
        meta = await archive.restore(required_text(await request.json(), "key"))
        return web.json_response({"session": msgspec.to_builtins(meta)})

    return [
        stream_route("/sessions/list", list_sessions, require_here),
        stream_route("/sessions/lines", read_lines, require_here),
        stream_route("/sessions/transcript", lambda query: archive.export(required_text(query, "key")), require_here),
        Route(method="GET", path="/sessions/verify", access=Access.CONTROL, handle=verify),
        Route(method="GET", path="/sessions/import", access=Access.CONTROL, handle=import_session),
        Route(method="GET", path="/sessions/move", access=Access.CONTROL, handle=move),
        Route(method="GET", path="/sessions/move-belongings", access=Access.CONTROL, handle=move_belongings),
        Route(method="POST", path="/memory/import", access=Access.CONTROL, handle=import_memory),
        Route(method="POST", path="/sessions/delete", access=Access.CONTROL, handle=delete),
        Route(method="POST", path="/sessions/restore", access=Access.CONTROL, handle=restore),
    ]


def _require_here(archive: LocalArchive, query: Mapping[str, str]) -> None:
    """Raise `HeldElsewhere` if another node of a cluster owns the session or the scope that a query names."""
    with suppress(Refused):  # The handler tells the client what is wrong.
        if "key" in query:
            archive.require_here(query["key"])
        elif "scope" in query:
            archive.require_scope(query["scope"])


def stream_route(
    path: str,
    produce: Callable[[Mapping[str, str]], AsyncGenerator[bytes, None]],
    require: Callable[[Mapping[str, str]], None] = lambda _: None,
) -> Route:
    """Return a route that sends everything that `produce` yields for a query. `require` may raise an error before."""

    async def handle(request: web.Request, _: Caller) -> web.StreamResponse:
        require(request.query)

        async def talk(socket: web.WebSocketResponse) -> dict[str, object]:
            async with aclosing(produce(request.query)) as pieces:
                async for block in join_into_blocks(pieces):
                    await socket.send_bytes(block)
            return {}

        return await _run_websocket(request, talk)

    return Route(method="GET", path=path, access=Access.CONTROL, handle=handle)


def required_text(given: Mapping[str, object], name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str) or not value:
        raise Refused(f"`{name}` is missing.")
    return value


async def _run_websocket(
    request: web.Request, talk: Callable[[web.WebSocketResponse], Awaitable[dict[str, object]]]
) -> web.StreamResponse:
    """Open a WebSocket, run `talk`, and send its result or the message of its error as the last frame."""
    socket = web.WebSocketResponse(compress=False)
    await socket.prepare(request)
    try:
        outcome = await talk(socket)
    except (Refused, HeldElsewhere) as refusal:
        outcome = {"error": str(refusal)}
    except ConnectionError:
        return socket  # The client has gone, or the daemon is shutting down.
    if not socket.closed:
        await socket.send_str(json.dumps(outcome))
        await socket.close()
    return socket


async def _with_keepalive(socket: web.WebSocketResponse, work: Coroutine[Any, Any, _T]) -> _T:
    """Wait for `work`, which may read many transcripts, and send empty frames so that the client goes on waiting."""
    working = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({working}, timeout=KEEPALIVE_INTERVAL))[0]:
            await socket.send_bytes(b"")
        return working.result()
    finally:
        working.cancel()
        await asyncio.wait({working})


async def _receive_blocks(socket: web.WebSocketResponse) -> AsyncGenerator[bytes, None]:
    """Yield binary frames up to the text frame at the end. Raises `Refused` if that never comes."""
    while True:
        try:
            message = await socket.receive(timeout=FRAME_TIMEOUT)
        except TimeoutError as error:
            raise Refused("The session stopped arriving before its end. Nothing was imported.") from error
        if message.type is WSMsgType.TEXT:
            return
        if message.type is not WSMsgType.BINARY:
            raise Refused("The connection was lost before the session's end. Nothing was imported.")
        yield message.data
