"""The flush: fsyncs transcripts, writes the index, and drops durable entries from the journal. Also deletes files.

Between two flushes the journal (the spool) alone guarantees that entries survive a power cut. The flush after the
deletion of a session removes the last copies of its text.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

import structlog

from config.files import fsync_directory
from gateway.aio import WorkerThread
from gateway.private_files import delete_copies
from gateway.sessions import index
from gateway.sessions.index import EncodedScope, IndexSnapshot, SessionIndex
from gateway.sessions.keys import file_name
from gateway.sessions.storage import transcript
from gateway.sessions.storage.disk import Disk
from gateway.sessions.storage.journal import Journal
from gateway.sessions.storage.search_index import SearchIndex
from gateway.spool import SpoolBroken, SpoolUnavailable

log: structlog.stdlib.BoundLogger = structlog.get_logger()


class Flusher:
    """`disk_thread` owns the files. A second thread waits for fsync, so that a slow fsync delays no append.

    It does nothing until `start` is called.
    """

    def __init__(
        self,
        disk: Disk,
        session_index: SessionIndex,
        disk_thread: WorkerThread,
        journal: Journal | None,
        search_index: SearchIndex,
    ) -> None:
        # By session, the highest seq that the journal has and that was handed to the disk since the last flush.
        self.unflushed: dict[str, int] = {}
        # Keys of removed sessions whose files are not deleted yet.
        self.undeleted: set[str] = set()
        # Keys of deleted sessions whose files are gone. The next flush removes the last copies of their text.
        self.unpurged: set[str] = set()
        # Flushes that failed since the last one that worked.
        self.failures = 0
        self._disk = disk
        self._index = session_index
        self._disk_thread = disk_thread
        self._sync_thread = WorkerThread("sessions-sync")
        # The search index has a thread of its own, because building it takes long.
        self._search_thread = WorkerThread("sessions-search")
        self._search_index = search_index
        # Keys of sessions that were archived since the last flush. Their last lines may not be indexed yet.
        self._archived: set[str] = set()
        self._journal = journal
        self._flushing = asyncio.Lock()
        self._is_index_outdated = False
        self._is_started = False

    def start(self, undeleted: Collection[str], *, is_index_outdated: bool) -> None:
        """Start with the results of recovery."""
        self.undeleted = set(undeleted)
        self._is_index_outdated = is_index_outdated
        self._is_started = True

    async def flush(self) -> None:
        """Fsync all transcripts, and write the index if it has changed.

        A failure is logged and reported by `Disk.trouble`; the next flush tries again.
        """
        if not self._is_started:
            return
        # Appends go on during a flush. Nothing of them may be dropped from the journal by mistake:
        # 1. Take `unflushed` first. Lines of later appends are counted in the new dict.
        # 2. The lines that it counts are in the queue of the disk thread already, so `begin_sync` comes after them.
        # 3. Only when fsync, the folder and the index have all succeeded, drop these entries from the journal.
        async with self._flushing:
            unflushed, self.unflushed = self.unflushed, {}
            unpurged = frozenset(self.unpurged)
            self._is_index_outdated |= self._index.is_changed
            snapshot = self._index.snapshot() if self._is_index_outdated else None
            flushed = await self._sync_thread.submit(self._write_files, snapshot, frozenset(self.undeleted))
            if snapshot is not None:
                self._index.settle(snapshot, flushed.encoded)
                self._is_index_outdated = not flushed.is_index_written
            self.failures = 0 if flushed.is_complete else self.failures + 1
            is_dropped = flushed.is_complete and await self._drop_entries(unflushed)
            if not is_dropped:
                self.unflushed = {**unflushed, **self.unflushed}
            elif unpurged:
                await self._purge(unpurged)
            archived, self._archived = self._archived, set()
            self._update_search_index({*flushed.keys, *archived})

    async def _drop_entries(self, unflushed: Mapping[str, int]) -> bool:
        if self._journal is None or not unflushed:
            return True
        try:
            await self._journal.drop_entries(unflushed)
        except SpoolUnavailable:
            log.debug("journal_not_shortened", sessions=len(unflushed))
            return False
        return True

    def _update_search_index(self, keys: Collection[str]) -> None:
        update: Callable[[], None]
        if not self._search_index.is_complete:
            update = self._search_index.update_all
        elif keys:
            update = partial(self._search_index.update, keys)
        else:
            return
        self._search_thread.post(update, lambda error: log.error("search_index_failed", reason=str(error)))

    async def _purge(self, deleted: frozenset[str]) -> None:
        """Remove the last copies of the text of deleted sessions. Neither a file nor the index has it any more."""
        try:
            names = [key.encode() for key in deleted]
            await self._sync_thread.submit(delete_copies, self._disk.index_path, names)
            await self._sync_thread.submit(self._search_index.purge, [file_name(key) for key in deleted])
            self.unpurged -= set(deleted if self._journal is None else await self._journal.purge(deleted))
        except (OSError, SpoolUnavailable, SpoolBroken) as error:  # The next flush tries again.
            log.warning("deleted_text_not_purged", sessions=len(deleted), reason=str(error))

    def _write_files(self, snapshot: IndexSnapshot | None, undeleted: frozenset[str]) -> "_Flushed":
        """Do the blocking part of a flush, in the sync thread."""
        disk = self._disk
        before = disk.trouble
        # Lines that the disk still refuses now may be written during this flush, but not be fsynced by it.
        paths, trouble = self._disk_thread.call(lambda: (disk.begin_sync(), disk.trouble))
        failed: dict[str, OSError] = {}
        for key, path in paths.items():
            try:
                transcript.sync(path, disk.fsync)
            except FileNotFoundError:
                continue  # It was deleted since, or has disappeared. The next one who uses it finds out.
            except OSError as error:
                failed[key] = error
        names = self._disk_thread.call(partial(disk.end_sync, failed))
        if names:
            try:
                fsync_directory(disk.transcripts, disk.fsync)
            except OSError as error:
                self._disk_thread.call(partial(disk.distrust, names, error))
        encoded: dict[str, EncodedScope] = {}
        is_written = False
        if snapshot is not None:
            encoded = {name: index.encode_scope(scope) for name, scope in snapshot.changed.items()}
            try:
                index.write(disk.index_path, _all_scopes(snapshot, encoded), undeleted, disk.fsync)
                is_written = True
            except OSError as error:
                self._disk_thread.call(partial(disk.flush_failed, error, disk.index_path))
        if before and not disk.trouble:
            log.info("flush_recovered")
        is_complete = trouble is None and disk.trouble is None
        return _Flushed(encoded=encoded, is_index_written=is_written, is_complete=is_complete, keys=[*paths])

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[Mapping[str, int]]:
        """Hold flushes back, and yield the size of each transcript by file name.

        The journal has every entry that the transcripts lack up to these sizes, as long as no flush drops it.
        """
        async with self._flushing:
            yield await self._disk_thread.submit(self._disk.sizes)

    async def delete_transcript(self, key: str, successor: str | None = None, *, is_archived: bool = False) -> bool:
        """Delete the files of a session, after an fsync of the `successor` that now has its numbers.

        The journal has no entries of the session any more: a replay would create the file again. If the session
        `is_archived`, only its transcript is deleted. Returns False, after a log line, if the disk refuses.
        """
        self._is_index_outdated = True
        delete = self._disk.unlink if is_archived else self._disk.delete
        try:
            await asyncio.to_thread(self._delete, partial(delete, key), successor)
        except OSError as error:
            log.error("transcript_not_deleted", session=key, reason=str(error))  # noqa: TRY400 - the reason is enough.
            return False
        if is_archived:
            self._archived.add(key)
        return True

    def _delete(self, delete: Callable[[], None], successor: str | None) -> None:
        if successor is not None:
            try:
                # The disk thread returns the path once it has written the lines that were posted before.
                transcript.sync(self._disk_thread.call(partial(self._disk.path, successor)), self._disk.fsync)
            except OSError as error:  # The next flush reports it.
                log.warning("highest_number_not_persisted", session=successor, reason=str(error))
        self._disk_thread.call(delete)

    async def finish(self) -> None:
        """Flush for the last time. If nothing is left to write, mark the index clean."""
        await self.flush()
        if self._is_started and not self._index.is_changed and not self._is_index_outdated:
            await self._sync_thread.submit(self._mark_clean, self._index.session_count)

    def stop(self) -> None:
        """End the threads. This blocks."""
        self._search_index.close()
        self._search_thread.stop()
        self._sync_thread.stop()

    def _mark_clean(self, session_count: int) -> None:
        if self._disk.is_marked_clean or self._disk.trouble:
            return
        try:
            index.mark_clean(self._disk.index_path, self._disk.transcripts, session_count)
        except OSError as error:
            log.warning("clean_shutdown_mark_failed", reason=str(error))


class _Flushed(NamedTuple):
    encoded: Mapping[str, EncodedScope]
    """The scopes that had changed, as they are in the index now."""
    is_index_written: bool
    is_complete: bool
    """Everything that was handed to the disk before the flush is durable."""
    keys: Sequence[str]
    """The sessions whose transcripts have changed."""


def _all_scopes(snapshot: IndexSnapshot, changed: Mapping[str, EncodedScope]) -> Iterator[tuple[str, EncodedScope]]:
    # One by one: copying a large index at once would hold the interpreter, and with it the event loop, for too long.
    for name, scope in snapshot.encoded.items():
        if name not in changed and name not in snapshot.dropped:
            yield name, scope
    yield from changed.items()
