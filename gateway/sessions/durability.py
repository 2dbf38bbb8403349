"""Durability: brings what the journal holds to a disk that keeps it, lists it in the index, and lets go of files."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

import structlog

from gateway.sessions import flushing
from gateway.sessions.books import Books
from gateway.sessions.disk import Disk
from gateway.sessions.journal import Journal
from gateway.sessions.worker import Worker
from gateway.spool import SpoolFull

__all__ = ["Durability"]

log: structlog.stdlib.BoundLogger = structlog.get_logger()

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
            flushed = await self._syncing.submit(partial(flushing.flush, self._disk, self._writing.call, listing))
            if listing is not None:
                self._books.scopes.settle(flushed.encoded, listing.changed, listing.dropped)
            self._index_is_behind &= not flushed.is_written
            self.failures = self.failures + 1 if flushed.trouble else 0
            await self._forget_journaled(journaled, is_durable=flushed.trouble is None)

    async def end(self) -> None:
        """Flush for the last time; where nothing is missing, let the next start believe the index."""
        await self.flush()
        if not self._books.scopes.is_changed and not self._index_is_behind:
            await self._syncing.submit(partial(flushing.mark_clean, self._disk, self._books.scopes.sessions))

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
                await self._journal.forget({key: _ALL})
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
            flushing.sync_heir(self._disk, heir)
        self._writing.call(partial(self._disk.delete, key))

    async def _forget_journaled(self, journaled: dict[str, int], *, is_durable: bool) -> None:
        """Drop from the journal what a flush has made durable, or keep it in mind for the next one."""
        if self._journal is None or not journaled:
            return
        try:
            if is_durable:
                await self._journal.forget(journaled)
                return
        except SpoolFull:
            log.debug("journal_not_shortened", sessions=len(journaled))
        self._journaled = {**journaled, **self._journaled}

    def _listing(self) -> flushing.Listing:
        return flushing.Listing(
            members=self._books.scopes.members(),
            changed=self._books.scopes.changed(),
            dropped=self._books.scopes.dropped(),
            doomed=frozenset(self.doomed),
        )
