"""The client's connection: comes back when it was lost, and sends again what has not been settled."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress

from aiohttp import ClientWebSocketResponse, WSCloseCode, WSMsgType

from channels.terminal.errors import Lost
from channels.terminal.exchange import Exchange, Outcome, subject
from channels.terminal.wire import PATH, pack, unpack
from channels.websocket.wire import AskCommands, Failure, Frame, Message, ServerFrame
from gateway.errors import GatehouseError, Refused
from gateway.text import excerpt

__all__ = ["Connect", "Hear", "Link", "linked"]

Connect = Callable[[str], Awaitable[ClientWebSocketResponse]]
"""Opens a WebSocket to the gateway at a path. `Refused` is final; any other `GatehouseError` may pass."""
Hear = Callable[[ServerFrame, Exchange | None], None]
"""Is told of each frame, and which exchange of ours it concerns."""

PAUSES = (0.1, 0.4, 1.0, 2.0, 4.0, 8.0)
"""Before each try: to connect again, or to send again what the gateway could not take just now."""
STEADY_AFTER = 10.0
"""A connection that held this many seconds starts the pauses anew."""
REMEMBERED = 256
AWAY = "(The gateway has gone away; waiting for it to come back.)"
BACK = "(The gateway is back.)"
EXCERPT = 60


class Link:
    """Made by `linked`. Every frame goes to `hear` once, after the exchange that it concerns has seen it."""

    def __init__(self, connect: Connect, hear: Hear, pauses: Sequence[float]) -> None:
        self._connect = connect
        self._hear = hear
        self._pauses = pauses
        self._socket: ClientWebSocketResponse | None = None
        self._exchanges: dict[str, Exchange] = {}
        self._heard_keys: deque[str] = deque(maxlen=REMEMBERED)

    async def ask(self, exchange: Exchange) -> Outcome:
        """Send a message and wait for what becomes of it; for how long is up to the caller."""
        self._exchanges[exchange.id] = exchange
        try:
            await self._send(exchange.say)
            for pause in self._pauses:
                outcome = await exchange.outcome()
                if not outcome.can_retry:
                    return outcome
                await asyncio.sleep(pause)
                exchange.forget_failure()
                await self._send(exchange.say)
            return await exchange.outcome()
        finally:
            del self._exchanges[exchange.id]

    async def open(self) -> None:
        self._socket = await self._connect(PATH)
        await self._send(AskCommands())

    async def keep(self) -> None:
        """Read until cancelled; raise `Lost` when the gateway stays away, and `Refused` when it wants no more of us."""
        clock = asyncio.get_running_loop().time
        pauses = iter(self._pauses)
        while True:
            since = clock()
            await self._read()
            if clock() - since > STEADY_AFTER:
                pauses = iter(self._pauses)
            await self._come_back(pauses)

    async def close(self) -> None:
        if self._socket is not None:
            await self._socket.close()

    async def _read(self) -> None:
        assert self._socket is not None, "opened before it is read"  # noqa: S101 - a promise to mypy and the reader
        async for message in self._socket:
            if message.type is WSMsgType.TEXT and (frame := unpack(message.data)) is not None:
                self._take(frame)
        if self._socket.close_code == WSCloseCode.TRY_AGAIN_LATER:
            raise Refused("Too many chats of yours are open on this gateway; close one of them first.")

    def _take(self, frame: ServerFrame) -> None:
        if isinstance(frame, Message):
            if frame.key in self._heard_keys:
                return
            self._heard_keys.append(frame.key)
        exchange = self._exchanges.get(subject(frame) or "")
        if exchange is not None:
            exchange.hear(frame)
        self._hear(frame, exchange)

    async def _come_back(self, pauses: Iterator[float]) -> None:
        """Connect again. The gateway drops what it has taken already, so whatever is not settled is sent again."""
        await self.close()
        self._hear(Failure(text=AWAY), None)
        for pause in pauses:
            await asyncio.sleep(pause)
            try:
                await self.open()
            except Refused:
                raise
            except GatehouseError:
                continue
            self._hear(Failure(text=BACK), None)
            for exchange in tuple(self._exchanges.values()):
                await self._send(exchange.say)
            return
        raise Lost(self._farewell())

    def _farewell(self) -> str:
        gone = "The gateway went away and did not come back."
        unanswered = "; ".join(excerpt(exchange.text, EXCERPT) for exchange in self._exchanges.values())
        return f"{gone} Not answered: {unanswered}" if unanswered else gone

    async def _send(self, frame: Frame) -> None:
        """Send if there is a connection; what concerns an exchange is sent again when there is one."""
        if self._socket is not None:
            with suppress(ConnectionError):
                await self._socket.send_str(pack(frame))


@asynccontextmanager
async def linked(connect: Connect, hear: Hear, *, pauses: Sequence[float] = PAUSES) -> AsyncIterator[Link]:
    """Keep a connection while the context is open. What `Link.keep` raises comes out of here, in a group."""
    link = Link(connect, hear, pauses)
    await link.open()
    try:
        async with asyncio.TaskGroup() as group:
            keeping = group.create_task(link.keep(), name="terminal:link")
            yield link
            keeping.cancel()
    finally:
        await link.close()
