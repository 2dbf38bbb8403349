"""The history of a session in use: put together once, so that each turn costs what it adds and not what was before."""

from collections.abc import Sequence

from gateway.dialogue import Message, UserMessage
from gateway.sessions import entries as e
from gateway.sessions import messages
from gateway.sessions.counting import counted, is_spoken, standing_summary
from gateway.sessions.entries import Entry

__all__ = ["Remembered"]

_REACH_BACK = (e.Clear, e.Undo, e.Summary)

_SLACK = 64
"""Messages beyond the window that are kept before the oldest are cut off."""


class Remembered:
    """The messages of one session before its current turn. Entries are only added, and turns follow one another.

    `divided` returns what `messages.divided` would; where entries reach back (a summary, something undone in the
    current turn), it asks that.
    """

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._upto = 0
        self._size: int | None = None

    def divided(
        self, entries: Sequence[Entry], max_messages: int, *, turn: str | None = None, max_chars: int | None = None
    ) -> tuple[list[Message], list[Message]]:
        border = self._border(entries, turn)
        if border is None or not self._reach(entries, border, max_messages):
            return messages.divided(entries, max_messages, turn=turn, max_chars=max_chars)
        before = messages.shortened(messages.window(self._messages, max_messages), max_chars)
        return before, messages.as_messages(entries[border:])

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

    def _reach(self, entries: Sequence[Entry], border: int, size: int) -> bool:
        """Have the messages of all entries before `border`; False where a summary stands for some of them."""
        added = entries[self._upto : border]
        if self._size == size and not any(map(_reaches_back, added)):
            self._messages += messages.as_messages(added)
        elif standing_summary(entries[:border]) is None:
            self._messages = messages.as_messages(counted(entries[:border], enough=size))
            self._size = size
        else:
            self._size = None
            return False
        self._upto = border
        self._cut(size)
        return True

    def _cut(self, size: int) -> None:
        if len(self._messages) <= size + _SLACK:
            return
        oldest = len(self._messages) - size
        asked = (at for at in range(oldest, len(self._messages)) if isinstance(self._messages[at], UserMessage))
        del self._messages[: next(asked, 0)]


def _reaches_back(entry: Entry) -> bool:
    """Tell whether it changes what entries before it stand for."""
    return isinstance(entry, _REACH_BACK) or (isinstance(entry, e.Checkpoint) and entry.summary is not None)
