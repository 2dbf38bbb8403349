"""Reads Server-Sent Events from the bytes of a response, which may be cut anywhere.

The format: https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
"""

from msgspec import Struct

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""An endpoint that sends more without an end of the event is not trusted to ever end it."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_PING = b"ping"
"""The name of an event that only keeps the connection alive, as a comment does."""


class ServerSentEvent(Struct, frozen=True):
    name: bytes
    data: bytes


class EventReader:
    """Reads one stream. An event that is not followed by an empty line is dropped, as the format says."""

    def __init__(self) -> None:
        self.has_events = False
        self._rest = bytearray()
        self._skips_newline = False

    def feed(self, received: bytes) -> list[ServerSentEvent]:
        """Return the events that are complete, now that `received` has arrived."""
        if self._skips_newline or b"\r" in received:
            # A line may end with CR, LF or CRLF, and the latter may be cut in its middle.
            if self._skips_newline and received.startswith(b"\n"):
                received = received[1:]
            self._skips_newline = received.endswith(b"\r")
            received = received.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        # The empty line may begin with the last byte that arrived before.
        is_complete = received.find(b"\n\n") >= 0 or (self._rest.endswith(b"\n") and received.startswith(b"\n"))
        self._rest += received
        if not is_complete:
            if len(self._rest) > MAX_EVENT_BYTES:
                raise ValueError("an event of the stream is too long")
            return []
        *blocks, rest = bytes(self._rest).split(b"\n\n")
        self._rest = bytearray(rest)
        events = [event for block in blocks if (event := _parse(block)) is not None]
        self.has_events = self.has_events or bool(events)
        return events

    def unread(self) -> bytes:
        """Return the bytes after the last event."""
        return bytes(self._rest)


def _parse(block: bytes) -> ServerSentEvent | None:
    """Return the event of these lines, or None if they are a ping, or have only comments and unknown fields."""
    name, data = b"", []
    for line in block.removeprefix(_BYTE_ORDER_MARK).split(b"\n"):
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
    return ServerSentEvent(name, b"\n".join(data)) if (name or data) and name != _PING else None
