"""Export and import of whole sessions, as the lines of their transcripts, also under another key; reading entries."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from functools import partial

import msgspec

from gateway.aio import WorkerThread
from gateway.errors import HeldElsewhere, Refused
from gateway.sessions import entries as e
from gateway.sessions.entries import Entry
from gateway.sessions.keys import parse_key
from gateway.sessions.session import SessionMeta, meta_of
from gateway.sessions.storage.codec import DamagedEntry, decode, encode
from gateway.sessions.storage.interface import ExportReader
from gateway.sessions.storage.transfer_files import BLOCK
from gateway.sessions.store import SessionStore
from gateway.spool import Operation, SpoolUnavailable


async def export_lines(
    store: SessionStore, reader: WorkerThread, key: str, *, after: int = 0
) -> AsyncGenerator[bytes, None]:
    """Yield the lines of a transcript, and those that wait to be appended, as of the first call.

    With `after`, most entries up to that seq are left out.
    """
    store.index.require(key)
    export: ExportReader | None = None
    try:
        end, waiting = await store.storage_thread.submit(store.storage.snapshot, key)
        if end:
            opening = reader.submit(store.storage.export, key, end, after)
            try:
                export = await asyncio.shield(opening)
            except asyncio.CancelledError:  # The thread opens it all the same.
                opening.add_done_callback(_close_opened)
                raise
    except OSError as error:
        store.index.require(key)  # Raises if the session was deleted in the meantime.
        raise store.cache.refuse_lost(key, error) from error
    if export is not None:
        try:
            while lines := await reader.submit(export.lines):
                for line in lines:
                    yield line
        except FileNotFoundError as error:  # A database has no rows of it any more.
            store.index.require(key)
            raise store.cache.refuse_lost(key, error) from error
        finally:
            export.close()
    for line in waiting.splitlines(keepends=True):
        yield line


def _close_opened(opening: asyncio.Future[ExportReader]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


async def entries_since(store: SessionStore, reader: WorkerThread, key: str, seq: int) -> AsyncGenerator[Entry, None]:
    """Yield the entries after `seq` from the cache, or from the transcript if that reaches further back."""
    if store.index.require(key).seq <= seq:
        return
    cached = store.cache.entries_since(key, seq)
    if cached is not None:
        for entry in cached:
            yield entry
        return
    async with aclosing(entries_after(export_lines(store, reader, key, after=seq), seq)) as entries:
        async for entry in entries:
            yield entry


async def entries_after(blocks: AsyncGenerator[bytes, None], seq: int) -> AsyncGenerator[Entry, None]:
    """Yield the entries after `seq` of a transcript. Damaged lines, and those that were written twice, are left out."""
    async with aclosing(decoded(blocks)) as entries:
        async for entry in entries:
            if entry.seq > seq:
                seq = entry.seq
                yield entry


async def decoded(blocks: AsyncGenerator[bytes, None]) -> AsyncGenerator[Entry, None]:
    """Yield the entries of a transcript, except damaged ones. `blocks` end anywhere, and are closed at the end."""
    async with aclosing(blocks), aclosing(split_lines(blocks)) as lines:
        async for line in lines:
            try:
                yield decode(line)
            except DamagedEntry:
                continue


async def import_lines(
    store: SessionStore,
    reader: WorkerThread,
    scope: str | None,
    lines: AsyncIterable[bytes],
    require_here: Callable[[str], None],
    *,
    activates: bool = False,
    displacing: Callable[[str], Sequence[Operation]] = lambda _: (),
) -> SessionMeta:
    """Add a session from exported lines. Raises `Refused` if it does not fit here, and the error of `require_here`.

    It becomes the active session if its scope has none. With `activates`, it also does if its epoch is the highest of
    the scope. Then the result of `displacing` for the session that was active is committed with it.
    """
    store.require_recovery()
    arrival = await reader.submit(store.storage.open_import)
    try:
        async for block in join_into_blocks(lines):
            await reader.submit(arrival.write, block)
        header, state = await reader.submit(arrival.finish)
        key = header.key
        if key in store.flusher.unpurged:
            # Until the spool forgets the deletion of an earlier session with this key, a start would repeat it.
            await store.flusher.flush()
            if key in store.flusher.unpurged:
                raise Refused(f"Session {header.number} was just deleted there, which isn't finished. Try again later.")
        if store.index[header.scope].archived and await reader.submit(store.storage.archive.contains, key):
            raise Refused(f"Session {header.number} is in the archive there. Restore or delete that one first.")
        before = store.index[header.scope]
        if scope is not None and header.scope != scope:
            raise Refused(f"This session belongs to another chat ({header.scope}), so it can't be imported here.")
        if key in before.sessions or key in store.flusher.undeleted:
            raise Refused(f"Session {header.number} already exists there. Delete it before you import this one.")
        require_here(header.scope)
        # First the index, then the file: a session started in the meantime must not get the same number.
        active = before.active_session_key
        is_active = active is None or (activates and state.epoch > before.epoch)
        store.index.update(key, state, is_active=is_active)
        try:
            operations = [*store.storage.import_operations(key, state, arrival)]
            if active is not None and is_active:
                operations += displacing(active)
            if operations:
                await store.commit(header.scope, operations, lambda: None)
            await store.storage_thread.submit(store.storage.place, key, arrival)
        except HeldElsewhere:
            store.index.remove(key)
            raise
        except (OSError, SpoolUnavailable) as error:
            store.index.remove(key)
            store.cache.drop(key)
            raise Refused(f"The session couldn't be saved: {getattr(error, 'strerror', None) or error}.") from error
        if active is not None and not is_active and store.index.require(key).epoch > before.epoch:
            # Without an index, the highest epoch decides which session is active. It must not be the imported one.
            now = store.index[header.scope]
            entry = e.Activated(key=active, epoch=now.epoch + 1, highest_number=now.highest_number)
            await store.append(active, [entry])
    finally:
        await reader.submit(arrival.close)
    return meta_of(key, store.index.require(key))


def readdress(line: bytes, key: str) -> bytes:
    """Return a line of a transcript as it is in a copy of the session with another `key`."""
    try:
        entry = decode(line)
    except DamagedEntry:
        return line
    scope, number = parse_key(key)
    change = partial(msgspec.structs.replace, entry)
    match entry:
        case e.Header():
            return encode(change(key=key, scope=scope, number=number, highest_number=number))
        case e.Activated():
            return encode(change(key=key, highest_number=number))
        case e.Checkpoint():
            state = msgspec.structs.replace(entry.state, number=number, highest_number=number)
            return encode(change(key=key, state=state))
        case _:
            return line


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


async def split_lines(blocks: AsyncIterable[bytes]) -> AsyncGenerator[bytes, None]:
    """Turn blocks that end anywhere into lines with their newlines. The last line may lack its newline."""
    unfinished: list[bytes] = []
    async for block in blocks:
        first, *others = block.split(b"\n")
        unfinished.append(first)
        for piece in others:
            yield b"".join(unfinished) + b"\n"
            unfinished = [piece]
    if last := b"".join(unfinished):
        yield last
