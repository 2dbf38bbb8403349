"""The disk side of `SessionManager`: one thread, so that things happen in the order they were asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from config.files import fsync_directory, write_atomically
from gateway.sessions import index, transcript
from gateway.sessions.entries import Entry, decode
from gateway.sessions.names import file_name
from gateway.sessions.transcript import Reading

__all__ = ["Disk"]

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_PRIVATE_DIRECTORY = 0o700
_OPEN_TO_OTHERS = 0o077
_CHECKED_LIMIT = 100_000


@dataclass(slots=True)
class _Backlog:
    """Lines that could not be written yet."""

    data: bytes = b""
    is_new: bool = False


class Disk:
    """Writes and reads the files of one sessions folder. `trouble` and `waiting` may be read from any thread."""

    def __init__(self, directory: Path) -> None:
        self.index_path = directory / "index.json"
        self.transcripts = directory / "transcripts"
        self.waiting = 0
        self._directory = directory
        self._backlogs: dict[str, _Backlog] = {}
        self._dirty: set[str] = set()
        self._has_new_names = False
        self._checked: set[str] = set()
        self._append_trouble: str | None = None
        self._flush_trouble: str | None = None

    @property
    def trouble(self) -> str | None:
        """What is wrong at the moment, as a sentence for the operator."""
        return self._append_trouble or self._flush_trouble

    def prepare(self) -> None:
        """Make the folders, private from birth, and close them to others if somebody has opened them."""
        for directory in (*reversed(self._directory.parents), self._directory, self.transcripts):
            if not directory.exists():
                directory.mkdir(mode=_PRIVATE_DIRECTORY)
        for directory in (self._directory, self.transcripts):
            if directory.stat().st_mode & _OPEN_TO_OTHERS:
                directory.chmod(_PRIVATE_DIRECTORY)
        for leftover in self._directory.glob(f".{self.index_path.name}.*"):
            leftover.unlink()

    def path(self, key: str) -> Path:
        return self.transcripts / file_name(key)

    def append(self, key: str, data: bytes, *, is_new: bool = False) -> None:
        """Write through to the transcript. What the disk refuses waits here, in order, for the next try.

        Raises `FileNotFoundError` when the transcript has vanished, `Newer` when it must not be written.
        """
        backlog = self._backlogs.setdefault(key, _Backlog())
        backlog.data += data
        backlog.is_new |= is_new
        self.waiting += len(data)
        try:
            self._write(key, backlog)
        except (FileNotFoundError, transcript.Newer):
            self._give_up(key)
            raise
        except OSError as trouble:
            self._append_trouble = self._noted("append_failed", trouble, key)

    def read(self, key: str) -> Reading:
        """Read a transcript with what waits to be appended to it. One that is `Unreadable` is set aside first."""
        backlog = self._backlogs.get(key, _Backlog())
        waiting: list[Entry] = [decode(line) for line in backlog.data.split(b"\n")[:-1]]
        if backlog.is_new:
            return Reading(entries=waiting, size=0)
        try:
            reading = transcript.read(self.path(key))
        except transcript.Unreadable:
            self._give_up(key)
            transcript.set_aside(self.path(key))
            raise
        reading.entries.extend(waiting)
        return reading

    def snapshot(self, key: str) -> tuple[int, bytes]:
        """Return the size of a transcript and the lines that wait to be appended to it."""
        backlog = self._backlogs.get(key, _Backlog())
        return 0 if backlog.is_new else self.path(key).stat().st_size, backlog.data

    def delete(self, key: str, heir: str | None) -> None:
        """Delete a transcript, once what its `heir` knows is durable. `OSError` when the disk will not let it go."""
        self._give_up(key)
        self._dirty.discard(key)
        self._checked.discard(key)
        if heir is not None and heir in self._dirty:
            self._sync(heir)
        self.path(key).unlink(missing_ok=True)
        self._has_new_names = True

    def flush(self, members: Sequence[bytes] | None) -> bool:
        """Make every transcript durable, then write the index of `members`, if given; tell whether all of it worked."""
        before, self._flush_trouble = self.trouble, None
        for key in list(self._backlogs):
            self._retry(key)
        for key in list(self._dirty):
            self._sync(key)
        self._sync_names()
        if members is not None:
            self._write_index(members)
        if before and not self.trouble:
            log.info("flush_recovered")
        return self._flush_trouble is None

    def _write(self, key: str, backlog: _Backlog) -> None:
        path = self.path(key)
        if not backlog.is_new and key not in self._checked:
            transcript.check(path)
        transcript.append(path, backlog.data, is_new=backlog.is_new)
        self._mark_checked(key)
        self._dirty.add(key)
        self._has_new_names |= backlog.is_new
        self._give_up(key)

    def _give_up(self, key: str) -> None:
        backlog = self._backlogs.pop(key, _Backlog())
        self.waiting -= len(backlog.data)
        if not self._backlogs:
            self._append_trouble = None

    def _mark_checked(self, key: str) -> None:
        if len(self._checked) >= _CHECKED_LIMIT:
            self._checked.clear()
        self._checked.add(key)

    def _retry(self, key: str) -> None:
        try:
            self._write(key, self._backlogs[key])
        except (FileNotFoundError, transcript.Newer):
            self._give_up(key)
            log.exception("entries_lost", session=key)
        except OSError as trouble:
            self._append_trouble = self._noted("append_failed", trouble, key)

    def _sync(self, key: str) -> None:
        try:
            transcript.sync(self.path(key))
        except FileNotFoundError:
            log.warning("transcript_vanished", session=key)
        except OSError as trouble:
            self._flush_trouble = self._noted("flush_failed", trouble, key)
            return
        self._dirty.discard(key)

    def _sync_names(self) -> None:
        if not self._has_new_names:
            return
        try:
            fsync_directory(self.transcripts)
        except OSError as trouble:
            self._flush_trouble = self._noted("flush_failed", trouble, str(self.transcripts))
            return
        self._has_new_names = False

    def _write_index(self, members: Sequence[bytes]) -> None:
        try:
            write_atomically(self.index_path, index.assemble(members))
        except OSError as trouble:
            self._flush_trouble = self._noted("flush_failed", trouble, str(self.index_path))

    def _noted(self, event: str, trouble: OSError, what: str) -> str:
        """Log trouble when it begins; while it lasts, every try would fail the same way."""
        tell = log.debug if self.trouble else log.error
        tell(event, what=what, reason=str(trouble))
        return f"Sessions cannot be written to disk: {trouble}. They are kept in memory and tried again."
