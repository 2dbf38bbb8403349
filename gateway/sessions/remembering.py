"""The history of a session in use: put together once, so that each turn costs what it adds and not what was before."""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.conversation import Message, UserMessage
from gateway.sessions import entries as e
from gateway.sessions import messages
from gateway.sessions.counting import counted, is_spoken, standing_summary
from gateway.sessions.entries import Entry

__all__ = ["Remembered"]

_REACH_BACK = (e.Clear, e.Undo, e.Summary)

_SLACK = 64
"""Messages beyond the window that are kept before the oldest are cut off."""


@dataclass(slots=True)
class _Told:
    """What the model may be told of a session before a turn: in front the summary, where one stands for some of it."""

    head: list[Message]
    older: list[Message]
    """From before what the summary stands for."""
    newer: list[Message]

    def window(self, size: int, max_chars: int | None, then: Sequence[Message] = ()) -> list[Message]:
        newer = [*self.newer, *then] if then else self.newer
        if not self.head:
            return messages.shortened(messages.window(newer, size), max_chars)
        older = messages.window(self.older, size - 1 - len(newer))
        newer = messages.window(newer, size - 1)
        return [*messages.shortened(older, max_chars), *self.head, *messages.shortened(newer, max_chars)]

    def cut(self, size: int) -> None:
        """Forget what no window of that size reaches any more."""
        if len(self.newer) <= size + _SLACK:
            return
        oldest = len(self.newer) - size
        asked = (at for at in range(oldest, len(self.newer)) if isinstance(self.newer[at], UserMessage))
        self.older = []
        del self.newer[: next(asked, 0)]


class Remembered:
    """The messages of one session before its current turn. Entries are only added, and turns follow one another.

    `divided` returns what `messages.divided` would; where something reaches back in the current turn, it asks that.
    """

    def __init__(self) -> None:
        self._told: _Told | None = None
        self._upto = 0
        self._size = 0
        self._asked: Message | None = None
        """What the turn began with that was asked for last."""

    def divided(
        self, entries: Sequence[Entry], max_messages: int, *, turn: str | None = None, max_chars: int | None = None
    ) -> tuple[list[Message], list[Message]]:
        newest = turn or (entries[-1].turn if entries else None)
        border = self._border(entries, newest)
        if border is None:
            return messages.divided(entries, max_messages, turn=turn, max_chars=max_chars)
        told = self._reach(entries, border, max_messages)
        current = messages.as_messages(entries[border:])
        self._asked = current[0] if current else None
        if turn is None:
            return told.window(max_messages, max_chars, current), []
        return told.window(max_messages, max_chars), current

    def _border(self, entries: Sequence[Entry], turn: str | None) -> int | None:
        """Return where `turn` begins, if it does so with a question and everything before it is closed."""
        if turn is None:
            return None
        border = next((at for at in range(self._upto, len(entries)) if entries[at].turn == turn), None)
        if border is None or not isinstance(entries[border], e.User):
            return None
        current = entries[border:]
        is_plain = all(entry.turn == turn or not is_spoken(entry) for entry in current)
        return border if is_plain and not any(map(_reaches_back, current)) else None

    def _reach(self, entries: Sequence[Entry], border: int, size: int) -> _Told:
        """Have the messages of all entries before `border`."""
        added = entries[self._upto : border]
        if self._told is None or self._size != size or any(map(_reaches_back, added)):
            self._told, self._size = _told(entries[:border], size), size
        elif added:
            self._told.newer += self._recognised(messages.as_messages(added))
        self._upto = border
        self._told.cut(size)
        return self._told

    def _recognised(self, added: list[Message]) -> list[Message]:
        """Put the message that was shown before in the place of one that says the same: it has been measured."""
        return [self._asked, *added[1:]] if self._asked is not None and added[:1] == [self._asked] else added


def _told(entries: Sequence[Entry], size: int) -> _Told:
    summary = standing_summary(entries)
    if summary is None:
        return _Told([], [], messages.as_messages(counted(entries, enough=size)))
    counting = counted(entries)
    older = messages.as_messages(entry for entry in counting if entry.seq < summary.from_seq)
    newer = messages.as_messages(entry for entry in counting if entry.seq > summary.covers)
    return _Told([messages.as_head(summary)], older, newer)


def _reaches_back(entry: Entry) -> bool:
    """Tell whether it changes what entries before it stand for."""
    return isinstance(entry, _REACH_BACK) or (isinstance(entry, e.Checkpoint) and entry.summary is not None)
