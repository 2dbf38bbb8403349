"""The written bytes of transcripts that no fsync has confirmed. With them, a file can be rebuilt if its fsync fails."""

from collections.abc import Iterable

from msgspec import Struct, field

# Bytes kept in memory until they are fsynced. Beyond that, a rebuild copies them from the file.
MAX_UNSYNCED_BYTES = 32 * 1024 * 1024


class _Unsynced(Struct):
    """Bytes that were written behind the first `durable` bytes of a transcript, and not fsynced yet."""

    durable: int
    parts: list[bytes] = field(default_factory=list)


class UnsyncedBytes:
    """The bytes of each session that an fsync has not confirmed. With them, a file can be rebuilt if fsync fails.

    After a failed fsync the kernel may drop the written pages, and a second fsync then succeeds. So a file
    whose fsync failed is never trusted again: it is rebuilt from its durable bytes and from these.
    """

    def __init__(self) -> None:
        # Files to rebuild.
        self.distrusted: dict[str, _Unsynced] = {}
        self._waiting: dict[str, _Unsynced] = {}
        self._syncing: dict[str, _Unsynced] = {}
        self._kept = 0

    def add(self, key: str, durable: int, data: bytes) -> None:
        """Keep `data`, which was written behind the first `durable` bytes or behind the bytes added before."""
        unsynced = self._waiting.get(key)
        if unsynced is None:
            unsynced = self._waiting[key] = _Unsynced(durable)
        unsynced.parts.append(data)
        self._kept += len(data)
        if self._kept > MAX_UNSYNCED_BYTES:
            self._kept -= sum(map(len, unsynced.parts))
            self._waiting[key] = _Unsynced(durable + len(data))

    def begin_sync(self) -> Iterable[str]:
        """Return the keys to fsync now. Bytes that are added from now on wait for the next time."""
        self._syncing, self._waiting = self._waiting, {}
        return self._syncing

    def end_sync(self, failed: Iterable[str]) -> list[str]:
        """Forget the durable bytes. Distrust the `failed` files that still exist, and return their keys."""
        distrusted = [key for key in failed if key in self._syncing]
        for key in distrusted:
            known = [each for each in (self._syncing.pop(key), self._waiting.pop(key, None)) if each is not None]
            self.distrusted[key] = _Unsynced(known[0].durable, [part for each in known for part in each.parts])
        self._syncing = {}
        self._kept = sum(len(part) for unsynced in self._waiting.values() for part in unsynced.parts)
        return distrusted

    def distrust(self, key: str, size: int) -> None:
        """Distrust a file of `size` bytes that are all durable, except for those added here."""
        self.distrusted[key] = self._waiting.pop(key, _Unsynced(size))

    def forget(self, key: str) -> None:
        for known in (self._waiting, self._syncing, self.distrusted):
            known.pop(key, None)
