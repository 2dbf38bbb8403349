"""Durability: brings what the journal holds to a disk that keeps it, lists it in the index, and lets go of files."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import structlog

from config.files import fsync_directory
from gateway.sessions import index
from gateway.sessions.index import Books, EncodedScope, Scope
from gateway.sessions.journal import Journal
from gateway.sessions.storage import transcript
from gateway.sessions.storage.disk import Disk
from gateway.sessions.storage.threads import Worker
from gateway.spool import SpoolFull

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_T = TypeVar("_T")


class InDiskThread(Protocol):
    """Has a short piece of work done by the thread that owns the files, and waits for it."""

    def __call__(self, work: Callable[[], _T], /) -> _T: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Flushed:
    """`encoded` has the scopes that had changed, as they are now in the index, if that `is_written`."""

    encoded: Mapping[str, EncodedScope]
    is_written: bool
    trouble: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What the index is to say: `members` with what has `changed`, and without what was `dropped`."""

    members: Mapping[str, EncodedScope]
    changed: Mapping[str, Scope]
    dropped: frozenset[str]
    doomed: frozenset[str]


def flush(disk: Disk, in_disk_thread: InDiskThread, listing: Listing | None) -> Flushed:
    """Make the transcripts durable, then write the index, unless there is nothing to say."""
    before = disk.trouble
    failed = _sync(in_disk_thread(disk.begin_sync), disk)
    names = in_disk_thread(partial(disk.end_sync, failed))
    _sync_names(disk, in_disk_thread, names)
    encoded = {} if listing is None else {name: index.encode_scope(scope) for name, scope in listing.changed.items()}
    is_written = listing is not None and _write_index(disk, in_disk_thread, listing, encoded)
    if before and not disk.trouble:
        log.info("flush_recovered")
    return Flushed(encoded=encoded, is_written=is_written, trouble=disk.trouble)


def mark_clean(disk: Disk, sessions: int) -> None:
    """Let the next start believe the index without a look at the transcripts. Only after a flush that worked."""
    if disk.is_marked_clean or disk.trouble:
        return
    try:
        index.mark_clean(disk.index_path, disk.transcripts, sessions)
    except OSError as trouble:
        log.warning("clean_end_not_noted", reason=str(trouble))


def sync_heir(disk: Disk, heir: str) -> None:
    """Make durable what a session knows of another that is about to be deleted; the next flush tells of trouble."""
    try:
        transcript.sync(disk.path(heir), disk.fsync)
    except OSError as trouble:
        log.warning("number_not_passed_on", session=heir, reason=str(trouble))


def _sync(paths: Mapping[str, Path], disk: Disk) -> dict[str, OSError]:
    failed: dict[str, OSError] = {}
    for key, path in paths.items():
        try:
            transcript.sync(path, disk.fsync)
        except FileNotFoundError:
            continue  # It was deleted meanwhile, or has vanished: whoever wants it next finds out.
        except OSError as trouble:
            failed[key] = trouble
    return failed


def _sync_names(disk: Disk, in_disk_thread: InDiskThread, names: frozenset[str]) -> None:
    if not names:
        return
    try:
        fsync_directory(disk.transcripts, disk.fsync)
    except OSError as trouble:
        in_disk_thread(partial(disk.distrust, names, trouble))


def _write_index(
    disk: Disk, in_disk_thread: InDiskThread, listing: Listing, encoded: Mapping[str, EncodedScope]
) -> bool:
    try:
        index.write(disk.index_path, _listed(listing, encoded), listing.doomed, disk.fsync)
    except OSError as trouble:
        in_disk_thread(partial(disk.flush_failed, trouble, disk.index_path))
        return False
    return True


def _listed(listing: Listing, encoded: Mapping[str, EncodedScope]) -> Iterator[tuple[str, EncodedScope]]:
    """Yield what the index is to list, one by one: copying it all at once would keep other threads waiting."""
    for name, member in listing.members.items():
        if name not in encoded and name not in listing.dropped:
            yield name, member
    yield from encoded.items()


_ALL = 2**62
"""More than any seq."""


class Durability:
    """`writing` is the thread that owns the files; waiting for fsync is done by another, so that it delays no write."""

    def __init__(self, disk: Disk, books: Books, writing: Worker, journal: Journal | None) -> None:
        self._disk = disk
        self._books = books
        self._writing = writing
        self._journal = journal
        self._syncing = Worker("sessions-sync")
        self._flushing = asyncio.Lock()
        self._journaled: dict[str, int] = {}
        """The highest seq of each session that the journal holds, and that was handed to the disk."""
        self._index_is_behind = False
        self.doomed: set[str] = set()
        """Keys of deleted sessions whose files are still there."""
        self.failures = 0
        """Flushes that failed since the last one that worked."""

    def recovered(self, doomed: frozenset[str], *, is_news: bool) -> None:
        """Begin with what a start has found, which `is_news` to the index."""
        self.doomed = set(doomed)
        self._index_is_behind = is_news

    def owe(self, key: str, upto: int) -> None:
        """Keep in mind that the journal has a session's entries up to that seq, and the transcript may not."""
        self._journaled[key] = upto

    async def flush(self) -> None:
        """Make everything durable, and write the index if it has changed."""
        async with self._flushing:
            journaled, self._journaled = self._journaled, {}
            self._index_is_behind |= self._books.scopes.is_changed
            listing = self._listing() if self._index_is_behind else None
            flushed = await self._syncing.submit(partial(flush, self._disk, self._writing.call, listing))
            if listing is not None:
                self._books.scopes.settle(flushed.encoded, listing.changed, listing.dropped)
            self._index_is_behind &= not flushed.is_written
            self.failures = self.failures + 1 if flushed.trouble else 0
            await self._forget_journaled(journaled, is_durable=flushed.trouble is None)

    async def end(self) -> None:
        """Flush for the last time; where nothing is missing, let the next start believe the index."""
        await self.flush()
        if not self._books.scopes.is_changed and not self._index_is_behind:
            await self._syncing.submit(partial(mark_clean, self._disk, self._books.scopes.sessions))

    def stop(self) -> None:
        """End the thread once it has done what it was asked for."""
        self._syncing.stop()

    @asynccontextmanager
    async def held_still(self) -> AsyncIterator[Mapping[str, int]]:
        """Keep flushes waiting; give the sizes of the transcripts. The journal has all that they may lack by then."""
        async with self._flushing:
            yield await self._writing.submit(self._disk.sizes)

    async def delete_file(self, key: str, heir: str | None = None) -> None:
        """Delete a transcript, once what its `heir` knows is durable. What the disk will not let go is doomed."""
        try:
            if self._journal is not None:
                await self._journal.drop_entries({key: _ALL})
            await asyncio.to_thread(self._delete_file, key, heir)
        except (OSError, SpoolFull) as trouble:
            self.doomed.add(key)
            self._index_is_behind = True
            log.error("transcript_not_deleted", session=key, reason=str(trouble))  # noqa: TRY400 - says it all
        else:
            self._index_is_behind |= key in self.doomed
            self.doomed.discard(key)

    def _delete_file(self, key: str, heir: str | None) -> None:
        if heir is not None:
            sync_heir(self._disk, heir)
        self._writing.call(partial(self._disk.delete, key))

    async def _forget_journaled(self, journaled: dict[str, int], *, is_durable: bool) -> None:
        """Drop from the journal what a flush has made durable, or keep it in mind for the next one."""
        if self._journal is None or not journaled:
            return
        try:
            if is_durable:
                await self._journal.drop_entries(journaled)
                return
        except SpoolFull:
            log.debug("journal_not_shortened", sessions=len(journaled))
        self._journaled = {**journaled, **self._journaled}

    def _listing(self) -> Listing:
        return Listing(
            members=self._books.scopes.members(),
            changed=self._books.scopes.changed(),
            dropped=self._books.scopes.dropped(),
            doomed=frozenset(self.doomed),
        )
