"""The files of one sessions folder. Everything but `flushing` happens in one thread, in the order it was asked for."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from config.files import Fsync
from gateway.private_files import FILE_MODE, OTHERS, prepare_private_folder
from gateway.sessions import index
from gateway.sessions.entries import Entry
from gateway.sessions.keys import file_name
from gateway.sessions.storage import transcript
from gateway.sessions.storage.codec import NewerTranscript, UnreadableTranscript, decode
from gateway.sessions.storage.tail import NeverStop, StopCondition
from gateway.sessions.storage.transcript import OpenWriters, TranscriptTail, rebuild, set_aside
from gateway.sessions.storage.transfer_files import ImportFile

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


log: structlog.stdlib.BoundLogger = structlog.get_logger()


@dataclass(slots=True)
class _Backlog:
    """Lines that could not be written yet."""

    data: bytes = b""
    is_new: bool = False


class Disk:
    """Writes and reads the files of one sessions folder. `trouble` and `waiting` may be read from any thread.

    `fsync` is `os.fsync`, or what a test puts in its place.
    """

    def __init__(self, directory: Path, *, fsync: Fsync = os.fsync) -> None:
        self.index_path = directory / "index.json"
        self.transcripts = directory / "transcripts"
        self.fsync = fsync
        self.waiting = 0
        self.is_marked_clean = True
        """Whether the index may say that no transcript has changed since."""
        self._directory = directory
        self._writers = OpenWriters()
        self._backlogs: dict[str, _Backlog] = {}
        self._unsynced = Unsynced()
        self._new_names: set[str] = set()
        self._append_trouble: str | None = None
        self._flush_trouble: str | None = None

    @property
    def trouble(self) -> str | None:
        """What is wrong at the moment, as a sentence for the operator."""
        return self._append_trouble or self._flush_trouble

    def prepare(self) -> None:
        """Make the folders, private from birth, and close them to others if somebody has opened them."""
        prepare_private_folder(self._directory)
        prepare_private_folder(self.transcripts)
        if self.index_path.exists() and self.index_path.stat().st_mode & OTHERS:
            self.index_path.chmod(FILE_MODE)
        for leftover in self._directory.glob(f".{self.index_path.stem}.*"):  # Of the index, and of its clean mark.
            leftover.unlink()

    def expect(self, *, is_marked_clean: bool) -> None:
        """Know what recovery has found; a mark that does not hold is taken away before it can be believed."""
        self.is_marked_clean = is_marked_clean
        if not is_marked_clean:
            index.unmark(self.index_path)

    def path(self, key: str) -> Path:
        return self.transcripts / file_name(key)

    def append(self, key: str, data: bytes, *, is_new: bool = False) -> None:
        """Write through to the transcript. What the disk refuses waits here, in order, for the next try.

        Raises `FileNotFoundError` when the transcript has vanished, `Newer` when it must not be written.
        """
        backlog = self._backlogs.get(key)
        try:
            if backlog is None:
                self._write(key, data, is_new=is_new)
            else:
                self._write(key, backlog.data + data, is_new=backlog.is_new)
                self._give_up(key)
        except (FileNotFoundError, NewerTranscript):
            self._give_up(key)
            raise
        except OSError as trouble:
            self._wait(key, data, is_new=is_new)
            self._append_trouble = self.noted("append_failed", trouble, key)

    def _wait(self, key: str, data: bytes, *, is_new: bool) -> None:
        backlog = self._backlogs.setdefault(key, _Backlog(is_new=is_new))
        backlog.data += data
        self.waiting += len(data)

    def replace_end(self, key: str, keep: int, rest: bytes) -> None:
        """Put `rest` in place of all that a transcript has behind its first `keep` bytes."""
        self._unmark()
        self._writers.close(key)
        rebuild(self.path(key), keep, rest, self.fsync)
        self._new_names.add(key)

    def read(self, key: str, enough: StopCondition | None = None, *, max_bytes: int | None = None) -> TranscriptTail:
        """Read the end of a transcript with what waits to be appended to it.

        One that is `Unreadable` is set aside first.
        """
        enough = enough or NeverStop()
        backlog = self._backlogs.get(key) or _Backlog()
        waiting: list[Entry] = [decode(line) for line in backlog.data.split(b"\n")[:-1]]
        for entry in reversed(waiting):
            enough.add(entry)
        if backlog.is_new:
            return TranscriptTail(entries=waiting, size=0, taken=len(backlog.data))
        try:
            reading = transcript.read(self.path(key), enough, max_bytes=max_bytes)
        except UnreadableTranscript:
            self._forget(key)
            set_aside(self.path(key))
            raise
        reading.entries.extend(waiting)
        return reading

    def snapshot(self, key: str) -> tuple[int, bytes]:
        """Return the size of a transcript and the lines that wait to be appended to it."""
        backlog = self._backlogs.get(key) or _Backlog()
        return 0 if backlog.is_new else self.path(key).stat().st_size, backlog.data

    def sizes(self) -> dict[str, int]:
        """Return the size of every transcript by the name of its file."""
        with os.scandir(self.transcripts) as files:
            return {file.name: file.stat().st_size for file in files if file.name.endswith(".jsonl") and file.is_file()}

    def place(self, key: str, arrival: ImportFile) -> None:
        """Take in a transcript that came from elsewhere, and is durable already."""
        self._unmark()
        arrival.place(self.path(key))
        self._new_names.add(key)

    def delete(self, key: str) -> None:
        """Delete a transcript. `OSError` when the disk will not let it go."""
        self._forget(key)
        self._unmark()
        self.path(key).unlink(missing_ok=True)
        self._new_names.add(key)

    def close(self) -> None:
        """Close what is open. Nothing may be called afterwards."""
        self._writers.close_all()

    def begin_sync(self) -> Mapping[str, Path]:
        """Write what waits, and return the transcripts that are to be synced."""
        self._flush_trouble = None
        for key in list(self._unsynced.poisoned):
            self._rebuild(key)
        for key in list(self._backlogs):
            self._retry(key)
        return {key: self.path(key) for key in self._unsynced.begin()}

    def end_sync(self, failed: Mapping[str, OSError]) -> frozenset[str]:
        """Take note of what is durable now, and build anew what could not be synced: it is not to be trusted.

        Returns the keys whose names in the folder are to be synced next.
        """
        for key in self._unsynced.end(failed):
            self._flush_trouble = self.noted("flush_failed", failed[key], key)
            self._writers.close(key)
            self._rebuild(key)
        names, self._new_names = frozenset(self._new_names), set()
        return names

    def distrust(self, names: frozenset[str], trouble: OSError) -> None:
        """Have the files built anew whose names could not be made durable."""
        self._flush_trouble = self.noted("flush_failed", trouble, str(self.transcripts))
        self._new_names |= names
        for key in names:
            with suppress(FileNotFoundError):
                self._unsynced.distrust(key, self.path(key).stat().st_size)
                self._writers.close(key)

    def flush_failed(self, trouble: OSError, what: Path) -> None:
        self._flush_trouble = self.noted("flush_failed", trouble, str(what))

    def noted(self, event: str, trouble: OSError, what: str) -> str:
        """Log trouble when it begins; while it lasts, every try would fail the same way."""
        tell = log.debug if self.trouble else log.error
        tell(event, what=what, reason=str(trouble))
        return f"Sessions cannot be written to disk: {trouble}. They are kept in memory and tried again."

    def _write(self, key: str, data: bytes, *, is_new: bool) -> None:
        if key in self._unsynced.poisoned:
            raise OSError(errno.EIO, "The file could not be made durable")
        self._unmark()
        writer = self._writers.get(key, self.path(key), is_new=is_new)
        durable = writer.size
        try:
            writer.append(data)
        except OSError:
            self._writers.close(key)
            raise
        self._unsynced.keep(key, durable, data)
        if is_new:
            self._new_names.add(key)

    def _give_up(self, key: str) -> None:
        backlog = self._backlogs.pop(key, None)
        if backlog is not None:
            self.waiting -= len(backlog.data)
        if not self._backlogs:
            self._append_trouble = None

    def _forget(self, key: str) -> None:
        self._give_up(key)
        self._writers.close(key)
        self._unsynced.forget(key)

    def _retry(self, key: str) -> None:
        backlog = self._backlogs[key]
        try:
            self._write(key, backlog.data, is_new=backlog.is_new)
            self._give_up(key)
        except (FileNotFoundError, NewerTranscript):
            self._give_up(key)
            log.exception("entries_lost", session=key)
        except OSError as trouble:
            self._append_trouble = self.noted("append_failed", trouble, key)

    def _rebuild(self, key: str) -> None:
        poisoned = self._unsynced.poisoned[key]
        try:
            rebuild(self.path(key), poisoned.durable, poisoned.data, self.fsync)
        except FileNotFoundError:
            log.warning("transcript_vanished", session=key)
        except OSError as trouble:
            self._flush_trouble = self.noted("flush_failed", trouble, key)
            return
        del self._unsynced.poisoned[key]
        self._new_names.add(key)

    def _unmark(self) -> None:
        if self.is_marked_clean:
            index.unmark(self.index_path)
            self.is_marked_clean = False
