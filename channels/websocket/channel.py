"""`WebSocketChannel`: a channel whose clients connect by WebSocket. Its subclasses add the route."""

import asyncio
import math
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from time import monotonic

from aiohttp import WSCloseCode, web

from channels.websocket.connection import ClientConnection, RenderHtml
from channels.websocket.hub import Hub
from channels.websocket.wire import DraftFrame, MessageFrame, message_frame
from gateway.contract import (
    Address,
    Caller,
    ChannelContext,
    Deliver,
    Inbound,
    KnowsOwner,
    Outbound,
    OutboundKind,
    PeerKind,
    Receipt,
    Sender,
    TextLimit,
    Verdict,
)
from gateway.errors import HeldElsewhere, Transient

MAX_MESSAGE_SIZE = 1024 * 1024
"""A larger message closes the connection with 1009 before the rest of it is read."""
HEARTBEAT = 30.0
"""A client that has sent nothing for this long is pinged."""
MAX_SILENT_HEARTBEATS = 3
"""A client without one complete message for this many heartbeats, not even a pong, is disconnected."""
CLOSE_TIMEOUT = 2.0
"""How long a client may take to answer the closing handshake."""
SLOW_DRAFT = 0.02
DRAFT_PAUSE = 3
"""After a slow draft, drafts are skipped for this many times as long, so that long answers do not hog the processor."""


class WebSocketChannel:
    """Delivers the messages of WebSocket clients to the core, and sends its answers to all clients of a peer.

    With `render`, frames have HTML in addition to the text.
    """

    text_limit = TextLimit(size=1_000_000)
    draft_pace = 0.03
    repeats_dropped_for = math.inf
    """A client shows each key once."""
    keeps_replies = False
    """Whether replies, like notices, wait for an absent peer. Clients that read the transcript do not need that."""

    def __init__(
        self,
        context: ChannelContext,
        *,
        render: RenderHtml | None = None,
        heartbeat: float = HEARTBEAT,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.name = context.name
        self.account = context.account
        self._context = context
        self._render = render
        self._heartbeat = heartbeat
        self._clock = clock
        self._deliver: Deliver | None = None
        self._no_drafts_until = 0.0
        browser = context.browser
        is_shared = isinstance(browser, KnowsOwner) and browser.is_shared
        self._hub = Hub(context.notebook, keeps_replies=self.keeps_replies, is_shared=is_shared)

    async def run(self, deliver: Deliver) -> None:
        """Accept messages until cancelled. Open sockets stay, so that pending answers can still be delivered."""
        self._deliver = deliver
        self._context.pulse.up()
        try:
            await asyncio.Event().wait()
        finally:
            self._deliver = None

    async def send(self, message: Outbound, *, key: str) -> Receipt:
        """Send `message` to every connection of its peer. Without a connection, it may wait in a mailbox."""
        html = None
        if self._render is not None and message.kind is not OutboundKind.NOTICE:
            html = await asyncio.to_thread(self._render, message.text)
        return await self._show(message, message_frame(message, key=key, at=datetime.now(UTC), html=html))

    async def _show(self, message: Outbound, frame: MessageFrame) -> Receipt:
        # A queued frame counts as sent. If the last connection breaks before that, the hub moves it to the mailbox.
        is_connected = self._hub.broadcast(message.address.peer, frame)
        if not is_connected and (self._hub.keeps(frame) or self._is_elsewhere(message.address)):
            await self._hub.keep(message.address.peer, frame)
        return Receipt(message_id=frame.key)

    def _is_elsewhere(self, address: Address) -> bool:
        """Return whether another node has the connections of a chat. The message comes from another conversation."""
        browser = self._context.browser
        if not isinstance(browser, KnowsOwner):
            return False
        try:
            browser.require_here(address, Sender(id=address.peer))
        except HeldElsewhere:
            return True
        return False

    def can_draft(self, address: Address) -> bool:  # noqa: ARG002 - the contract's signature.
        return True

    async def draft(self, message: Outbound, *, key: str) -> None:
        """Show the answer so far. Skipped for a while after a draft that was slow to render."""
        started = self._clock()
        if started < self._no_drafts_until:
            return
        html = None if self._render is None else await asyncio.to_thread(self._render, message.text)
        draft = DraftFrame(key=key, text=message.text, session=message.session, reply_to=message.reply_to, html=html)
        self._hub.broadcast(message.address.peer, draft)
        took = self._clock() - started
        if took > SLOW_DRAFT:
            self._no_drafts_until = started + took * (1 + DRAFT_PAUSE)

    async def serve(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        """Handle one client until it leaves, or until another node takes over its chat. If cancelled, close with 1001.

        Raises `HeldElsewhere` if another node owns the chat of the client.
        """
        address = Address(channel=self.name, account=self.account, kind=PeerKind.DIRECT, peer=caller.name)
        sender = Sender(id=caller.name, name=caller.name, is_owner=caller.is_owner)
        browser, moved = self._context.browser, asyncio.Event()
        with browser.watched(address, sender, moved.set) if isinstance(browser, KnowsOwner) else nullcontext():
            return await self._serve(request, address, sender, moved)

    async def _serve(
        self, request: web.Request, address: Address, sender: Sender, moved: asyncio.Event
    ) -> web.StreamResponse:
        socket = web.WebSocketResponse(
            max_msg_size=MAX_MESSAGE_SIZE,
            compress=False,
            heartbeat=self._heartbeat,
            receive_timeout=self._heartbeat * MAX_SILENT_HEARTBEATS,
            timeout=CLOSE_TIMEOUT,
            autoping=False,  # Pings and pongs count against the client's rate limit.
        )
        await socket.prepare(request)

        def abort() -> None:
            if request.transport is not None:
                request.transport.abort()

        connection = ClientConnection(
            socket,
            sender,
            address,
            hub=self._hub,
            browser=self._context.browser,
            deliver=self._deliver_if_running,
            moved=moved,
            render=self._render,
            abort=abort,
            clock=self._clock,
        )
        code = WSCloseCode.GOING_AWAY  # Stays if this task is cancelled: the daemon is stopping.
        try:
            code = await connection.run()
        finally:
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT):
                    await socket.close(code=code)
            except TimeoutError:
                abort()
        return socket

    async def _deliver_if_running(self, inbound: Inbound) -> Verdict:
        if self._deliver is None:
            raise Transient("The channel is not running.")
        return await self._deliver(inbound)
