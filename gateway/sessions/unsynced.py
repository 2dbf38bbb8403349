"""What was written and may not be on the disk yet, kept so that a file whose sync fails can be built anew from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = ["Unsynced", "Written"]

_LIMIT = 32 * 1024 * 1024
"""Bytes kept in all; beyond that, what the file holds has to do."""


@dataclass(slots=True)
class Written:
    """What was written since the first `durable` bytes of a transcript were last known to be on the disk."""

    durable: int
    parts: list[bytes] = field(default_factory=list)

    @property
    def data(self) -> bytes:
        return b"".join(self.parts)


class Unsynced:
    """By session: what waits for the next sync, what the one at hand is about, and what could not be synced."""

    def __init__(self) -> None:
        self.poisoned: dict[str, Written] = {}
        """Files that are not to be trusted, until they have been built anew."""
        self._waiting: dict[str, Written] = {}
        self._syncing: dict[str, Written] = {}
        self._kept = 0

    def keep(self, key: str, durable: int, data: bytes) -> None:
        """Note that `data` was written behind the first `durable` bytes, or behind what was noted before."""
        written = self._waiting.get(key)
        if written is None:
            written = self._waiting[key] = Written(durable)
        written.parts.append(data)
        self._kept += len(data)
        if self._kept > _LIMIT:
            self._kept -= sum(map(len, written.parts))
            self._waiting[key] = Written(durable + len(data))

    def begin(self) -> Iterable[str]:
        """Return the keys of what is to be synced now; what is written from here on waits for the next time."""
        self._syncing, self._waiting = self._waiting, {}
        return self._syncing

    def end(self, failed: Iterable[str]) -> list[str]:
        """Forget what is durable now, and poison what has `failed`, but for what was deleted meanwhile; return that."""
        poisoned = [key for key in failed if key in self._syncing]
        for key in poisoned:
            self._poison(key)
        self._syncing = {}
        self._kept = sum(len(part) for written in self._waiting.values() for part in written.parts)
        return poisoned

    def _poison(self, key: str) -> None:
        before, after = self._syncing.pop(key, None), self._waiting.pop(key, None)
        known = [written for written in (before, after) if written is not None]
        self.poisoned[key] = Written(known[0].durable, [part for written in known for part in written.parts])

    def distrust(self, key: str, size: int) -> None:
        """Poison a file of `size` bytes, all of which are on the disk but for what is known not to be."""
        self.poisoned[key] = self._waiting.pop(key, Written(size))

    def forget(self, key: str) -> None:
        for known in (self._waiting, self._syncing, self.poisoned):
            known.pop(key, None)
