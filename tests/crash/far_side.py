"""The platform that the daemons under test talk to: it outlives them, and shows what a person would see."""

import asyncio
import json
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec

from tests.crash.agent import END

__all__ = ["PATIENCE", "Event", "FarSide", "Shown"]

PATIENCE = 120.0
"""Seconds; a machine that runs much else takes ten times as long as an idle one."""

STOPPED = ".*"
"""How a sentence ends that tells why there is no answer."""

Answer = dict[str, str | float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that a person has written. What is for the agent begins with its own id."""

    id: str
    chat: str
    text: str

    @property
    def is_command(self) -> bool:
        return self.text.startswith("/")


class _Request(msgspec.Struct):
    """What the channel asks for: events, a send, or the edit of what has the given id."""

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
    """A message as it stands in the chat. `texts` are all that it has said, the last is what it says."""

    key: str
    chat: str
    reply_to: str | None
    kind: str
    is_failure: bool
    texts: list[str]
    buttons: tuple[str, ...] = ()
    """What pressing one would send. Only questions have them."""
    id: str = ""

    @property
    def text(self) -> str:
        return self.texts[-1]

    @property
    def is_last(self) -> bool:
        """Whether nothing more follows to what it answers."""
        if self.buttons:
            return False
        return self.is_failure or self.kind == "notice" or self.text.endswith((END, STOPPED))


@dataclass(slots=True)
class FarSide:
    """Offers again what was not acknowledged. `troubles` has, for each chat, how its next sends go.

    "" is well, "lost" taken but not answered, "slow" to come again, "gone" never. The first stays in a chat that is
    `stuck`.
    """

    drops_repeats: bool = False
    answers_together: bool = False
    """Whether an answer is one to everything that its chat had asked before."""
    shown: list[Shown] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    """What people wrote, with an id each. What is offered is offered `times` over, as platforms do."""
    times: int = 1
    acknowledged: set[str] = field(default_factory=set)
    troubles: defaultdict[str, deque[str]] = field(default_factory=lambda: defaultdict(deque))
    stuck: set[str] = field(default_factory=set)
    lost: int = 0
    refused: int = 0
    arrivals: int = 0
    """How often a daemon has come to fetch events."""
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
        self._stir()

    async def until_settled(self, patience: float = PATIENCE) -> None:
        """Wait until everything was acknowledged and has its whole answer."""
        async with asyncio.timeout(patience):
            await self.until(lambda: not self.unsettled())

    async def until_arrival(self, number: int, patience: float = PATIENCE) -> None:
        """Wait until daemons have come to fetch events `number` times."""
        async with asyncio.timeout(patience):
            await self.until(lambda: self.arrivals >= number)

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self._changed.wait()

    def unsettled(self) -> set[str]:
        if len(self.acknowledged) < len(self.events):
            return {event.id for event in self.events} - self.acknowledged
        wanted = {event.id for event in self.events if event.chat not in self.stuck}
        return wanted - self._answered

    def _stir(self) -> None:
        """Wake everybody who waits for a change."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            with suppress(OSError, asyncio.CancelledError):
                await self._talk(reader, writer)
        finally:
            writer.close()
            self._open.discard(writer)
            self._stir()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        if not line:
            return
        request = msgspec.json.decode(line, type=_Request)
        if request.op == "events":
            await self._offer(reader, writer)
        elif (answer := self._take(request)) is not None:
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()

    async def _offer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Offer what was not acknowledged, from the first on, one after the other."""
        offered = 0
        self.arrivals += 1
        self._stir()
        while True:
            if offered == len(self.events):
                if await self._has_left(reader):
                    return
                continue
            event = self.events[offered]
            offered += 1
            if event.id in self.acknowledged and self.times == 1:
                continue
            for _ in range(self.times):
                writer.write(json.dumps(asdict(event)).encode() + b"\n")
                if not await reader.readline():
                    return
            self.acknowledged.add(event.id)
            self._stir()

    async def _has_left(self, reader: asyncio.StreamReader) -> bool:
        """Wait until there are more events, or the peer is gone."""
        known = len(self.events)
        leaving = asyncio.ensure_future(reader.readline())
        try:
            while len(self.events) == known and not leaving.done():
                more = asyncio.ensure_future(self._changed.wait())
                await asyncio.wait({leaving, more}, return_when=asyncio.FIRST_COMPLETED)
                more.cancel()
            return leaving.done()
        finally:
            leaving.cancel()

    def _take(self, request: _Request) -> Answer | None:
        return self._edit(request) if request.op == "edit" else self._send(request)

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
        """Put a message into its chat."""
        shown.id = str(len(self.shown))
        if shown.buttons and all(other.key != shown.key for other in self.shown):
            self._press(shown)
        self.shown.append(shown)
        self._note(shown)
        self._stir()

    def _press(self, question: Shown) -> None:
        """Answer a question when it is first seen: yes and no in turns, and then once more, which changes nothing."""
        pressed = sum(event.id.startswith("press") for event in self.events)
        for number in range(pressed, pressed + 2):
            command = question.buttons[pressed // 2 % 2]
            self.events.append(Event(id=f"press{number}", chat=question.chat, text=command))
        self._stir()

    def _edit(self, request: _Request) -> Answer:
        shown = self.shown[int(request.id)]
        shown.texts.append(request.text)
        shown.is_failure = request.is_failure
        self._note(shown)
        return {}

    def _note(self, shown: Shown) -> None:
        if not shown.is_last or shown.reply_to is None:
            return
        self._answered.add(shown.reply_to)
        if self.answers_together:
            asked = [event.id for event in self.events if event.chat == shown.chat]
            self._answered.update(asked[: asked.index(shown.reply_to)])
        self._stir()

    def _trouble(self, chat: str) -> str:
        script = self.troubles[chat]
        if not script:
            return ""
        return script[0] if chat in self.stuck else script.popleft()
