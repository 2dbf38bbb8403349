"""A fake Discord gateway: WebSocket sessions that can be resumed, and connections that misbehave on request."""

import asyncio
import json
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import WSMsgType, web

Json = dict[str, Any]  # Discord payloads have no fixed shape.

DISPATCH, HEARTBEAT, IDENTIFY, RESUME, RECONNECT, INVALID, HELLO, ACK = 0, 1, 2, 6, 7, 9, 10, 11


@dataclass(slots=True)
class Session:
    id: str
    events: list[Json] = field(default_factory=list)
    socket: web.WebSocketResponse | None = None

    async def dispatch(self, event: str, data: Json) -> None:
        frame = {"op": DISPATCH, "t": event, "s": len(self.events) + 1, "d": data}
        self.events.append(frame)
        if self.socket is not None and not self.socket.closed:
            with suppress(ConnectionError):  # The bot was killed. It receives the event when it resumes.
                await self.socket.send_str(json.dumps(frame))


@dataclass(slots=True)
class Gateway:
    """`refusals` are close codes for the next logins, in order. `resumes` returns the outcome of a resume."""

    url: str = ""
    token: str = ""
    says_hello: bool = True
    acknowledges: bool = True
    interval: float = 41.25
    refusals: deque[int] = field(default_factory=deque)
    resumes: Callable[[], str] = lambda: "resumed"
    identifies: list[Json] = field(default_factory=list)
    resumed: list[Json] = field(default_factory=list)
    connections: int = 0
    open: int = 0
    most_open: int = 0
    """The number of connections that were open at the same time."""
    heartbeats: int = 0
    sessions: dict[str, Session] = field(default_factory=dict)
    ready: Json = field(default_factory=dict)
    guilds: list[Json] = field(default_factory=list)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    @property
    def session(self) -> Session | None:
        """The newest session. A bot has one connection."""
        return next(reversed(self.sessions.values()), None)

    async def dispatch(self, event: str, data: Json) -> None:
        """Send an event to the bot. A bot that is disconnected receives it when it resumes."""
        if self.session is not None:
            await self.session.dispatch(event, data)

    async def order(self, op: int, data: object = None) -> None:
        """Send a frame that is not an event, such as a reconnect request."""
        assert self.session is not None
        assert self.session.socket is not None
        await self.session.socket.send_str(json.dumps({"op": op, "d": data}))

    async def read(self) -> None:
        """Return once the bot has read everything sent so far: it answers a heartbeat request in order."""
        before = self.heartbeats
        await self.order(HEARTBEAT)
        async with self.changed:
            await self.changed.wait_for(lambda: self.heartbeats > before)

    async def cut(self, *, code: int | None = None) -> None:
        """Abort the connection, or close it properly if there is a `code`."""
        session = self.session
        if session is None or session.socket is None:
            return
        socket, session.socket = session.socket, None
        if code is None:
            transport = socket._req.transport if socket._req else None  # noqa: SLF001 - aiohttp has no other way.
            if transport is not None:
                transport.abort()
        else:
            await socket.close(code=code)

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await self._note(connections=self.connections + 1)
        if self.says_hello:
            await socket.send_str(json.dumps({"op": HELLO, "d": {"heartbeat_interval": self.interval * 1000}}))
        await self._note(open=self.open + 1, most_open=max(self.most_open, self.open + 1))
        try:
            async for message in socket:
                if message.type is WSMsgType.TEXT:
                    await self._answer(socket, json.loads(message.data))
        finally:
            await self._note(open=self.open - 1)
        return socket

    async def _answer(self, socket: web.WebSocketResponse, frame: Json) -> None:
        match frame["op"]:
            case 1:
                await self._note(heartbeats=self.heartbeats + 1)
                if self.acknowledges:
                    await socket.send_str(json.dumps({"op": ACK}))
            case 2:
                await self._identify(socket, frame["d"])
            case 6:
                await self._resume(socket, frame["d"])

    async def _identify(self, socket: web.WebSocketResponse, data: Json) -> None:
        await self._note(identifies=[*self.identifies, data])
        if self.refusals:
            await socket.close(code=self.refusals.popleft())
        elif data["token"] != self.token:
            await socket.close(code=4004)
        else:
            session = Session(id=f"s{len(self.identifies)}", socket=socket)
            self.sessions[session.id] = session
            ready = {"v": 10, "session_id": session.id, "resume_gateway_url": self.url, **self.ready}
            await session.dispatch("READY", ready)
            for guild in self.guilds:
                await session.dispatch("GUILD_CREATE", guild)
            await self._note()

    async def _resume(self, socket: web.WebSocketResponse, data: Json) -> None:
        await self._note(resumed=[*self.resumed, data])
        session, answer = self.sessions.get(data["session_id"]), self.resumes()
        if answer != "resumed" or session is None:
            await socket.send_str(json.dumps({"op": INVALID, "d": answer == "again"}))
            return
        session.socket = socket
        for frame in session.events[data["seq"] :]:
            await socket.send_str(json.dumps(frame))
        await session.dispatch("RESUMED", {})
        await self._note()

    async def _note(self, **values: object) -> None:
        async with self.changed:
            for name, value in values.items():
                setattr(self, name, value)
            self.changed.notify_all()
