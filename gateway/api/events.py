"""Live events of a session, as server-sent events: new messages, streamed text, approvals and changes of the status.

Each session with readers has one `SessionEvents`, which encodes every event once. A reader that falls behind loses its
queue and reads what it has missed from the transcript. So a slow reader delays no one and costs little memory.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager, suppress
from http import HTTPStatus

import msgspec
import structlog
from aiohttp import web

from gateway.api.message_mapping import LOOK_BACK, MessageMapper
from gateway.api.types import EventName
from gateway.errors import Refused
from gateway.http.responses import HttpError
from gateway.sessions import Entry, SessionManager, SessionMeta, entries

log = structlog.get_logger()

KEEPALIVE = 15.0
"""Seconds after which a silent stream sends a comment, so that proxies keep it open and lost clients are noticed."""
WRITE_TIMEOUT = 60.0
"""Seconds that a client may take to read what was sent to it. Then its connection is cut."""
MAX_QUEUED_BYTES = 256 * 1024
MAX_QUEUED_EVENTS = 1_000
TEXT_PACE = 0.03
"""Seconds between two events with streamed text, for few readers."""
TEXT_PACE_PER_READER = 0.0004
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


class EventQueue:
    """The queue of one reader. When it is full, it is emptied, and the reader falls behind."""

    def __init__(self) -> None:
        self._queue: list[bytes] = []
        self._bytes = 0
        self._last_seq = 0
        self._wake = asyncio.Event()
        self.is_behind = True
        """The reader has to read the transcript before it takes more events."""
        self.is_closed = False

    def put(self, data: bytes, seq: int = 0) -> None:
        """Queue an event, with the seq of its entry if it has one."""
        if self.is_behind:
            return
        self._queue.append(data)
        self._last_seq = max(self._last_seq, seq)
        self._bytes += len(data)
        if self._bytes > MAX_QUEUED_BYTES or len(self._queue) > MAX_QUEUED_EVENTS:
            self.take()
            self.is_behind = True
        self._wake.set()

    def fall_behind(self) -> None:
        """Let the reader read the transcript after what is queued."""
        self.is_behind = True
        self._wake.set()

    def close(self) -> None:
        self.is_closed = True
        self._wake.set()

    def is_waiting(self) -> bool:
        """Return whether there is nothing to do but to wait for the next event."""
        return not self.is_behind and not self.is_closed

    async def wait(self, timeout: float) -> tuple[bytes, int]:  # noqa: ASYNC109 - the caller sends a keepalive after it.
        """Return all queued events, and the last seq among them or 0.

        There are none after `timeout` seconds, or when the reader is behind or closed.
        """
        if not self._queue and self.is_waiting():
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._wake.wait()
        return self.take()

    def take(self) -> tuple[bytes, int]:
        taken = b"".join(self._queue), self._last_seq
        self._queue.clear()
        self._bytes = self._last_seq = 0
        return taken


class SessionEvents:
    """Follows one session and passes its events on to all of its readers."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self.following = ExitStack()
        """Ends the following of the session when it is closed."""
        self.readers: set[EventQueue] = set()
        self.mapper: MessageMapper | None = None
        """Has seen the transcript up to now. None until the first reader has read that."""
        self._deltas: list[str] = []
        self._turn = ""
        self._timer: asyncio.TimerHandle | None = None

    def on_entries(self, added: Sequence[Entry]) -> None:
        self.flush_text()  # The text of an entry must not overtake its last pieces.
        if self.mapper is None:  # All readers are still behind, and find these entries in the transcript.
            return
        for entry in added:
            if (data := entry_event(self.mapper, self._session_id, entry)) is not None:
                for reader in self.readers:
                    reader.put(data, entry.seq)

    def on_text(self, turn: str, delta: str) -> None:
        if turn != self._turn:
            self.flush_text()
            self._turn = turn
        self._deltas.append(delta)
        if self._timer is None:
            pace = max(TEXT_PACE, len(self.readers) * TEXT_PACE_PER_READER)
            self._timer = asyncio.get_running_loop().call_later(pace, self.flush_text)

    def on_removed(self) -> None:
        for reader in self.readers:
            reader.fall_behind()

    def flush_text(self) -> None:
        """Send the pieces of text that have come since the last time."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._deltas:
            data = sse("delta", {"turn": self._turn, "text": "".join(self._deltas)})
            self._deltas.clear()
            for reader in self.readers:
                reader.put(data)


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
        await response.prepare(request)
        with self._joined(session) as (events, reader):
            try:
                await _send(response, b"retry: 1000\n\n")
                while not reader.is_closed and may_go_on():
                    data, seq = await reader.wait(KEEPALIVE)
                    if data or reader.is_waiting():
                        await _send(response, data or b": keepalive\n\n")
                        position = max(position, seq)
                    if reader.is_behind:
                        position = await self._catch_up(response, session, position, events, reader)
            except (ConnectionError, TimeoutError):  # The client has gone, or does not read.
                if request.transport is not None:
                    request.transport.abort()
        return response

    async def _catch_up(
        self,
        response: web.StreamResponse,
        session: SessionMeta,
        position: int,
        events: SessionEvents,
        reader: EventQueue,
    ) -> int:
        """Send the events after `position` from the transcript, and then the text that is being written."""
        mapper = MessageMapper(session.id)
        found = self._sessions.find(session.key)
        position = min(position, found.seq) if found is not None else position
        reached = max(0, position - LOOK_BACK)
        try:
            while found is not None and found.id == session.id:
                async with aclosing(self._sessions.entries_since(session.key, reached)) as source:
                    async for entry in source:
                        data, reached = entry_event(mapper, session.id, entry), entry.seq
                        if data is not None and entry.seq > position:
                            await _send(response, data)
                # Nothing is awaited between here and the end, so no event is lost or comes twice. If something was
                # appended in the meantime, go on reading.
                before, found = found, self._sessions.find(session.key)
                if found is not None and found.seq == before.seq:
                    events.mapper = events.mapper or mapper
                    events.flush_text()  # The text below has these pieces too.
                    reader.is_behind = False
                    if (unwritten := self._unwritten_text(session.key)) is not None and unwritten[1]:
                        reader.put(sse("text", {"turn": unwritten[0], "text": unwritten[1]}))
                    return found.seq
        except Refused:  # It cannot be read any more.
            log.warning("event_stream_ended", session=session.key)
        await _send(response, sse("gone", {}))
        reader.close()
        return reached

    @contextmanager
    def _joined(self, session: SessionMeta) -> Iterator[tuple[SessionEvents, EventQueue]]:
        """Add a reader to the events of a session, which are followed while they have readers."""
        if session.key not in self._open:
            events = self._open[session.key] = SessionEvents(session.id)
            events.following.enter_context(self._sessions.feed.followed(session.key, events))
        events, reader = self._open[session.key], EventQueue()
        events.readers.add(reader)
        try:
            yield events, reader
        finally:
            events.readers.discard(reader)
            if not events.readers:
                del self._open[session.key]
                events.flush_text()
                events.following.close()


async def _send(response: web.StreamResponse, data: bytes) -> None:
    async with asyncio.timeout(WRITE_TIMEOUT):
        await response.write(data)
