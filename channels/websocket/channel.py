"""A channel whose clients come over WebSockets; where they come in is for its heirs to say."""

import asyncio
import math
from datetime import UTC, datetime
from time import monotonic

from aiohttp import WSCloseCode, WSMsgType, web

from channels.websocket.connection import Conversation, Desk, Render, TooInsistent
from channels.websocket.hub import Hub, TooManyConnections
from channels.websocket.mail import Mail
from channels.websocket.send_queue import Outlet
from channels.websocket.wire import Draft, Message
from gateway.contract import Address, Caller, ChannelContext, Deliver, Outbound, OutboundKind, Receipt, TextLimit

__all__ = ["SocketChannel"]

MAX_MESSAGE_SIZE = 1024 * 1024
"""Above it the connection is closed with 1009 before the rest is read."""
HEARTBEAT = 30.0
"""A client that has sent nothing for so long is asked for a sign of life."""
SILENCE = 3
"""After so many heartbeats without one whole message, not even that sign, the client is at a message without end."""
CLOSE_TIMEOUT = 2.0
"""How long a client may take to answer a closing handshake."""
SEND_TIMEOUT = 30.0
SLOW = 0.02
REST = 3
"""After a slow draft none is made for so many times as long, so that long answers leave the processor to others."""


class SocketChannel:
    """Takes WebSockets, hands to the core what they say, and gives to all sockets of a peer what the core answers.

    With `render`, frames carry HTML beside the text.
    """

    text_limit = TextLimit(size=1_000_000)
    draft_pace = 0.03
    repeats_dropped_for = math.inf
    """A client shows each key once."""
    keeps_replies = False
    """Whether a reply waits for whoever is away, as a notice does; clients that read transcripts need not be told."""

    def __init__(self, context: ChannelContext, *, render: Render | None = None, heartbeat: float = HEARTBEAT) -> None:
        self.name = context.name
        self.account = context.account
        self._context = context
        self._render = render
        self._heartbeat = heartbeat
        self._rests_until = 0.0
        self._hub = Hub(keeps_replies=self.keeps_replies)
        self._mail = Mail(self._hub, context.notebook)
        self._desk = Desk(
            channel=context.name, account=context.account, browser=context.browser, hub=self._hub, render=render
        )

    async def run(self, deliver: Deliver) -> None:
        """Let messages in until cancelled. Open sockets stay: what is still to be answered can be delivered."""
        if self._render is not None:
            await asyncio.to_thread(self._render, "*warm*")  # The first answer does not wait for the parser's tables.
        self._desk.deliver = deliver
        self._context.pulse.up()
        try:
            await asyncio.Event().wait()
        finally:
            self._desk.deliver = None

    async def send(self, message: Outbound, *, key: str) -> Receipt:
        """Give `message` to every socket of its peer. With none open, a notice waits; a reply is in the transcript."""
        is_notice = message.kind is OutboundKind.NOTICE
        frame = Message(
            key=key,
            kind=message.kind,
            text=message.text,
            at=datetime.now(UTC),
            session=message.session,
            reply_to=message.reply_to,
            html=None if is_notice else await self._rendered(message.text),
            buttons=message.buttons,
            is_failure=message.is_failure,
            is_question=message.is_question,
            restored=message.restored,
        )
        is_anybody_there = self._hub.broadcast(message.address.peer, frame)
        if not is_anybody_there and (is_notice or self.keeps_replies):
            await self._mail.leave(message.address.peer, frame)
        return Receipt(message_id=key)

    def broadcast(self, address: Address, frame: Message) -> None:
        """Give `frame` to every socket of a peer."""
        self._hub.broadcast(address.peer, frame)

    def can_draft(self, address: Address) -> bool:  # noqa: ARG002 - the contract's signature.
        return True

    async def draft(self, message: Outbound, *, key: str) -> None:
        """Show an answer so far, unless drafts cost too much by now: a long text renders slowly, and is soon old."""
        started = monotonic()
        if started < self._rests_until:
            return
        draft = Draft(
            key=key,
            text=message.text,
            session=message.session,
            reply_to=message.reply_to,
            html=await self._rendered(message.text),
        )
        self._hub.broadcast(message.address.peer, draft)
        took = monotonic() - started
        if took > SLOW:
            self._rests_until = started + took * (1 + REST)

    async def serve(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        """Talk with one client until it leaves. Cancelled, it says goodbye with 1001 and leaves no task behind."""
        socket = web.WebSocketResponse(
            max_msg_size=MAX_MESSAGE_SIZE,
            compress=False,
            heartbeat=self._heartbeat,
            receive_timeout=self._heartbeat * SILENCE,
            timeout=CLOSE_TIMEOUT,
            autoping=False,  # Pings and pongs count against the client's limit like anything else.
        )
        await socket.prepare(request)
        outlet = Outlet(abort=lambda: _abort(request))
        code = WSCloseCode.GOING_AWAY
        try:
            code = await self._talk(socket, caller, outlet)
        finally:
            await _close(socket, request, code)
        return socket

    async def _talk(self, socket: web.WebSocketResponse, caller: Caller, outlet: Outlet) -> WSCloseCode:
        await self._mail.open()
        conversation = Conversation(self._desk, caller, outlet)
        conversation.greet()
        try:
            with self._hub.joined(caller.name, outlet):
                async with asyncio.TaskGroup() as group:
                    writer = group.create_task(_write(socket, outlet), name=f"{self._context.name}:writer")
                    await self._mail.taken(caller.name)
                    code = await _listen(socket, conversation, outlet)
                    writer.cancel()
        except TooManyConnections:
            code = WSCloseCode.TRY_AGAIN_LATER
        return code

    async def _rendered(self, text: str) -> str | None:
        return None if self._render is None else await asyncio.to_thread(self._render, text)


async def _listen(socket: web.WebSocketResponse, conversation: Conversation, outlet: Outlet) -> WSCloseCode:
    """Read until the client leaves, is lost, or has to go; say with which code."""
    try:
        async for message in socket:
            if message.type is WSMsgType.ERROR:
                break
            if message.type is WSMsgType.PING:
                await _pong(socket, conversation, message.data)
            elif message.type is WSMsgType.PONG:
                conversation.may_be_answered()
            else:
                await conversation.hear(message)
            await outlet.calm()
    except (TooInsistent, TimeoutError):
        return WSCloseCode.POLICY_VIOLATION
    return WSCloseCode.OK


async def _pong(socket: web.WebSocketResponse, conversation: Conversation, payload: bytes) -> None:
    if not conversation.may_be_answered():
        return
    try:
        await socket.pong(payload)
    except ConnectionError:
        return  # The client has gone; the next read says so.


async def _write(socket: web.WebSocketResponse, outlet: Outlet) -> None:
    """Send what is queued. A client that takes nothing for long is given up; the reading side sees that too."""
    while True:
        data = await outlet.next()
        try:
            async with asyncio.timeout(SEND_TIMEOUT):
                await socket.send_frame(data, WSMsgType.TEXT)
        except ConnectionError:
            return
        except TimeoutError:
            outlet.give_up()
            return


async def _close(socket: web.WebSocketResponse, request: web.Request, code: WSCloseCode) -> None:
    """Say goodbye if the client still listens, and be rid of the connection in any case."""
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT):
            await socket.close(code=code)
    except TimeoutError:
        _abort(request)


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()
