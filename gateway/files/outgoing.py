"""Files on their way out: what the agent sends in a turn is copied at once, so that it stays what it was."""

import asyncio
import mimetypes
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from gateway.contract import Enclosure
from gateway.errors import Refused
from gateway.files.names import in_bytes, safe_name
from gateway.files.sniffing import HEAD, media_type
from gateway.files.store import FileStore, TooLarge
from gateway.sessions import entries

__all__ = ["Outgoing", "enclosure", "sent_file"]

BLOCK = 1 << 20


def sent_file(file: Enclosure) -> entries.SentFile:
    """Return a file as the transcript has it."""
    return entries.SentFile(name=file.name, media_type=file.media_type, size=file.size, ref=file.ref)


def enclosure(sent: entries.SentFile) -> Enclosure:
    return Enclosure(name=sent.name, media_type=sent.media_type, size=sent.size, ref=sent.ref)


@dataclass(slots=True, kw_only=True)
class Outgoing:
    """What one turn sends. `fresh` are the files that are not in the transcript yet."""

    store: FileStore
    folder: str
    turn: str
    max_files: int
    max_bytes: int
    count: int = 0
    fresh: list[Enclosure] = field(default_factory=list)

    async def add(self, descriptor: int, name: str) -> None:
        """Copy an open file; `Refused` says in a sentence why it does not go."""
        if self.count >= self.max_files:
            raise Refused(f"{self.max_files} files are the most that can go with one answer")
        self.count += 1
        label = safe_name(name)
        try:
            async with aclosing(_blocks(descriptor)) as blocks:
                kept = await self.store.keep(
                    self.folder, f"{self.turn}-out{self.count}-{label}", blocks, limit=self.max_bytes
                )
        except TooLarge:
            self.count -= 1
            raise Refused(f"files of up to {in_bytes(self.max_bytes)} can be sent") from None
        kind = media_type(await self.store.read(kept.ref, HEAD), mimetypes.guess_type(label)[0] or "")
        self.fresh.append(Enclosure(name=label, media_type=kind, size=kept.size, ref=kept.ref))

    def taken(self) -> list[Enclosure]:
        """Return what is fresh, once."""
        fresh, self.fresh = self.fresh, []
        return fresh


async def _blocks(descriptor: int) -> AsyncGenerator[bytes, None]:
    at = 0
    while block := await asyncio.to_thread(os.pread, descriptor, BLOCK, at):
        at += len(block)
        yield block
