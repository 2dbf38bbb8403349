"""Writes transcripts. Lines that a full disk refuses stay in memory until they can be written.

All methods run in one thread, in the order of the calls. Only fsync runs in another thread: see `flush.py`.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import structlog
from msgspec import Struct

from config.files import Fsync, fsync_directory
from gateway.bounded import BoundedDict
from gateway.private_files import (
    APPEND,
    NotAFile,
    close_to_others,
    open_private,
    opened,
    prepare_private_folder,
    require_file,
    write_all,
)
from gateway.sessions import index
from gateway.sessions.entries import Entry
from gateway.sessions.keys import file_name
from gateway.sessions.storage import transcript
from gateway.sessions.storage.archive import ArchiveFiles
from gateway.sessions.storage.codec import NewerTranscript, UnreadableTranscript, decode, refuse_newer
from gateway.sessions.storage.tail import NeverStop, StopCondition
from gateway.sessions.storage.transcript import (
    TranscriptTail,
    first_line,
    rebuild,
    repair_tail,
    set_aside,
    starts_with_header,
)
from gateway.sessions.storage.transfer_files import ImportFile
from gateway.sessions.storage.unsynced import UnsyncedBytes

log: structlog.stdlib.BoundLogger = structlog.get_logger()

MAX_OPEN_FILES = 256


# Errors that mean that a transcript is gone, or is not one. The lines for it cannot wait.
LOST = (FileNotFoundError, NotAFile, NewerTranscript, UnreadableTranscript)


class TranscriptWriter:
    """A transcript that is open for appending. The caller closes it."""

    def __init__(self, path: Path, *, is_new: bool = False) -> None:
        """Open the file and repair its tail.

        Raises `NewerTranscript`, and unless `is_new` also `FileNotFoundError` and `UnreadableTranscript`.
        """
        if is_new:
            # Recovery did not find this file, so it was put there since then, for example by a person. Keep it.
            with suppress(FileNotFoundError):
                status = path.lstat()
                if status.st_size > 0 or not stat.S_ISREG(status.st_mode):
                    set_aside(path)
        self._name = str(path)
        self._descriptor = open_private(path, APPEND | (os.O_CREAT if is_new else 0))
        try:
            close_to_others(path, self._descriptor)
            refuse_newer(path, first_line(self._descriptor))
            if not is_new and not starts_with_header(path, self._descriptor):
                transcript.read(path)  # Raises `UnreadableTranscript` unless another line names the session.
            self.size = repair_tail(path, self._descriptor)
            self._inode = os.fstat(self._descriptor).st_ino
        except BaseException:  # The caller has no object to close yet.
            self.close()
            raise

    def is_current(self) -> bool:
        """Return False if the file was replaced, removed or changed by another program."""
        try:
            status = os.stat(self._name, follow_symlinks=False)  # noqa: PTH116 - runs on each append; this is fastest.
        except FileNotFoundError:
            return False
        return status.st_ino == self._inode and status.st_size == self.size

    def restore(self, path: Path, fsync: Fsync) -> bool:
        """Give the file its name back if there is no file of that name. Return False if there is one.

        The descriptor still reaches the content of a file that was deleted or moved away.
        """
        try:
            require_file(path)
        except NotAFile:
            set_aside(path)
        if path.exists():
            return False
        rebuild(path, self.size, b"", fsync, source=self._descriptor)
        return True

    def append(self, data: bytes) -> None:
        """Append whole lines: all of them, or none and raise `OSError`."""
        try:
            write_all(self._descriptor, data)
        except OSError:
            # Remove a part that was written. If this fails too, the next one who opens the file repairs its tail.
            with suppress(OSError):
                os.ftruncate(self._descriptor, self.size)
            raise
        self.size += len(data)

    def close(self) -> None:
        os.close(self._descriptor)


class _Backlog(Struct):
    """Lines that the disk has refused so far."""

    data: bytes = b""
    is_new: bool = False


class Disk:
    """The files of one sessions folder. `trouble` and `waiting` may be read from any thread.

    `fsync` is `os.fsync`, or a fake in tests.
    """

    def __init__(self, directory: Path, *, fsync: Fsync = os.fsync) -> None:
        self.index_path = directory / "index.json"
        self.transcripts = directory / "transcripts"
        self.archive = ArchiveFiles(directory / "archive", fsync)
        self.fsync = fsync
        # Bytes that the disk has refused so far.
        self.waiting = 0
        self.is_marked_clean = True
        self.directory = directory
        self._writers = BoundedDict[str, TranscriptWriter](MAX_OPEN_FILES, on_drop=lambda _, writer: writer.close())
        self._backlogs: dict[str, _Backlog] = {}
        self._unsynced = UnsyncedBytes()
        self._new_names: set[str] = set()
        self._append_trouble: str | None = None
        self._flush_trouble: str | None = None

    @property
    def trouble(self) -> str | None:
        """The current problem as a sentence for the operator, or None."""
        return self._append_trouble or self._flush_trouble

    def prepare(self) -> None:
        """Create the folders. Take away the access of other users, and remove temporary files of a killed daemon."""
        prepare_private_folder(self.directory)
        prepare_private_folder(self.transcripts)
        self.archive.prepare()
        with suppress(OSError), opened(self.index_path):
            pass
        for leftover in self.directory.glob(f".{self.index_path.stem}.*"):  # Of the index and of its clean mark.
            with suppress(IsADirectoryError):
                leftover.unlink()

    def path(self, key: str) -> Path:
        return self.transcripts / file_name(key)

    def append(self, key: str, data: bytes, *, is_new: bool = False) -> None:
        """Append lines to a transcript. If the disk refuses them, they wait for the next append or flush, in order.

        Raises one of `LOST` if the transcript cannot be used any more. A file that is not a transcript is set aside.
        """
        # Lines that wait come first, together with the new ones: a later line must not be written before them.
        backlog = self._backlogs.get(key)
        try:
            if backlog is None:
                self._write(key, data, is_new=is_new)
            else:
                self._write(key, backlog.data + data, is_new=backlog.is_new)
                self._drop_backlog(key)
        except LOST as error:
            self._drop_backlog(key)
            if isinstance(error, UnreadableTranscript):
                set_aside(self.path(key))
            raise
        except OSError as error:
            backlog = self._backlogs.setdefault(key, _Backlog(is_new=is_new))
            backlog.data += data
            self.waiting += len(data)
            self._append_trouble = self._log_trouble("append_failed", error, key)

    def _write(self, key: str, data: bytes, *, is_new: bool) -> None:
        # Until the next flush has rebuilt the file, its lines wait as if the disk were full.
        if key in self._unsynced.distrusted:
            raise OSError(errno.EIO, "The file could not be fsynced")
        self.remove_clean_mark()
        writer = self._writers.get(key)
        if writer is not None and writer.is_current():
            self._writers.move_to_end(key)
        else:
            self._restore(key)
            self._close_writer(key)
            writer = self._writers[key] = TranscriptWriter(self.path(key), is_new=is_new)
        durable = writer.size
        try:
            writer.append(data)
        except OSError:
            self._close_writer(key)
            raise
        self._unsynced.add(key, durable, data)
        if is_new:
            self._new_names.add(key)

    def _restore(self, key: str) -> bool:
        """Restore a transcript that was deleted, if it is still open. Return whether it was."""
        writer = self._writers.get(key)
        if writer is None or not writer.restore(self.path(key), self.fsync):
            return False
        self._close_writer(key)
        self._new_names.add(key)
        return True

    def recreate(self, key: str, data: bytes) -> None:
        """Write a transcript whose file is lost once more. A file in its place is set aside."""
        self._forget(key)
        self.remove_clean_mark()
        with suppress(FileNotFoundError):
            set_aside(self.path(key))
        rebuild(self.path(key), 0, data, self.fsync)
        self._new_names.add(key)

    def replace_end(self, key: str, keep: int, rest: bytes) -> None:
        """Replace everything behind the first `keep` bytes of a transcript with `rest`."""
        self.remove_clean_mark()
        self._close_writer(key)
        rebuild(self.path(key), keep, rest, self.fsync)
        self._new_names.add(key)

    def read(self, key: str, stop: StopCondition | None = None, *, max_bytes: int | None = None) -> TranscriptTail:
        """Read the end of a transcript, and the lines that wait to be appended. An unreadable file is set aside."""
        stop = stop or NeverStop()
        backlog = self._backlogs.get(key) or _Backlog()
        waiting: list[Entry] = [decode(line) for line in backlog.data.split(b"\n")[:-1]]
        for entry in reversed(waiting):
            stop.add(entry)
        if backlog.is_new:
            return TranscriptTail(entries=waiting, size=0, taken=len(backlog.data))
        self._restore(key)
        try:
            tail = transcript.read(self.path(key), stop, max_bytes=max_bytes)
        except UnreadableTranscript:
            self._forget(key)
            set_aside(self.path(key))
            raise
        tail.entries.extend(waiting)
        return tail

    def snapshot(self, key: str) -> tuple[int, bytes]:
        """Return the size of a transcript, and the lines that wait to be appended to it."""
        backlog = self._backlogs.get(key) or _Backlog()
        self._restore(key)
        return 0 if backlog.is_new else self.path(key).stat().st_size, backlog.data

    def whole_size(self, key: str) -> int:
        """Return the size of a transcript. Raises `OSError` unless the file has all lines of the session."""
        if key in self._backlogs or key in self._unsynced.distrusted:
            raise OSError(errno.EAGAIN, "The disk has refused some of its lines")
        return self.path(key).stat().st_size

    def sizes(self) -> dict[str, int]:
        """Return the size of every transcript by file name."""
        with os.scandir(self.transcripts) as files:
            return {
                file.name: file.stat(follow_symlinks=False).st_size
                for file in files
                if file.name.endswith(".jsonl") and file.is_file(follow_symlinks=False)
            }

    def place(self, key: str, arrival: ImportFile) -> None:
        """Move an imported transcript, which is durable already, to its place."""
        self.remove_clean_mark()
        arrival.place(self.path(key))
        self._new_names.add(key)

    def place_and_sync(self, key: str, arrival: ImportFile) -> None:
        """Move a transcript that comes from the archive to its place, and fsync the folder."""
        # A transcript that could not be deleted when the session was archived is in the way.
        self.path(key).unlink(missing_ok=True)
        self.place(key, arrival)
        fsync_directory(self.transcripts, self.fsync)

    def unlink(self, key: str) -> None:
        """Delete a transcript. Raises `OSError` if the disk refuses."""
        # Forget the lines that wait, too: a retry would create the file again.
        self._forget(key)
        self.remove_clean_mark()
        self.path(key).unlink(missing_ok=True)
        self._new_names.add(key)

    def delete(self, key: str) -> None:
        """Delete a transcript, the damaged pieces that were set aside, and an archived copy. Raises `OSError`."""
        self.unlink(key)
        for path in transcript.all_files(self.path(key)):
            path.unlink(missing_ok=True)
        self.archive.delete(key)

    def remove_clean_mark(self) -> None:
        """Remove the clean mark of the index before the first change, so that no start trusts an outdated index."""
        if self.is_marked_clean:
            index.remove_clean_mark(self.index_path)
            self.is_marked_clean = False

    def close(self) -> None:
        """Close the open files. Call nothing afterwards."""
        for key in list(self._writers):
            self._close_writer(key)

    def begin_sync(self) -> Mapping[str, Path]:
        """Retry what failed before, and return the transcripts to fsync."""
        self._flush_trouble = None
        for key in list(self._unsynced.distrusted):
            self._rebuild(key)
        for key, backlog in list(self._backlogs.items()):
            try:
                self._write(key, backlog.data, is_new=backlog.is_new)
                self._drop_backlog(key)
            except LOST:
                self._drop_backlog(key)
                log.exception("entries_lost", session=key)
            except OSError as error:
                self._append_trouble = self._log_trouble("append_failed", error, key)
        return {key: self.path(key) for key in self._unsynced.begin_sync()}

    def end_sync(self, failed: Mapping[str, OSError]) -> frozenset[str]:
        """Forget the bytes that are durable now, and rebuild the files whose fsync failed.

        Returns the keys of the files whose names in the folder have to be fsynced next.
        """
        for key in self._unsynced.end_sync(failed):
            self._flush_trouble = self._log_trouble("flush_failed", failed[key], key)
            self._close_writer(key)
            self._rebuild(key)
        names, self._new_names = frozenset(self._new_names), set()
        return names

    def distrust(self, names: frozenset[str], error: OSError) -> None:
        """Mark files for a rebuild: the fsync of the folder failed, so their names may not be durable."""
        self.flush_failed(error, self.transcripts)
        # A rebuild renames a new file into place, and the fsync of the folder is tried again after it.
        self._new_names |= names
        for key in names:
            with suppress(FileNotFoundError):
                self._unsynced.distrust(key, self.path(key).stat().st_size)
                self._close_writer(key)

    def flush_failed(self, error: OSError, path: Path) -> None:
        self._flush_trouble = self._log_trouble("flush_failed", error, str(path))

    def _log_trouble(self, event: str, error: OSError, what: str) -> str:
        """Log a failure as an error the first time only: while it lasts, every try fails the same way."""
        report = log.debug if self.trouble else log.error
        report(event, what=what, reason=str(error))
        return f"Sessions can't be written to disk: {error}. They are kept in memory, and Gatehouse keeps trying."

    def _rebuild(self, key: str) -> None:
        distrusted = self._unsynced.distrusted[key]
        try:
            rebuild(self.path(key), distrusted.durable, b"".join(distrusted.parts), self.fsync)
        except FileNotFoundError:
            log.warning("transcript_vanished", session=key)
        except OSError as error:
            self._flush_trouble = self._log_trouble("flush_failed", error, key)
            return
        del self._unsynced.distrusted[key]
        self._new_names.add(key)

    def _drop_backlog(self, key: str) -> None:
        backlog = self._backlogs.pop(key, None)
        if backlog is not None:
            self.waiting -= len(backlog.data)
        if not self._backlogs:
            self._append_trouble = None

    def _close_writer(self, key: str) -> None:
        writer = self._writers.pop(key, None)
        if writer is not None:
            writer.close()

    def _forget(self, key: str) -> None:
        self._drop_backlog(key)
        self._close_writer(key)
        self._unsynced.forget(key)
