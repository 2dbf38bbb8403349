"""The sessions that were used last, kept in memory within bounds."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.sessions.entries import Entry

__all__ = ["HotSessions"]


@dataclass(slots=True)
class _Hot:
    entries: list[Entry]
    size: int


class HotSessions:
    """Entries by session key; the least recently used go first, by count and by bytes of transcript."""

    def __init__(self, *, max_sessions: int = 256, max_bytes: int = 64 * 1024 * 1024) -> None:
        self._max_sessions = max_sessions
        self._max_bytes = max_bytes
        self._bytes = 0
        self._sessions: OrderedDict[str, _Hot] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, key: str) -> list[Entry] | None:
        hot = self._sessions.get(key)
        if hot is None:
            return None
        self._sessions.move_to_end(key)
        return hot.entries

    def put(self, key: str, entries: list[Entry], size: int) -> None:
        self.drop(key)
        self._sessions[key] = _Hot(entries, size)
        self._bytes += size
        self._cool()

    def extend(self, key: str, entries: Sequence[Entry], size: int) -> None:
        """Add what was appended to a session, if it is held at all."""
        hot = self._sessions.get(key)
        if hot is None:
            return
        hot.entries.extend(entries)
        hot.size += size
        self._bytes += size
        self._sessions.move_to_end(key)
        self._cool()

    def drop(self, key: str) -> None:
        hot = self._sessions.pop(key, None)
        if hot is not None:
            self._bytes -= hot.size

    def _cool(self) -> None:
        while self._sessions and (len(self._sessions) > self._max_sessions or self._bytes > self._max_bytes):
            self.drop(next(iter(self._sessions)))
