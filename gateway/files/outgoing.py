"""Files that the agent sends. Each is copied at once, so that later changes in the workspace do not affect it."""

import asyncio
import mimetypes
import os
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from config import FileSettings
from gateway.contract import Enclosure
from gateway.errors import Refused
from gateway.files.identify import HEAD, media_type, safe_name
from gateway.files.store import FileStore, TooLarge, folder_of
from gateway.job import Job
from gateway.sessions import SessionManager, entries
from gateway.text.plain import in_bytes

_BLOCK_SIZE = 1 << 20
_STORED_AS = re.compile(r"^[0-9a-f]{32}-(out)?\d+-")
"""The start of a name in the store: turn and number. The agent may send a file back that it received."""


def sent_file(file: Enclosure) -> entries.SentFile:
    """Return a file as its transcript entry."""
    return entries.SentFile(name=file.name, media_type=file.media_type, size=file.size, ref=file.ref)


def enclosure(sent: entries.SentFile) -> Enclosure:
    return Enclosure(name=sent.name, media_type=sent.media_type, size=sent.size, ref=sent.ref)


@dataclass(slots=True, kw_only=True)
class OutgoingFiles:
    """The files that one turn sends. `count` includes those of an earlier attempt of the turn."""

    store: FileStore
    sessions: SessionManager
    settings: FileSettings
    job: Job
    count: int = 0
    new: list[Enclosure] = field(default_factory=list)
    """Files that are not in the transcript yet."""

    def check(self) -> None:
        """Raise `Refused` with the reason if no further file can be sent."""
        if self.count >= self.settings.max_per_message:
            raise Refused(f"an answer can have at most {self.settings.max_per_message} files")

    async def add(self, descriptor: int, name: str) -> str:
        """Copy an open file. Returns its name. Raises `Refused` with the reason if it cannot be sent."""
        self.check()
        self.count += 1
        label = safe_name(_STORED_AS.sub("", name))

        # `pread` in a thread: the file may be large, and reading it must not block the event loop.
        async def blocks() -> AsyncGenerator[bytes, None]:
            at = 0
            while block := await asyncio.to_thread(os.pread, descriptor, _BLOCK_SIZE, at):
                at += len(block)
                yield block

        try:
            async with aclosing(blocks()) as content:
                kept = await self.store.keep(
                    folder_of(self.job.session),
                    f"{self.job.turn}-out{self.count}-{label}",
                    content,
                    limit=self.settings.max_bytes,
                )
        except TooLarge as end:
            self.count -= 1
            raise Refused(f"it is too large; the limit is {in_bytes(end.limit)}") from None
        await self.store.require_session(self.job.session, kept, self.sessions)
        kind = media_type(await self.store.read(kept.ref, HEAD), mimetypes.guess_type(label)[0] or "")
        self.new.append(Enclosure(name=label, media_type=kind, size=kept.size, ref=kept.ref))
        return label

    def take_new(self) -> list[Enclosure]:
        """Return the new files once."""
        new, self.new = self.new, []
        return new
