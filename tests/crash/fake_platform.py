"""The fake platform of the crash tests. It outlives the daemons, and keeps the messages that a person would see."""

import asyncio
import json
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec

from tests.crash.scripted_agent import END

SETTLE_TIMEOUT = 120.0
"""Seconds. A busy machine takes ten times as long as an idle one."""

STOPPED = ".*"
"""The end of a text that says why the agent has not answered."""

Answer = dict[str, str | float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A message by a person. Its text is a command, or begins with its id."""

    id: str
    chat: str
    text: str

    @property
    def is_command(self) -> bool:
        return self.text.startswith("/")


class _Request(msgspec.Struct):
    """A request by the channel: to fetch events, to send, or to edit the message with the given id."""

    op: str
    id: str = ""
    key: str = ""
    chat: str = ""
    text: str = ""
    reply_to: str | None = None
    kind: str = ""
    is_failure: bool = False
    buttons: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Shown:
    """A message in a chat. `texts` has all its versions, the current one last."""

    key: str
    chat: str
    reply_to: str | None
    kind: str
    is_failure: bool
    texts: list[str]
    buttons: tuple[str, ...] = ()
    """The commands that the buttons send. A question of the agent has buttons to approve and deny."""
    id: str = ""

    @property
    def text(self) -> str:
        return self.texts[-1]

    @property
    def is_question(self) -> bool:
        """Whether the agent asks for approval."""
        return any(command.startswith("/approve") for command in self.buttons)

    @property
    def is_last(self) -> bool:
        """Whether this is the last message of its answer."""
        if self.is_question:
            return False
        return self.is_failure or self.kind == "notice" or self.text.endswith((END, STOPPED))


@dataclass(slots=True)
class FakePlatform:
    """Sends unacknowledged events again. `troubles` has the outcomes of the next sends to each chat.

    "" succeeds, "lost" succeeds without a response, "slow" asks for a retry, and "gone" is refused for good. In a chat
    that is `stuck`, the first outcome repeats.
    """

    drops_repeats: bool = False
    answers_together: bool = False
    """Whether an answer covers all earlier messages of its chat."""
    shown: list[Shown] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    """All messages by people. Each is sent `times` times, as platforms may do."""
    times: int = 1
    presses_buttons: bool = True
    """Whether each question is answered at once, with approve and deny in turns."""
    acknowledged: set[str] = field(default_factory=set)
    troubles: defaultdict[str, deque[str]] = field(default_factory=lambda: defaultdict(deque))
    stuck: set[str] = field(default_factory=set)
    lost: int = 0
    refused: int = 0
    arrivals: int = 0
    """How often a daemon has connected to fetch events."""
    _answered: set[str] = field(default_factory=set)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    @asynccontextmanager
    async def serving(self, path: Path) -> AsyncIterator[None]:
        server = await asyncio.start_unix_server(self._serve, path, backlog=1024)
        try:
            yield
        finally:
            server.close()
            for writer in self._open:
                writer.close()
            await server.wait_closed()
            while self._open:
                await self._changed.wait()

    def write(self, *events: Event) -> None:
        self.events += events
        self._notify()

    async def until_settled(self, within: float = SETTLE_TIMEOUT) -> None:
        """Wait until every event is acknowledged and completely answered."""
        async with asyncio.timeout(within):
            await self.until(lambda: not self.unsettled())

    async def until_arrival(self, number: int, within: float = SETTLE_TIMEOUT) -> None:
        """Wait until daemons have connected `number` times to fetch events."""
        async with asyncio.timeout(within):
            await self.until(lambda: self.arrivals >= number)

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self._changed.wait()

    def unsettled(self) -> set[str]:
        if len(self.acknowledged) < len(self.events):
            return {event.id for event in self.events} - self.acknowledged
        wanted = {event.id for event in self.events if event.chat not in self.stuck}
        return wanted - self._answered

    def _notify(self) -> None:
        """Wake all tasks that wait for a change."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            with suppress(OSError, asyncio.CancelledError):
                await self._handle(reader, writer)
        finally:
            writer.close()
            self._open.discard(writer)
            self._notify()

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        if not line:
            return
        request = msgspec.json.decode(line, type=_Request)
        if request.op == "events":
            await self._send_events(reader, writer)
        elif (answer := self._edit(request) if request.op == "edit" else self._send(request)) is not None:
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()

    async def _send_events(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send the unacknowledged events in order, each after the acknowledgement of the one before."""
        sent = 0
        self.arrivals += 1
        self._notify()
        while True:
            if sent == len(self.events):
                if await self._is_disconnected(reader):
                    return
                continue
            event = self.events[sent]
            sent += 1
            if event.id in self.acknowledged and self.times == 1:
                continue
            for _ in range(self.times):
                writer.write(json.dumps(asdict(event)).encode() + b"\n")
                if not await reader.readline():
                    return
            self.acknowledged.add(event.id)
            self._notify()

    async def _is_disconnected(self, reader: asyncio.StreamReader) -> bool:
        """Wait for more events or the end of the connection. Returns True if the connection has ended."""
        known = len(self.events)
        disconnected = asyncio.ensure_future(reader.readline())
        try:
            while len(self.events) == known and not disconnected.done():
                more = asyncio.ensure_future(self._changed.wait())
                await asyncio.wait({disconnected, more}, return_when=asyncio.FIRST_COMPLETED)
                more.cancel()
            return disconnected.done()
        finally:
            disconnected.cancel()
            await asyncio.wait({disconnected})  # The stream has one reader at a time.

    def _send(self, request: _Request) -> Answer | None:
        trouble = self._trouble(request.chat)
        if trouble == "slow":
            return {"retry_after": 0.01}
        if trouble == "gone":
            self.refused += 1
            return {"refused": "the chat is gone"}
        shown = self._show(request)
        if trouble == "lost":
            self.lost += 1
            return None
        return {"id": shown.id}

    def _show(self, request: _Request) -> Shown:
        if self.drops_repeats:
            for shown in self.shown:
                if shown.key == request.key:
                    return shown
        shown = Shown(
            key=request.key,
            chat=request.chat,
            reply_to=request.reply_to,
            kind=request.kind,
            is_failure=request.is_failure,
            texts=[request.text],
            buttons=request.buttons,
        )
        self.show(shown)
        return shown

    def show(self, shown: Shown) -> None:
        """Add a message to its chat."""
        shown.id = str(len(self.shown))
        if self.presses_buttons and shown.is_question and all(other.key != shown.key for other in self.shown):
            self._press(shown)
        self.shown.append(shown)
        self._mark_answered(shown)
        self._notify()

    def _press(self, question: Shown) -> None:
        """Press a button of an approval request: approve and deny in turns. The second press must change nothing."""
        pressed = sum(event.id.startswith("press") for event in self.events)
        for number in range(pressed, pressed + 2):
            command = question.buttons[pressed // 2 % 2]
            self.events.append(Event(id=f"press{number}", chat=question.chat, text=command))
        self._notify()

    def _edit(self, request: _Request) -> Answer:
        shown = self.shown[int(request.id)]
        shown.texts.append(request.text)
        shown.is_failure = request.is_failure
        self._mark_answered(shown)
        return {}

    def _mark_answered(self, shown: Shown) -> None:
        if not shown.is_last or shown.reply_to is None:
            return
        self._answered.add(shown.reply_to)
        if self.answers_together:
            asked = [event.id for event in self.events if event.chat == shown.chat]
            self._answered.update(asked[: asked.index(shown.reply_to)])
        self._notify()

    def _trouble(self, chat: str) -> str:
        script = self.troubles[chat]
        if not script:
            return ""
        return script[0] if chat in self.stuck else script.popleft()
