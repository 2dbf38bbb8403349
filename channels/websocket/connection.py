"""The connection of one client: reads its frames, limits their rate, answers them, and sends its queue."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

from aiohttp import WSCloseCode, WSMessage, WSMsgType, web

from channels.websocket import wire
from channels.websocket.hub import Hub, TooManyConnections
from channels.websocket.send_queue import SendQueue
from gateway.contract import (
    Address,
    Attachment,
    Browser,
    Deliver,
    Inbound,
    KnowsSetup,
    Line,
    OutboundKind,
    Sender,
    Verdict,
)
from gateway.errors import Refused, Transient

RenderHtml = Callable[[str], str]
"""Turns Markdown into safe HTML. It is slow for long texts, so call it in a thread."""

FRAMES_PER_SECOND = 20
MAX_BURST = 60
MAX_REFUSALS = 200
"""How many frames above the limit get an error before the connection is closed. They refill at the same rate."""
HISTORY_CHARS = 1_000_000
SEND_TIMEOUT = 30.0
CLOSE_TIMEOUT = 2.0
"""How long a client may take to read the rest before its socket is closed."""
MOVED = b"Another node serves this chat now. Connect again."
NOT_NOW = "I can't accept messages right now. Please try again in a moment."


class RateLimitExceeded(Exception):
    """The client keeps sending above its limit; close the connection."""


class TokenBucket:
    """Allows `burst` frames at once, and `rate` per second in the long run."""

    def __init__(self, *, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._filled_at = clock()

    def take(self) -> bool:
        """Take one token; return False if the bucket is empty."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._filled_at) * self._rate)
        self._filled_at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class ClientConnection:
    """Handles the frames of one client in order: each is answered before the next is read.

    When another node of a cluster takes over the chat, `moved` is set, and the socket is closed. The client connects
    again, and then its new connection is forwarded to that node.
    """

    def __init__(
        self,
        socket: web.WebSocketResponse,
        sender: Sender,
        address: Address,
        *,
        hub: Hub,
        browser: Browser,
        deliver: Deliver,
        moved: asyncio.Event,
        render: RenderHtml | None,
        abort: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._socket = socket
        self._sender = sender
        self._address = address
        self._hub = hub
        self._browser = browser
        self._deliver = deliver
        self._moved = moved
        self._render = render
        self._queue = SendQueue(abort)
        self._frames = TokenBucket(rate=FRAMES_PER_SECOND, burst=MAX_BURST, clock=clock)
        # Refusals have their own bucket. A count of refusals in a row would start again with each new token, every
        # 50 ms, and only a client with more than 4,000 frames per second would ever be closed.
        self._refusals = TokenBucket(rate=FRAMES_PER_SECOND, burst=MAX_REFUSALS, clock=clock)

    async def run(self) -> WSCloseCode:
        """Talk with the client until it leaves or breaks a limit; return the code to close the socket with."""
        if self._render is not None:
            await asyncio.to_thread(self._render, "*warm*")  # Loads the parser, once, so that no answer waits for that.
        await self._hub.load()
        await self._hub.refresh(self._address.peer)
        # No `await` from here to `joined`: a question that the agent asks in a gap would be in neither the list of
        # open questions nor the broadcast.
        limit = self._browser.max_message_chars()
        browser = self._browser
        setup = browser if isinstance(browser, KnowsSetup) else None
        self._queue.put(
            wire.HelloFrame(
                name=self._sender.name,
                max_text_chars=limit,
                needs_setup=setup is not None and setup.needs_setup(self._address, self._sender),
                transcribes=setup is not None and setup.transcribes(),
            )
        )
        for question in self._browser.questions(self._address, self._sender):
            self._queue.put(wire.message_frame(question.message, key=question.key, at=datetime.now(UTC)))
        try:
            with self._hub.joined(self._address.peer, self._queue):
                async with asyncio.TaskGroup() as group:
                    writer = group.create_task(self._write(), name=f"{self._address.channel}:writer")
                    closer = group.create_task(self._close_when_moved(), name=f"{self._address.channel}:closer")
                    # The mailbox is in the send queue now. A crash before this line sends it again, with the same keys.
                    await self._hub.forget(self._address.peer)
                    code = WSCloseCode.OK
                    try:
                        async for message in self._socket:
                            if message.type is WSMsgType.ERROR:
                                break
                            await self._handle(message)
                            # A client that asks faster than it reads is not read from until it has caught up.
                            await self._queue.wait_until_short()
                    except (RateLimitExceeded, TimeoutError):  # aiohttp raises the second after `receive_timeout`.
                        code = WSCloseCode.POLICY_VIOLATION
                    writer.cancel()
                    closer.cancel()
        except TooManyConnections:
            code = WSCloseCode.TRY_AGAIN_LATER
        return code

    async def _write(self) -> None:
        """Send the queue. The reading side ends as well once the connection is gone."""
        while True:
            data = await self._queue.get()
            try:
                async with asyncio.timeout(SEND_TIMEOUT):
                    await self._socket.send_frame(data, WSMsgType.TEXT)
            except ConnectionError:
                return
            except TimeoutError:
                self._queue.abort()
                return

    async def _close_when_moved(self) -> None:
        await self._moved.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._queue.wait_until_empty()
        await self._socket.close(code=WSCloseCode.SERVICE_RESTART, message=MOVED)

    async def _handle(self, message: WSMessage) -> None:
        """Answer one frame; raises only `RateLimitExceeded`."""
        # Pings and pongs count against the limit as well.
        is_within_limit = self._frames.take()
        if not is_within_limit and not self._refusals.take():
            raise RateLimitExceeded
        if message.type is WSMsgType.PONG:
            return
        if message.type is WSMsgType.PING:
            if is_within_limit:
                with suppress(ConnectionError):  # The client is gone, and the next read ends the loop.
                    await self._socket.pong(message.data)
            return
        if message.type is not WSMsgType.TEXT:
            self._queue.put(wire.ErrorFrame(text="Only text frames are supported."))
            return
        try:
            frame = wire.parse(message.data)
        except wire.BadFrame as problem:
            self._queue.put(wire.ErrorFrame(text=str(problem), id=problem.id))
            return
        if not is_within_limit:
            frame_id = frame.id if isinstance(frame, wire.ClientMessage) else None
            self._queue.put(
                wire.ErrorFrame(text="You're sending too fast. Wait a moment.", id=frame_id, can_retry=True)
            )
            return
        match frame:
            case wire.ClientMessage():
                await self._accept(frame)
            case wire.SessionsRequest() | wire.HistoryRequest() if self._moved.is_set():
                pass  # This node has forgotten the chat. The client asks again when it has connected again.
            case wire.SessionsRequest():
                sessions = self._browser.sessions(self._address, self._sender)
                self._queue.put(wire.SessionsFrame(sessions=sessions))
            case wire.HistoryRequest():
                await self._send_history(frame.limit)
            case wire.CommandsRequest():
                self._queue.put(wire.CommandsFrame(commands=self._browser.commands(self._address, self._sender)))

    async def _accept(self, message: wire.ClientMessage) -> None:
        """Deliver a message to the core, and acknowledge it only then: until that the client may send it again."""
        inbound = Inbound(
            address=self._address,
            sender=self._sender,
            event_id=message.id,
            text=message.text,
            sent_at=datetime.now(UTC),
            message_id=message.id,
            attachments=tuple(
                Attachment(kind=file.kind, name=file.name, media_type=file.media_type, size=file.size, ref=file.ref)
                for file in message.files
            ),
        )
        try:
            verdict = await self._deliver(inbound)
            if verdict is Verdict.DUPLICATE:
                await self._send_earlier(message.id, inbound.sent_at)
                return
        except Transient:
            self._queue.put(wire.ErrorFrame(text=NOT_NOW, id=message.id, can_retry=True))
            return
        self._queue.put(wire.AckFrame(id=message.id, verdict=verdict, at=inbound.sent_at))
        if verdict is Verdict.ACCEPTED:
            # The same text as the history will show.
            shown = "\n".join(filter(None, [message.text, *(f"[{file.kind}: {file.name}]" for file in message.files)]))
            echo = wire.EchoFrame(id=message.id, text=shown, at=inbound.sent_at)
            self._hub.broadcast(self._address.peer, echo, skip=self._queue)

    async def _send_earlier(self, message_id: str, at: datetime) -> None:
        """Tell a client that resends a message what became of it. It may have lost its connection before the answer."""
        earlier = await self._browser.earlier(self._address, self._sender, message_id)
        self._queue.put(
            wire.AckFrame(
                id=message_id,
                verdict=Verdict.DUPLICATE,
                at=at,
                turn=earlier.turn,
                session=earlier.session,
                is_finished=earlier.is_finished,
            )
        )
        # The answers to commands are remembered for a while, and those of the agent are in the transcript.
        recent = self._hub.recent_answers(self._address.peer, message_id)
        for known in recent:
            self._queue.put(known)
        for answer in () if recent else earlier.answers:
            html = None
            if self._render is not None and answer.message.kind is OutboundKind.REPLY and answer.message.file is None:
                html = await asyncio.to_thread(self._render, answer.message.text)
            self._queue.put(wire.message_frame(answer.message, key=answer.key, at=answer.at, html=html))

    async def _send_history(self, limit: int) -> None:
        try:
            lines = await self._browser.history(self._address, self._sender, limit=limit)
        except Refused as refusal:  # The connection must not end: the page would connect again and ask again.
            self._queue.put(wire.ErrorFrame(text=str(refusal)))
            lines = []
        sessions = self._browser.sessions(self._address, self._sender)
        active = next((session.number for session in sessions if session.is_active), None)
        # The newest lines that fit into `HISTORY_CHARS`, and always the last one.
        newest: list[Line] = []
        free = HISTORY_CHARS
        for line in reversed(lines):
            free -= len(line.text)
            if newest and free < 0:
                break
            newest.append(line)

        def render() -> list[wire.HistoryLine]:
            return [
                wire.HistoryLine(
                    role=line.role,
                    text=line.text,
                    at=line.at,
                    id=line.event_id,
                    turn=line.turn,
                    # The user's own text is shown as it was typed.
                    html=self._render(line.text) if self._render and line.role != "user" and not line.file else None,
                    file=wire.link_to(line.file) if line.file else None,
                    is_failure=line.is_failure,
                    details=line.details,
                )
                for line in reversed(newest)
            ]

        self._queue.put(wire.HistoryFrame(session=active, lines=await asyncio.to_thread(render)))
