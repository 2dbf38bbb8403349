"""The client's connection to the gateway: reconnects, and resends the messages that are still unanswered."""

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from uuid import uuid4

from aiohttp import ClientWebSocketResponse, WSCloseCode, WSMsgType

from channels.terminal.channel import PATH
from channels.websocket import wire
from gateway.contract import OutboundKind, Verdict
from gateway.errors import GatehouseError, Refused
from gateway.text import clean, excerpt

RETRY_DELAYS = (0.1, 0.4, 1.0, 2.0, 4.0, 8.0)
"""Before each attempt to reconnect, or to resend a message that the gateway could not take."""
STABLE_AFTER = 10.0
"""A connection that lasted this many seconds starts the delays from the beginning."""
MAX_KNOWN_KEYS = 256
REFUSAL_REASON_TIMEOUT = 5.0
"""How long to wait for the reason of a refusal, which comes as a separate message."""
MAX_EXCERPT = 60
LOST = "(Lost the connection to the gateway. Reconnecting.)"
RECONNECTED = "(Reconnected.)"
REFUSED = "The gateway refused this message."
QUIT = "quit"
"""The one command that the client handles itself."""


class GatewayLost(GatehouseError):
    """The gateway stopped and didn't come back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOutcome:
    """How a message ended: `text` is the answer, or the reason why it is missing."""

    is_answer: bool
    text: str
    can_retry: bool = False


def is_quit(text: str) -> bool:
    return text.strip().lower() in {f"/{QUIT}", f"!{QUIT}"}


def is_command(text: str) -> bool:
    stripped = text.strip()
    return stripped.startswith(("/", "!")) and not stripped.startswith("//")


def is_help(text: str) -> bool:
    return text.strip().lower() in {"/help", "!help"}


class PendingMessage:
    """A message of ours until its outcome is known.

    That takes both the answer and the acknowledgement, or a refusal, or an error, or the notice that the gateway has
    dropped it. Frames may come in any order, and more than once.
    """

    def __init__(self, text: str, files: tuple[wire.UploadedFile, ...] = ()) -> None:
        self.id = uuid4().hex
        self.text = clean(text)
        self.files = files
        self._verdict: Verdict | None = None
        self._answer: wire.MessageFrame | None = None
        self._outcome: asyncio.Future[ChatOutcome] = asyncio.get_running_loop().create_future()

    @property
    def frame(self) -> wire.ClientMessage:
        return wire.ClientMessage(id=self.id, text=self.text, files=self.files)

    def receive(self, frame: wire.ServerFrame) -> None:
        """Note a frame about this message."""
        match frame:
            case wire.AckFrame():
                self._verdict = frame.verdict
            case wire.MessageFrame() if self.id in frame.unanswered:
                self._settle(ChatOutcome(is_answer=False, text=frame.text))
                return
            case wire.MessageFrame():
                self._answer = frame
            case wire.ErrorFrame():
                self._settle(ChatOutcome(is_answer=False, text=frame.text, can_retry=frame.can_retry))
            case _:
                return
        if self._verdict is None:
            return  # The answer came first; the acknowledgement follows.
        if self._answer is not None:
            is_answer = self._verdict is not Verdict.REFUSED and self._is_answered_by(self._answer)
            details = f"\nDetails: {self._answer.details}" if self._answer.details else ""
            self._settle(ChatOutcome(is_answer=is_answer, text=f"{self._answer.text}{details}"))
        elif self._verdict is Verdict.REFUSED:
            refused = ChatOutcome(is_answer=False, text=REFUSED)
            asyncio.get_running_loop().call_later(REFUSAL_REASON_TIMEOUT, self._settle, refused)

    async def outcome(self) -> ChatOutcome:
        # A waiter that times out must not cancel the future: a later frame still settles it.
        return await asyncio.shield(self._outcome)

    def reset(self) -> None:
        """Forget an error before another attempt."""
        self._outcome = asyncio.get_running_loop().create_future()

    def _is_answered_by(self, message: wire.MessageFrame) -> bool:
        """Return whether `message` is an answer. A notice is one only for a command, and for a yes or no."""
        if message.is_failure or message.is_question:
            return False
        is_yes_or_no = self.text.strip().rstrip(".!").lower() in {"yes", "y", "no", "n"}
        return message.kind == OutboundKind.REPLY or is_command(self.text) or is_yes_or_no

    def _settle(self, outcome: ChatOutcome) -> None:
        if not self._outcome.done():
            self._outcome.set_result(outcome)


Connect = Callable[[str], Awaitable[ClientWebSocketResponse]]
"""Opens a WebSocket to the gateway at a path. `Refused` is final; after another `GatehouseError`, retry."""
Receive = Callable[[wire.ServerFrame, PendingMessage | None], None]
"""Is called with each frame, and with the pending message that it is about, if any."""


class GatewayConnection:
    """Opened by `connected`. Each frame goes to its pending message first, then once to `receive`."""

    def __init__(
        self, connect: Connect, receive: Receive, retry_delays: Sequence[float], requests: Sequence[wire.ClientFrame]
    ) -> None:
        """Send `requests` whenever the connection is opened."""
        self._requests = requests
        self._connect = connect
        self._receive = receive
        self._retry_delays = retry_delays
        self._socket: ClientWebSocketResponse | None = None
        self._pending: dict[str, PendingMessage] = {}
        self._known_keys: deque[str] = deque(maxlen=MAX_KNOWN_KEYS)
        self._hello: asyncio.Future[wire.HelloFrame] = asyncio.get_running_loop().create_future()

    async def ask(self, message: PendingMessage) -> ChatOutcome:
        """Send a message and wait for its outcome, without a timeout."""
        self._pending[message.id] = message
        try:
            await self._send(message.frame)
            for delay in self._retry_delays:
                outcome = await message.outcome()
                if not outcome.can_retry:
                    return outcome
                await asyncio.sleep(delay)
                message.reset()
                await self._send(message.frame)
            return await message.outcome()
        finally:
            del self._pending[message.id]

    async def max_text_chars(self) -> float:
        """Return how long the text of a message may be."""
        return (await self._hello).max_text_chars or math.inf

    async def open(self) -> None:
        self._socket = await self._connect(PATH)
        for request in self._requests:
            await self._send(request)

    async def run(self) -> None:
        """Read frames and reconnect, until cancelled.

        Raises `GatewayLost` if the gateway does not come back, and `Refused` if it does not let us in again.
        """
        clock = asyncio.get_running_loop().time
        delays = iter(self._retry_delays)
        while True:
            opened_at = clock()
            await self._read()
            if clock() - opened_at > STABLE_AFTER:
                delays = iter(self._retry_delays)
            await self.close()
            self._receive(wire.ErrorFrame(text=LOST), None)
            for delay in delays:
                await asyncio.sleep(delay)
                try:
                    await self.open()
                except Refused:  # Another attempt would be refused as well.
                    raise
                except GatehouseError:
                    continue
                break
            else:
                gone = "The gateway stopped and didn't come back."
                unanswered = "; ".join(excerpt(message.text, MAX_EXCERPT) for message in self._pending.values())
                raise GatewayLost(f"{gone} Not answered: {unanswered}" if unanswered else gone)
            self._receive(wire.ErrorFrame(text=RECONNECTED), None)
            # The gateway drops duplicates, so it is safe to resend messages that it may have taken already.
            for message in tuple(self._pending.values()):
                await self._send(message.frame)

    async def close(self) -> None:
        if self._socket is not None:
            await self._socket.close()

    async def _read(self) -> None:
        """Dispatch frames until the connection is lost."""
        assert self._socket is not None, "open() comes first"  # noqa: S101 - for mypy and the reader.
        async for data in self._socket:
            frame = wire.parse_server_frame(data.data) if data.type is WSMsgType.TEXT else None
            if frame is None:
                continue
            subject: str | None = None
            dropped: tuple[str, ...] = ()
            match frame:
                case wire.HelloFrame():
                    if not self._hello.done():
                        self._hello.set_result(frame)
                case wire.MessageFrame():
                    # A reconnect may bring a message a second time.
                    if frame.key in self._known_keys:
                        continue
                    self._known_keys.append(frame.key)
                    subject, dropped = frame.reply_to, frame.unanswered
                case wire.DraftFrame():
                    subject = frame.reply_to
                case wire.AckFrame() | wire.ErrorFrame():
                    subject = frame.id
            # The answer to a /stop in another terminal may be about messages of ours that it has dropped.
            messages = [self._pending[each] for each in (subject or "", *dropped) if each in self._pending]
            for message in messages:
                message.receive(frame)
            self._receive(frame, messages[0] if messages else None)
        if self._socket.close_code == WSCloseCode.TRY_AGAIN_LATER:
            raise Refused("You have too many chats open on this gateway. Close one of them first.")

    async def _send(self, frame: wire.ClientFrame) -> None:
        """Send a frame if connected. Pending messages are resent after the next reconnect."""
        if self._socket is not None:
            with suppress(ConnectionError):
                await self._socket.send_str(wire.encode(frame).decode())


@asynccontextmanager
async def connected(
    connect: Connect,
    receive: Receive,
    *,
    retry_delays: Sequence[float] = RETRY_DELAYS,
    requests: Sequence[wire.ClientFrame] = (),
) -> AsyncIterator[GatewayConnection]:
    """Keep a connection open inside the block. Errors of `GatewayConnection.run` come out in an exception group."""
    connection = GatewayConnection(connect, receive, retry_delays, requests)
    await connection.open()
    try:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(connection.run(), name="terminal:connection")
            yield connection
            running.cancel()
    finally:
        await connection.close()
