"""Taking a backup while messages are answered: all of it is of one moment.

Transcripts only grow, so their sizes at that moment are enough to copy them later, at leisure. What they lack by then
is in the journal, and the copy of the spool has it: no flush may shorten it in between.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path
from uuid import uuid4

import msgspec
import structlog

from gateway import __version__
from gateway.backup.layout import CONFIG, INDEX, MANIFEST, SECRET_FILES, SPOOL, TRANSCRIPTS, TREES, Manifest
from gateway.backup.packing import Packing
from gateway.errors import Refused
from gateway.sessions import SessionManager
from gateway.spool import Spool

__all__ = ["Backup"]

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_BLOCK = 1024 * 1024
_COPY = ".backup-"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    spool: Path
    index: bytes
    transcripts: Mapping[str, int]
    at: datetime


class Backup:
    """Takes backups of one data directory, for whoever owns it at the time. One at a time."""

    def __init__(
        self,
        directory: Path,
        *,
        spool: Spool,
        sessions: SessionManager,
        now: Callable[[], datetime],
        config: Path | None = None,
    ) -> None:
        self.config = config
        """The configuration file, which belongs to a backup with secrets."""
        self._directory = directory
        self._spool = spool
        self._sessions = sessions
        self._now = now
        self._turn = asyncio.Lock()

    async def blocks(self, *, has_secrets: bool = False) -> AsyncIterator[bytes]:
        """Yield a tar archive; `Refused` when it cannot be made."""
        if self._turn.locked():
            raise Refused("Another backup is being taken; wait for its end.")
        async with self._turn, self._moment() as moment:
            pieces = self._pieces(moment, has_secrets=has_secrets)
            while block := await _finished(asyncio.to_thread(_block, pieces)):
                yield block
        log.info("backup_taken", sessions=len(moment.transcripts), with_secrets=has_secrets)

    @asynccontextmanager
    async def _moment(self) -> AsyncIterator[_Moment]:
        await self._sessions.flush()  # Nothing depends on it, but it keeps the copy of the spool short.
        copy = self._directory / f"{_COPY}{uuid4().hex}"
        await asyncio.to_thread(_clear, self._directory)
        try:
            async with self._sessions.held_still() as transcripts:
                index = await asyncio.to_thread(_read, self._directory / INDEX)
                await self._spool.copy_to(copy)
                at = self._now()
            yield _Moment(spool=copy, index=index, transcripts=transcripts, at=at)
        except (sqlite3.Error, OSError) as trouble:
            raise Refused(f"The backup could not be made: {trouble}.") from trouble
        finally:
            await asyncio.to_thread(_clear, self._directory)

    def _pieces(self, moment: _Moment, *, has_secrets: bool) -> Iterator[bytes]:
        packing = Packing()
        yield from packing.file(SPOOL, moment.spool)
        if moment.index:
            yield from packing.data(INDEX, moment.index)
        for name, size in sorted(moment.transcripts.items()):
            yield from packing.file(f"{TRANSCRIPTS}/{name}", self._directory / TRANSCRIPTS / name, size)
        yield from chain.from_iterable(packing.tree(name, self._directory / name) for name in TREES)
        if has_secrets:
            yield from self._secrets(packing)
        manifest = Manifest(
            gatehouse=__version__,
            taken_at=moment.at.isoformat(),
            has_secrets=has_secrets,
            members=dict(packing.members),
            skipped=[name.encode(errors="replace").decode() for name in packing.skipped],
        )
        yield from packing.data(MANIFEST, msgspec.json.encode(manifest))
        yield from packing.end()

    def _secrets(self, packing: Packing) -> Iterator[bytes]:
        for name in SECRET_FILES:
            yield from packing.file(name, self._directory / name)
        if self.config is not None:
            yield from packing.data(CONFIG, _read(self.config))


def _block(pieces: Iterator[bytes]) -> bytes:
    """Put the next pieces together; empty at the end."""
    block = bytearray()
    for piece in pieces:
        block += piece
        if len(block) >= _BLOCK:
            break
    return bytes(block)


async def _finished(work: Coroutine[None, None, bytes]) -> bytes:
    """Wait for a thread's work even when cancelled: what it reads from is about to be cleared away."""
    working = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(working)
    finally:
        await asyncio.wait({working})


def _read(path: Path) -> bytes:
    with suppress(FileNotFoundError):
        return path.read_bytes()
    return b""


def _clear(directory: Path) -> None:
    """Remove the copy of the spool, and what a backup that was cut has left."""
    for leftover in directory.glob(f"{_COPY}*"):
        leftover.unlink(missing_ok=True)
