"""The sessions as an operator handles them: looked at, taken out, brought in and removed, whatever their scope."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from gateway.errors import Refused
from gateway.sessions import SessionManager, SessionMeta, VerifyReport, VisibleLine
from gateway.sessions.keys import parse_key

__all__ = ["BLOCK_BYTES", "Archive", "ListedSession", "LocalArchive", "closing", "join_into_blocks", "split_lines"]

_T = TypeVar("_T")

BLOCK_BYTES = 128 * 1024
"""About how many bytes travel at once."""

_LISTED_AT_ONCE = 50
"""Scopes that are listed before others get their turn on the event loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSession:
    meta: SessionMeta
    is_active: bool


class Archive(Protocol):
    """`Refused`, with a sentence, is all that its methods raise on purpose."""

    def sessions(self, scope: str | None = None) -> AsyncIterator[ListedSession]:
        """Yield the sessions of one scope, or of all; those of a scope come together, newest first."""

    async def lines(self, key: str, limit: int) -> list[VisibleLine]:
        """Return the last `limit` lines that a person sees, oldest first."""

    def export(self, key: str) -> AsyncIterator[bytes]:
        """Yield the transcript as it is, in blocks that end anywhere."""

    async def bring_in(self, blocks: AsyncIterable[bytes]) -> SessionMeta:
        """Take in what `export` gave, byte for byte."""

    async def delete(self, key: str) -> None: ...

    async def verify(self) -> VerifyReport: ...


class LocalArchive:
    """The archive of whoever has the `SessionManager`."""

    def __init__(self, manager: SessionManager) -> None:
        self._manager = manager

    async def sessions(self, scope: str | None = None) -> AsyncIterator[ListedSession]:
        names = self._manager.scopes() if scope is None else iter([scope])
        for at, name in enumerate(names):
            if at % _LISTED_AT_ONCE == 0:
                await asyncio.sleep(0)
            active = self._manager.active(name)
            for meta in self._manager.list(name):
                yield ListedSession(meta=meta, is_active=active is not None and meta.key == active.key)

    async def lines(self, key: str, limit: int) -> list[VisibleLine]:
        self._insist_on(key)
        return await self._manager.lines(key, limit)

    async def export(self, key: str) -> AsyncIterator[bytes]:
        self._insist_on(key)
        with _refusing_trouble("The transcript cannot be read"):
            async with closing(self._manager.export_lines(key)) as lines:
                async for block in join_into_blocks(lines):
                    yield block

    async def bring_in(self, blocks: AsyncIterable[bytes]) -> SessionMeta:
        with _refusing_trouble("The session could not be stored"):
            return await self._manager.import_lines(None, blocks)

    async def delete(self, key: str) -> None:
        self._insist_on(key)
        await self._manager.delete(key)

    async def verify(self) -> VerifyReport:
        with _refusing_trouble("The sessions folder cannot be read"):
            return await self._manager.verify()

    def _insist_on(self, key: str) -> None:
        """Refuse a key that nothing is known of; it may be anything that somebody has typed."""
        try:
            scope, _ = parse_key(key)
        except ValueError as nonsense:
            raise Refused("That is no session key; `gatehouse sessions list` shows what there is.") from nonsense
        if not any(meta.key == key for meta in self._manager.list(scope)):
            raise Refused("There is no such session; `gatehouse sessions list` shows what there is.")


async def join_into_blocks(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Put short pieces together and cut long ones, so that each block but the last has about the same size."""
    waiting = bytearray()
    async for piece in pieces:
        waiting += piece
        while len(waiting) >= BLOCK_BYTES:
            yield bytes(waiting[:BLOCK_BYTES])
            del waiting[:BLOCK_BYTES]
    if waiting:
        yield bytes(waiting)


async def split_lines(blocks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Put blocks that end anywhere together to lines, newlines included; the last may lack it."""
    begun: list[bytes] = []
    async for block in blocks:
        first, *others = block.split(b"\n")
        begun.append(first)
        for piece in others:
            yield b"".join(begun) + b"\n"
            begun = [piece]
    if last := b"".join(begun):
        yield last


@asynccontextmanager
async def closing(source: AsyncIterator[_T]) -> AsyncIterator[AsyncIterator[_T]]:
    """Let go what a generator holds open as soon as nobody reads it any more, and not when it is cleared away."""
    try:
        yield source
    finally:
        if isinstance(source, AsyncGenerator):
            await source.aclose()


@contextmanager
def _refusing_trouble(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as trouble:
        raise Refused(f"{what}: {trouble.strerror or trouble}.") from trouble
