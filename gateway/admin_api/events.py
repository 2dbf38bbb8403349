"""The events of the gateway as server-sent events: its state, and that sessions, approvals, people or the log changed.

Nothing is done while there are no readers. The reader that comes first in a tick collects the events for all of them.
An event says what has changed, and not how: the client asks for what it shows. The last events stay in memory, so
that a client that reconnects gets those that it has missed. One that has missed more gets `reset`, and asks again for
everything.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from time import monotonic
from uuid import uuid4

import msgspec
from aiohttp import web

from gateway.access.pairing import Pairing
from gateway.access.roles import current_role
from gateway.access.rules import Live
from gateway.admin_api import types as t
from gateway.admin_api.overview import GatewayWatch, line_info
from gateway.api.operation import ApiCall
from gateway.contract import Caller
from gateway.sessions import SessionManager
from gateway.turns.approvals import Approvals

TICK = 0.5
"""Seconds between two looks at what has changed."""
OVERVIEW_INTERVAL = 2.0
CLUSTER_INTERVAL = 5.0
"""In a cluster, other nodes change things too. Clients are told to look again so often."""
LINGER = 60.0
"""Seconds for which changes are still collected after the last reader has left, for one that reconnects."""
KEEPALIVE = 15.0
WRITE_TIMEOUT = 60.0
MAX_EVENTS = 1_000
"""Events that a client may miss."""
MAX_SESSIONS = 200
"""Sessions that an event names. It says so if more have changed."""
MAX_LINES = 200
"""Lines of the log for each tick. Of more, the oldest are left out."""

_encode = msgspec.json.Encoder().encode


class _Event(msgspec.Struct, frozen=True):
    number: int
    topic: str
    data: bytes


class GatewayEvents:
    """All readers of the gateway's events."""

    def __init__(
        self,
        *,
        watch: GatewayWatch,
        sessions: SessionManager,
        approvals: Approvals,
        pairing: Pairing,
        live: Live,
        is_token_valid: Callable[[str], bool],
        is_stopping: Callable[[], bool],
        is_in_cluster: bool,
    ) -> None:
        self._watch = watch
        self._sessions = sessions
        self._approvals = approvals
        self._pairing = pairing
        self._live = live
        self._is_token_valid = is_token_valid
        self._is_stopping = is_stopping
        self._is_in_cluster = is_in_cluster
        self._readers = 0
        self._watching: ExitStack | None = None
        """Collects the changes of sessions until it is closed."""
        self._leave: asyncio.TimerHandle | None = None
        self._run = ""
        """Changes whenever events may have been missed by all, so that older ids are not understood any more."""
        self._events: deque[_Event] = deque(maxlen=MAX_EVENTS)
        self._last = 0
        self._collected_at = 0.0
        self._refreshed_at = 0.0
        self._overview = b""
        self._overview_at = 0.0
        self._taking = asyncio.Lock()
        self._changed: set[str] | None = set()
        """The keys of sessions that have changed; None: too many."""
        self._asked: frozenset[str] = frozenset()
        self._waiting: frozenset[str] = frozenset()
        self._line = 0

    async def serve(self, call: ApiCall) -> web.StreamResponse:
        """Send events until the client leaves, its token ends, or the gateway stops."""
        request = call.request
        topics = frozenset(filter(None, call.query_as(t.GatewayEventsQuery).topics.split(",")))
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream; charset=utf-8", "X-Accel-Buffering": "no"}
        )
        await response.prepare(request)
        with self._joined():
            position = self._position(request.headers.get("Last-Event-ID", ""))
            await _send(request, response, b"retry: 1000\n\n")
            if position is None:
                position = self._last
                # Without data, `EventSource` would not set its id, and a reconnect could not go on from here.
                await _send(request, response, self._sse("reset", b"{}", position))
            sent_overview, sent_at = 0.0, monotonic()
            token = call.caller.token
            while not self._is_stopping() and (not token or self._is_token_valid(token)):
                self._collect()
                if not topics or "overview" in topics:
                    await self._take_overview(call.caller)
                found = [each for each in self._events if each.number > position]
                if self._events and self._events[0].number > position + 1:  # It reads too slowly.
                    found, position = [], self._last
                    await _send(request, response, self._sse("reset", b"{}", position))
                blocks = [
                    self._sse(each.topic, each.data, each.number)
                    for each in found
                    if not topics or each.topic in topics
                ]
                position = max(position, found[-1].number if found else position)
                if self._overview_at > sent_overview and (not topics or "overview" in topics):
                    sent_overview = self._overview_at
                    blocks.append(self._sse("overview", self._overview))
                if blocks or monotonic() - sent_at > KEEPALIVE:
                    sent_at = monotonic()
                    await _send(request, response, b"".join(blocks) or b": keepalive\n\n")
                await asyncio.sleep(TICK)
        return response

    @contextmanager
    def _joined(self) -> Iterator[None]:
        if self._leave is not None:
            self._leave.cancel()
            self._leave = None
        if self._watching is None:
            self._watching = ExitStack()
            self._watching.enter_context(self._sessions.feed.watched(self._session_changed))
            self._events.clear()
            self._run, self._last, self._changed = uuid4().hex[:12], 0, set()
            self._asked, self._waiting, self._line = self._open_questions(), self._applicants(), self._watch.log.last
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1
            if not self._readers:
                self._leave = asyncio.get_running_loop().call_later(LINGER, self._stop)

    def _stop(self) -> None:
        if self._watching is not None:
            self._watching.close()
            self._watching = None

    def _position(self, last_event_id: str) -> int | None:
        """Return the number of the last event that a client has got. None if it has missed some, or is new."""
        run, _, number = last_event_id.partition(":")
        if run != self._run or not number.isascii() or not number.isdecimal() or len(number) > len(str(2**63)):
            return None
        position = int(number)
        first = self._events[0].number if self._events else self._last + 1
        return position if first - 1 <= position <= self._last else None

    def _session_changed(self, key: str) -> None:
        if self._changed is None:
            return
        self._changed.add(key)
        if len(self._changed) > MAX_SESSIONS:
            self._changed = None

    def _collect(self) -> None:
        """Make events of what has changed since the last tick, once for all readers."""
        if monotonic() - self._collected_at < TICK / 2:
            return
        self._collected_at = monotonic()
        if self._changed or self._changed is None:
            found = [self._sessions.find(key) for key in sorted(self._changed or ())]
            ids = [each.id for each in found if each is not None]
            self._add("sessions", {"ids": ids, "isComplete": self._changed is not None and len(ids) == len(found)})
            self._changed = set()
        elif self._is_in_cluster and self._collected_at - self._refreshed_at > CLUSTER_INTERVAL:
            self._refreshed_at = self._collected_at
            self._add("sessions", {"ids": [], "isComplete": False})
            self._add("approvals", {"open": len(self._asked)})
        if (asked := self._open_questions()) != self._asked:
            self._asked = asked
            self._add("approvals", {"open": len(asked)})
        if (waiting := self._applicants()) != self._waiting:
            self._waiting = waiting
            self._add("people", {"waiting": len(waiting)})
        if self._watch.log.last != self._line:
            lines = list(self._watch.log.lines(after=self._line))[:MAX_LINES]
            self._line = lines[0].number if lines else self._watch.log.last
            for line in reversed(lines):
                self._add("log", line_info(line))

    async def _take_overview(self, caller: Caller) -> None:
        async with self._taking:
            if monotonic() - self._overview_at >= OVERVIEW_INTERVAL:
                self._overview = _encode(await self._watch.take(caller))
                self._overview_at = monotonic()

    def _open_questions(self) -> frozenset[str]:
        return frozenset(self._approvals.open_questions)

    def _applicants(self) -> frozenset[str]:
        # Guests as well: an approval by another owner changes both lists.
        return frozenset(each.code for each in self._pairing.waiting()) | frozenset(
            f"{guest.person} {current_role(self._live, guest)}" for guest in self._pairing.guest_book.guests.values()
        )

    def _add(self, topic: str, data: object) -> None:
        self._last += 1
        self._events.append(_Event(self._last, topic, _encode(data)))

    def _sse(self, event: str, data: bytes, number: int | None = None) -> bytes:
        """Return one server-sent event. JSON has no line breaks, so one `data` line is enough."""
        head = b"" if number is None else f"id: {self._run}:{number}\n".encode()
        return b"%sevent: %s\ndata: %s\n\n" % (head, event.encode(), data)


async def _send(request: web.Request, response: web.StreamResponse, data: bytes) -> None:
    """Write to the client. One that does not read for too long is cut."""
    try:
        async with asyncio.timeout(WRITE_TIMEOUT):
            await response.write(data)
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("The client does not read its events.") from None
