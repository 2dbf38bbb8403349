"""The transcripts that are held open for appending: so many, and the ones used last."""

from collections import OrderedDict
from pathlib import Path

from gateway.sessions.transcript import Writer

__all__ = ["OpenWriters"]

_OPEN_LIMIT = 256


class OpenWriters:
    def __init__(self) -> None:
        self._writers: OrderedDict[str, Writer] = OrderedDict()

    def get(self, key: str, path: Path, *, is_new: bool) -> Writer:
        """Return the writer of `key`; a file that somebody else has changed is opened anew, and its tail mended."""
        writer = self._writers.get(key)
        if writer is not None and writer.is_current():
            self._writers.move_to_end(key)
            return writer
        self.close(key)
        writer = self._writers[key] = Writer(path, is_new=is_new)
        if len(self._writers) > _OPEN_LIMIT:
            self._writers.popitem(last=False)[1].close()
        return writer

    def close(self, key: str) -> None:
        writer = self._writers.pop(key, None)
        if writer is not None:
            writer.close()

    def close_all(self) -> None:
        while self._writers:
            self._writers.popitem()[1].close()
