"""Files on their way out: what the agent sends in a turn is copied at once, so that it stays what it was."""

import asyncio
import mimetypes
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from operator import attrgetter

from msgspec.structs import replace

from gateway.contract import Enclosure
from gateway.conversation import Message, Picture, UserMessage
from gateway.errors import Refused
from gateway.files.identify import HEAD, PICTURES, dimensions, in_bytes, media_type, safe_name
from gateway.files.store import FileStore, TooLarge
from gateway.sessions import entries

BLOCK = 1 << 20


def sent_file(file: Enclosure) -> entries.SentFile:
    """Return a file as the transcript has it."""
    return entries.SentFile(name=file.name, media_type=file.media_type, size=file.size, ref=file.ref)


def enclosure(sent: entries.SentFile) -> Enclosure:
    return Enclosure(name=sent.name, media_type=sent.media_type, size=sent.size, ref=sent.ref)


@dataclass(slots=True, kw_only=True)
class OutgoingFiles:
    """What one turn sends. `new` are the files that are not in the transcript yet."""

    store: FileStore
    folder: str
    turn: str
    max_files: int
    max_bytes: int
    count: int = 0
    new: list[Enclosure] = field(default_factory=list)

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
        self.new.append(Enclosure(name=label, media_type=kind, size=kept.size, ref=kept.ref))

    def take_new(self) -> list[Enclosure]:
        """Return what is new, once."""
        new, self.new = self.new, []
        return new


async def _blocks(descriptor: int) -> AsyncGenerator[bytes, None]:
    at = 0
    while block := await asyncio.to_thread(os.pread, descriptor, BLOCK, at):
        at += len(block)
        yield block


MAX_PICTURES = 10
MAX_PICTURE_BYTES = 3_700_000
"""Anthropic takes 5 MB of base64 an image."""
MAX_SHOWN_BYTES = 8_000_000
MAX_EDGE = 8_000

_pictures_of = attrgetter("pictures")

_UNSEEN = "You cannot see {names}: this model does not take images."
_OLDER = "no longer shown, since newer ones were sent; it can be sent again"


async def with_pictures(messages: Sequence[Message], store: FileStore, *, sees: bool) -> Sequence[Message]:
    """Give the pictures their bytes, newest first; where one is not shown, its message says why.

    Without pictures the very same messages are returned.
    """
    if not any(map(_pictures_of, messages)):
        return messages
    viewing = _Viewing(store)
    made: list[Message] = []
    for message in reversed(messages):
        if not isinstance(message, UserMessage) or not message.pictures:
            made.append(message)
        elif sees:
            made.append(await viewing.look(message))
        else:
            made.append(_unseen(message))
    return made[::-1]


def _unseen(message: UserMessage) -> UserMessage:
    names = ", ".join(picture.name for picture in message.pictures)
    return replace(message, text=f"{message.text}\n\n[{_UNSEEN.format(names=names)}]", pictures=())


class _Viewing:
    """Counts what one request holds already."""

    def __init__(self, store: FileStore) -> None:
        self._store = store
        self._count = 0
        self._bytes = 0

    async def look(self, message: UserMessage) -> UserMessage:
        pictures, reasons = [], []
        for picture in message.pictures:
            try:
                pictures.append(await self._load(picture))
            except Refused as reason:
                reasons.append(f"[{picture.name} is not shown: {reason}]")
        return replace(message, text="\n\n".join([message.text, *reasons]), pictures=tuple(pictures))

    async def _load(self, picture: Picture) -> Picture:
        if self._count >= MAX_PICTURES or self._bytes >= MAX_SHOWN_BYTES:
            raise Refused(_OLDER)
        data = await self._store.read(picture.file, MAX_PICTURE_BYTES + 1)
        if len(data) > MAX_PICTURE_BYTES:
            raise Refused(f"it has more than {in_bytes(MAX_PICTURE_BYTES)}")
        kind, size = media_type(data, ""), dimensions(data)
        if kind not in PICTURES or size is None:
            raise Refused("it is damaged")
        if max(size) > MAX_EDGE or 0 in size:
            raise Refused(f"it is {size[0]} by {size[1]} pixels, and {MAX_EDGE} is the most")
        self._count += 1
        self._bytes += len(data)
        return replace(picture, media_type=kind, data=data)
