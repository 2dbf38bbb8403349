"""Sessions on their way out of here, or in from elsewhere: whole transcripts, line by line, as they are."""

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator

from gateway.errors import Refused
from gateway.sessions import entries as e
from gateway.sessions.index import Scope
from gateway.sessions.keys import parse_key
from gateway.sessions.session import SessionMeta, meta_of
from gateway.sessions.storage.threads import Reader
from gateway.sessions.storage.transfer_files import BLOCK, ExportFile, ImportFile
from gateway.sessions.store import SessionStore

__all__ = ["Transfer", "join_into_blocks"]


class Transfer:
    def __init__(self, ledger: SessionStore, reader: Reader) -> None:
        self._ledger = ledger
        self._reader = reader

    async def lines_out(self, key: str) -> AsyncGenerator[bytes, None]:
        """Yield what the transcript holds and what waits to be appended to it, as of the first line."""
        self._ledger.books.state(key)
        try:
            departure, waiting = await self._departure(key)
        except FileNotFoundError as trouble:
            self._ledger.books.state(key)  # Where it was deleted meanwhile, this says so.
            raise self._ledger.ends.gone(key, "is gone from the disk") from trouble
        if departure is not None:
            try:
                while lines := await self._reader.do(departure.lines):
                    for line in lines:
                        yield line
            finally:
                departure.close()
        for line in waiting.splitlines(keepends=True):
            yield line

    async def _departure(self, key: str) -> tuple[ExportFile | None, bytes]:
        size, waiting = await self._ledger.on_disk(self._ledger.disk.snapshot, key)
        if not size:
            return None, waiting
        return await self._reader.do(ExportFile, self._ledger.disk.path(key), size), waiting

    async def lines_in(self, scope: str | None, lines: AsyncIterable[bytes]) -> SessionMeta:
        """Take in what `lines_out` gave elsewhere, or in another time."""
        self._ledger.insist_on_recovery()
        arrival = await self._reader.do(ImportFile, self._ledger.disk.transcripts)
        try:
            async for data in join_into_blocks(lines):
                await self._reader.do(arrival.write, data)
            header, state = await self._reader.do(arrival.finish)
            self._insist_on_place(scope, header)
            was = self._ledger.books.scopes[header.scope]
            self._ledger.books.update(header.key, state, is_active=was.active_session_key is None)
            await self._place(arrival, header.key, was)
        finally:
            await self._reader.do(arrival.close)
        return meta_of(header.key, self._ledger.books.state(header.key))

    def _insist_on_place(self, scope: str | None, header: e.Header) -> None:
        if scope is not None and header.scope != scope:
            raise Refused(f"This is a session of another chat ({header.scope}), so it cannot be imported here.")
        if header.key in self._ledger.books.sessions(header.scope) or header.key in self._ledger.durability.doomed:
            raise Refused(f"There is a session {header.number} there already. Delete it first, to import this one.")

    async def _place(self, arrival: ImportFile, key: str, was: Scope) -> None:
        try:
            await self._ledger.on_disk(self._ledger.disk.place, key, arrival)
        except OSError as trouble:
            self._ledger.ends.forget(key)
            raise Refused(f"The session could not be stored: {trouble.strerror}.") from trouble
        active = was.active_session_key
        if active is not None and self._ledger.books.state(key).epoch > was.epoch:
            # By its epoch the arrival would pass for the active one, should the index ever be lost.
            found = self._ledger.books.scopes[parse_key(key)[0]]
            step = e.Activated(key=active, epoch=found.epoch + 1, highest_number=found.highest_number)
            await self._ledger.append(active, [step])


async def join_into_blocks(pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Join short pieces and cut long ones into blocks of `BLOCK` bytes. The last block may be shorter."""
    waiting = bytearray()
    async for piece in pieces:
        waiting += piece
        while len(waiting) >= BLOCK:
            yield bytes(waiting[:BLOCK])
            del waiting[:BLOCK]
    if waiting:
        yield bytes(waiting)
