"""The ends of the sessions that were used last, kept in memory within bounds."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.sessions.entries import Entry, Summary, Undo
from gateway.sessions.remembering import Remembered

__all__ = ["HotSessions"]

_GROWTH = 1024
"""Entries that may be added to a tail, and as many again as it had, before it is worth reading a shorter one."""

_SHORT = 32
"""Entries that a short session has."""


@dataclass(slots=True)
class _Hot:
    entries: list[Entry]
    size: int
    messages: int | None
    """For how many messages of history it is enough; None: it is the whole session."""
    max_entries: int
    remembered: Remembered = field(default_factory=Remembered)


class HotSessions:
    """Entries by session key; the least recently used go first, by count and by bytes of transcript.

    While sessions are short, four times as many are kept: a rush of new ones is answered without reading any.
    """

    def __init__(self, *, max_sessions: int = 256, max_bytes: int = 64 * 1024 * 1024) -> None:
        self._max_sessions = max_sessions
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries = 0
        self._sessions: OrderedDict[str, _Hot] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, key: str, messages: int = 0) -> list[Entry] | None:
        """Return the end of a session, if it is held and enough for so many messages."""
        hot = self._sessions.get(key)
        if hot is None or (hot.messages is not None and hot.messages < messages):
            return None
        self._sessions.move_to_end(key)
        return hot.entries

    def remembered(self, key: str) -> Remembered:
        """Return what is remembered of the history of a session; of one that is not held, nothing."""
        hot = self._sessions.get(key)
        return Remembered() if hot is None else hot.remembered

    def is_whole(self, key: str) -> bool:
        return key in self._sessions and self._sessions[key].messages is None

    def put(self, key: str, entries: list[Entry], size: int, *, messages: int | None = None) -> None:
        self.drop(key)
        self._sessions[key] = _Hot(entries, size, messages, 2 * len(entries) + _GROWTH)
        self._bytes += size
        self._entries += len(entries)
        self._cool()

    def extend(self, key: str, entries: Sequence[Entry], size: int) -> None:
        """Add what was appended to a session, if it is held at all."""
        hot = self._sessions.get(key)
        if hot is None:
            return
        hot.entries.extend(entries)
        hot.size += size
        self._bytes += size
        self._entries += len(entries)
        self._sessions.move_to_end(key)
        if len(hot.entries) > hot.max_entries or _reaches_back(hot, entries):
            self.drop(key)
        self._cool()

    def drop(self, key: str) -> None:
        hot = self._sessions.pop(key, None)
        if hot is not None:
            self._bytes -= hot.size
            self._entries -= len(hot.entries)

    def _cool(self) -> None:
        while self._sessions and (self._are_too_many() or self._bytes > self._max_bytes):
            self.drop(next(iter(self._sessions)))

    def _are_too_many(self) -> bool:
        if len(self._sessions) <= self._max_sessions:
            return False
        return self._entries > _SHORT * self._max_sessions or len(self._sessions) > 4 * self._max_sessions


def _reaches_back(hot: _Hot, entries: Sequence[Entry]) -> bool:
    """Tell whether earlier entries may be needed now: where a turn does not count, another before it does."""
    return hot.messages is not None and any(isinstance(entry, Undo | Summary) for entry in entries)
