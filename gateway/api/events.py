"""Live events of a session, as server-sent events: new messages, streamed text, approvals and changes of the status.

Each session with readers has one `SessionEvents`, which encodes every event once and writes it to the sockets of all of
them. That wakes no task, since most of the cost of a task would come again for each reader. A reader that falls behind
gets nothing more until it has read what it has missed from the transcript. So a slow reader delays no one and costs
little memory.
"""

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from http import HTTPStatus
from typing import NamedTuple, Self

import msgspec
import structlog
from aiohttp import HttpVersion11, web

from gateway.api.message_mapping import LOOK_BACK, MessageMapper
from gateway.api.types import EventName
from gateway.errors import Refused
from gateway.http.responses import HttpError
from gateway.sessions import Entry, SessionManager, SessionMeta, entries

log = structlog.get_logger()

KEEPALIVE = 15.0
"""Seconds between two comments in a stream, so that proxies keep it open and lost clients are noticed."""
WRITE_TIMEOUT = 60.0
"""Seconds that a client may take to read what was sent to it. Then its connection is cut."""
MAX_UNSENT_BYTES = 64 * 1024
"""Bytes that the socket of a reader may not have taken yet, before the reader falls behind."""
TEXT_PACE = 0.03
"""Seconds between two events with streamed text, for few readers. The first one comes at once."""
TEXT_PACE_PER_READER = 0.0002
"""Seconds that each reader adds to that, so that a crowd of readers costs a tenth of the processor at most."""

_encode = msgspec.json.Encoder().encode


def sse(event: EventName, data: object, *, event_id: str | None = None) -> bytes:
    """Return one server-sent event. JSON has no line breaks, so one `data` line is enough."""
    head = f"id: {event_id}\n" if event_id is not None else ""
    return b"%sevent: %s\ndata: %s\n\n" % (head.encode(), event.encode(), _encode(data))


def event_id(session_id: str, seq: int) -> str:
    return f"{session_id}:{seq}"


def position_of(session_id: str, last_event_id: str) -> int:
    """Return the seq in a `Last-Event-ID`. Raises `HttpError` if that is of another session, or is none at all."""
    session, _, seq = last_event_id.partition(":")
    if not seq.isascii() or not seq.isdecimal() or len(seq) > 15:  # noqa: PLR2004 - more than any session has.
        raise HttpError(HTTPStatus.UNPROCESSABLE_ENTITY, "This Last-Event-ID is not one of ours. Leave it out.")
    if session != session_id:
        raise HttpError(HTTPStatus.UNPROCESSABLE_ENTITY, "This Last-Event-ID belongs to another session. Leave it out.")
    return int(seq)


class EventBlock(NamedTuple):
    """Events that are written together. `seq` is that of the last entry that they are about, or 0."""

    data: bytes
    chunk: bytes
    """The same for a chunked response."""
    seq: int

    @classmethod
    def of(cls, data: bytes, seq: int = 0) -> Self:
        return cls(data, b"%x\r\n%b\r\n" % (len(data), data), seq)


_KEEPALIVE_COMMENT = EventBlock.of(b": keepalive\n\n")


class ReaderStream:
    """The open stream of one client. Events are written while it `is_live`; the rest is up to `EventStreams.serve`."""

    def __init__(self, transport: asyncio.Transport, position: int, *, is_chunked: bool) -> None:
        self._transport = transport
        self._is_chunked = is_chunked
        self._needs_attention = asyncio.Event()
        self.position = position
        """The seq of the last entry that the client has got."""
        self.is_live = False
        """Whether the client has got everything so far, so that it gets new events as they come."""
        self.is_closed = False

    def write(self, block: EventBlock) -> None:
        """Write events to the socket. If the client does not read fast enough, it falls behind instead."""
        if not self.is_live or self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self.fall_behind()
            return
        self._transport.write(block.chunk if self._is_chunked else block.data)
        self.position = max(self.position, block.seq)

    def go_live(self, position: int) -> None:
        """Give the client new events as they come, after it has got those up to `position`."""
        self.position = position
        self.is_live = True

    def fall_behind(self) -> None:
        """Let the client get what follows from the transcript."""
        self.is_live = False
        self._needs_attention.set()

    def close(self) -> None:
        self.is_closed = True
        self._needs_attention.set()

    async def wait_until_behind(self) -> None:
        """Wait until the reader falls behind or is closed, or for `KEEPALIVE` seconds. Then write a comment."""
        self._needs_attention.clear()
        try:
            async with asyncio.timeout(KEEPALIVE):
                await self._needs_attention.wait()
        except TimeoutError:
            self.write(_KEEPALIVE_COMMENT)


class SessionEvents:
    """Follows one session and passes its events on to all of its readers."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self.following = ExitStack()
        """Ends the following of the session when it is closed."""
        self.readers: set[ReaderStream] = set()
        self.mapper: MessageMapper | None = None
        """Has seen the transcript up to now. None until the first reader has read that."""
        self._deltas: list[str] = []
        self._turn = ""
        self._timer: asyncio.TimerHandle | None = None
        self._text_sent_at = -math.inf

    def on_entries(self, added: Sequence[Entry]) -> None:
        events = self._take_text()  # The text of an entry must not overtake its last pieces.
        if self.mapper is None:  # All readers are still behind, and find these entries in the transcript.
            return
        for entry in added:
            if (event := entry_event(self.mapper, self._session_id, entry)) is not None:
                events.append(event)
        self._write(events, added[-1].seq if added else 0)

    def on_text(self, turn: str, delta: str) -> None:
        if turn != self._turn:
            self.flush_text()
            self._turn = turn
        self._deltas.append(delta)
        if self._timer is None:
            pace = max(TEXT_PACE, len(self.readers) * TEXT_PACE_PER_READER)
            # In the past for the first text after a while, which is then sent as soon as this task pauses.
            self._timer = asyncio.get_running_loop().call_at(self._text_sent_at + pace, self.flush_text)

    def on_removed(self) -> None:
        for reader in self.readers:
            reader.fall_behind()

    def flush_text(self) -> None:
        """Send the pieces of text that have come since the last time."""
        self._write(self._take_text())

    def _take_text(self) -> list[bytes]:
        """Return an event with the pieces of text that have come since the last time, if there are any."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._deltas:
            return []
        event = sse("delta", {"turn": self._turn, "text": "".join(self._deltas)})
        self._deltas.clear()
        self._text_sent_at = asyncio.get_running_loop().time()
        return [event]

    def _write(self, events: Sequence[bytes], seq: int = 0) -> None:
        if events:
            block = EventBlock.of(b"".join(events), seq)
            for reader in self.readers:
                reader.write(block)


def entry_event(mapper: MessageMapper, session_id: str, entry: Entry) -> bytes | None:
    """Return the event for an entry, or None if programs need not know about it."""
    name = event_id(session_id, entry.seq)
    message = mapper.feed(entry)
    match entry:
        case entries.Status():
            info = {"status": entry.value, "by": entry.by, "reason": entry.why}
            return sse("status", info, event_id=name)
        case entries.Title():
            return sse("title", {"title": entry.value}, event_id=name)
        case entries.TurnEnd():
            end = {"turn": entry.turn, "outcome": entry.outcome}
            changed = b"" if message is None else sse("message", message)
            return changed + sse("turn", end, event_id=name)
        case _:
            return None if message is None else sse("message", message, event_id=name)


class EventStreams:
    """Serves the event streams of all sessions. `unwritten_text` returns the text of a running turn so far."""

    def __init__(self, sessions: SessionManager, unwritten_text: Callable[[str], tuple[str, str] | None]) -> None:
        self._sessions = sessions
        self._unwritten_text = unwritten_text
        self._open: dict[str, SessionEvents] = {}

    @property
    def reader_count(self) -> int:
        return sum(len(each.readers) for each in self._open.values())

    def close(self) -> None:
        """End all streams, because the gateway shuts down. Clients reconnect and go on where they were."""
        for events in self._open.values():
            for reader in events.readers:
                reader.close()

    async def serve(
        self, request: web.Request, session: SessionMeta, position: int, may_go_on: Callable[[], bool]
    ) -> web.StreamResponse:
        """Send the events after the entry `position`, until the client leaves or `may_go_on` returns False."""
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}
        )
        if request.version >= HttpVersion11:
            response.enable_chunked_encoding()
        await response.prepare(request)
        if (transport := request.transport) is None:
            raise ConnectionResetError("The client has gone.")
        reader = ReaderStream(transport, position, is_chunked=response.chunked)
        # When another node of a cluster takes over, the client connects again, and is forwarded to that node.
        with self._sessions.watched(session.scope, reader.close), self._joined(session, reader) as events:
            try:
                await _send(request, response, b"retry: 1000\n\n")  # The header is sent with it.
                while not reader.is_closed and may_go_on():
                    if reader.is_live:
                        await reader.wait_until_behind()
                    else:
                        await self._catch_up(request, response, session, events, reader)
            except (ConnectionError, TimeoutError):  # The client has gone, or does not read.
                transport.abort()
        return response

    async def _catch_up(
        self,
        request: web.Request,
        response: web.StreamResponse,
        session: SessionMeta,
        events: SessionEvents,
        reader: ReaderStream,
    ) -> None:
        """Send the events after the position of a reader from the transcript, and then the text that is being written.

        The reader is live then, or closed if the session is gone.
        """
        mapper = MessageMapper(session.id)
        found = self._sessions.find(session.key)
        if found is not None:
            reader.position = min(reader.position, found.seq)
        reached = max(0, reader.position - LOOK_BACK)
        try:
            while found is not None and found.id == session.id:
                async with aclosing(self._sessions.entries_since(session.key, reached)) as source:
                    async for entry in source:
                        data, reached = entry_event(mapper, session.id, entry), entry.seq
                        if data is not None and entry.seq > reader.position:
                            await _send(request, response, data)
                # Nothing is awaited between here and the end, so no event is lost or comes twice. If something was
                # appended in the meantime, go on reading.
                before, found = found, self._sessions.find(session.key)
                if found is not None and found.seq == before.seq:
                    events.mapper = events.mapper or mapper
                    events.flush_text()  # The text below has these pieces too.
                    reader.go_live(found.seq)
                    if (unwritten := self._unwritten_text(session.key)) is not None and unwritten[1]:
                        reader.write(EventBlock.of(sse("text", {"turn": unwritten[0], "text": unwritten[1]})))
                    return
        except Refused:  # It cannot be read any more.
            log.warning("event_stream_ended", session=session.key)
        if not reader.is_closed:
            await _send(request, response, sse("gone", {}))
            reader.close()

    @contextmanager
    def _joined(self, session: SessionMeta, reader: ReaderStream) -> Iterator[SessionEvents]:
        """Add a reader to the events of a session, which are followed while they have readers."""
        if session.key not in self._open:
            events = self._open[session.key] = SessionEvents(session.id)
            events.following.enter_context(self._sessions.feed.followed(session.key, events))
        events = self._open[session.key]
        events.readers.add(reader)
        try:
            yield events
        finally:
            events.readers.discard(reader)
            if not events.readers:
                del self._open[session.key]
                events.flush_text()
                events.following.close()


async def _send(request: web.Request, response: web.StreamResponse, data: bytes) -> None:
    """Write to the client, and wait while it does not read."""
    async with asyncio.timeout(WRITE_TIMEOUT):
        await response.write(data)
        await request.writer.drain()
