"""Who is connected: the open outlets of each peer, what waits for a peer who is away, and what was said last."""

from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager

from channels.websocket.send_queue import Outlet
from channels.websocket.wire import Message, ServerFrame
from gateway.contract import OutboundKind

__all__ = ["Hub", "TooManyConnections"]

MAX_CONNECTIONS = 16
"""For one peer: a person with many tabs, not a leak."""
MAX_NOTES = 20
MAX_MAILBOXES = 1000
MAX_SAID = 20
MAX_LISTENERS = 1000
"""How many peers are remembered with what was said to them last."""


class TooManyConnections(Exception):
    """The peer has as many connections as it may have."""


class Hub:
    """Everybody who is connected, by peer; all of it bounded. For use within one event loop."""

    def __init__(self, *, keeps_replies: bool = False) -> None:
        self._keeps_replies = keeps_replies
        self._outlets: dict[str, list[Outlet]] = {}
        self._mailboxes: OrderedDict[str, deque[Message]] = OrderedDict()
        self._said: OrderedDict[str, deque[Message]] = OrderedDict()

    @contextmanager
    def joined(self, peer: str, outlet: Outlet) -> Iterator[None]:
        """Let `outlet` have what is broadcast to `peer`, and first what has been waiting in the mailbox."""
        outlets = self._outlets.setdefault(peer, [])
        if len(outlets) >= MAX_CONNECTIONS:
            raise TooManyConnections
        outlets.append(outlet)
        try:
            for note in self._mailboxes.pop(peer, ()):
                self._remember(peer, note)
                outlet.offer(note)
            yield
        finally:
            self._leave(peer, outlet)

    def broadcast(self, peer: str, frame: ServerFrame, *, besides: Outlet | None = None) -> bool:
        """Offer `frame` to every connection of `peer`, or say that there is none."""
        outlets = self._outlets.get(peer, ())
        if isinstance(frame, Message):
            self._remember(peer, frame)
        for outlet in tuple(outlets):
            if outlet is not besides:
                outlet.offer(frame)
        return bool(outlets)

    def answers(self, peer: str, name: str) -> list[Message]:
        """Return what was said lately to the message `name` of `peer`, maybe to another connection than that it is of.

        Where replies are not kept, nothing is: a client finds them in the transcript. A question that is still open is
        asked again of whoever connects; one that is not must not be taken for the answer.
        """
        return [said for said in self._said.get(peer, ()) if said.reply_to == name and not said.is_question]

    def waiting(self, peer: str) -> list[Message]:
        """Return what is in the mailbox of `peer`."""
        return list(self._mailboxes.get(peer, ()))

    def leave_note(self, peer: str, note: Message) -> list[str]:
        """Keep `note` for the next connection of `peer`; when full, an old note or mailbox makes room.

        Return whose mailboxes have made room.
        """
        mailbox = self._mailboxes.setdefault(peer, deque(maxlen=MAX_NOTES))
        if all(waiting.key != note.key for waiting in mailbox):
            _make_room(mailbox)
            mailbox.append(note)
        self._mailboxes.move_to_end(peer)
        dropped: list[str] = []
        while len(self._mailboxes) > MAX_MAILBOXES:
            dropped.append(self._mailboxes.popitem(last=False)[0])
        return dropped

    def _remember(self, peer: str, said: Message) -> None:
        if not self._keeps_replies:
            return
        known = self._said.setdefault(peer, deque(maxlen=MAX_SAID))
        if all(other.key != said.key for other in known):
            known.append(said)
        self._said.move_to_end(peer)
        while len(self._said) > MAX_LISTENERS:
            self._said.popitem(last=False)

    def _leave(self, peer: str, outlet: Outlet) -> None:
        outlets = self._outlets[peer]
        outlets.remove(outlet)
        if outlets:
            return
        del self._outlets[peer]
        for frame in outlet.unsent():
            if isinstance(frame, Message) and (frame.kind == OutboundKind.NOTICE or self._keeps_replies):
                self.leave_note(peer, frame)


def _make_room(mailbox: deque[Message]) -> None:
    """In a full mailbox the oldest reply gives way, which is in the transcript too; else the oldest note will."""
    reply = next((note for note in mailbox if note.kind == OutboundKind.REPLY), None)
    if reply is not None and len(mailbox) == MAX_NOTES:
        mailbox.remove(reply)
