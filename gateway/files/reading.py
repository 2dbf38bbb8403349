"""What the model reads of a file in words: a text whole, a recording as what is heard, anything else by its name."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gateway.contract import Attachment, AttachmentKind
from gateway.errors import Refused
from gateway.files.names import in_bytes, safe_name
from gateway.files.sniffing import HEAD, PICTURES, as_text, media_type
from gateway.files.store import FileStore, Stored
from gateway.files.workspace import save
from gateway.sessions import entries
from gateway.text import clean

__all__ = ["Reader", "Transcribe", "missing"]

_BACKTICKS = re.compile("`+")
_BYTES_PER_CHAR = 4
_RECORDINGS = frozenset({AttachmentKind.VOICE, AttachmentKind.AUDIO})

Transcribe = Callable[[Path, str, str], Awaitable[str]]
"""Makes text of a recording: its path, name and type in; `Refused` says in a sentence why there is none."""


def missing(attachment: Attachment, why: str) -> entries.Attached:
    """Describe a file that is not there."""
    name = safe_name(attachment.name, attachment.kind)
    size = f", {in_bytes(attachment.size)}" if attachment.size else ""
    note = f"[{attachment.kind}: {name}{size}; it is not available: {why}]"
    return entries.Attached(name=name, kind=attachment.kind, size=attachment.size, note=note)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """`max_chars` of a text stand in the message itself; `transcribe` is None where nothing listens to recordings."""

    store: FileStore
    workspace: Path
    label: str
    """Begins the names of what is saved into the workspace, so that two files of one name do not meet."""
    max_chars: int
    max_saved_bytes: int
    transcribe: Transcribe | None

    async def read(self, attachment: Attachment, stored: Stored, number: int) -> entries.Attached:
        head = await self.store.read(stored.ref, HEAD)
        kind = media_type(head, attachment.media_type)
        found = entries.Attached(
            name=safe_name(attachment.name, attachment.kind),
            kind=_kind(attachment, kind),
            media_type=kind,
            size=stored.size,
            ref=stored.ref,
        )
        if found.kind in _RECORDINGS and self.transcribe is not None:
            return await self._listen(self.transcribe, found, stored, number)
        if found.kind == AttachmentKind.FILE and (note := await self._whole_text(found)) is not None:
            return msgspec.structs.replace(found, note=note)
        return msgspec.structs.replace(found, note=await self._saved(found, stored, number))

    async def _listen(
        self, transcribe: Transcribe, found: entries.Attached, stored: Stored, number: int
    ) -> entries.Attached:
        try:
            said = clean(await transcribe(stored.path, found.name, found.media_type)).strip()
        except Refused as trouble:
            note = await self._saved(found, stored, number, f"; it could not be transcribed: {trouble}")
            return msgspec.structs.replace(found, note=note)
        note = f"[{found.kind}: {found.name}, transcribed:] {said[: self.max_chars] or '(nothing was said)'}"
        return msgspec.structs.replace(found, note=note, said=said[: self.max_chars])

    async def _whole_text(self, found: entries.Attached) -> str | None:
        """Return a text file in full, between fences that it cannot end; None if it is too long or no text."""
        if not 0 < found.size <= self.max_chars * _BYTES_PER_CHAR:
            return None
        content = await self.store.read(found.ref, found.size)
        text = await asyncio.to_thread(as_text, content)
        if text is None or len(text) > self.max_chars:
            return None
        fence = "`" * max(3, 1 + max(map(len, _BACKTICKS.findall(text)), default=0))
        return f"[file: {found.name}]\n{fence}\n{clean(text)}\n{fence}"

    async def _saved(self, found: entries.Attached, stored: Stored, number: int, more: str = "") -> str:
        name = safe_name(f"{self.label}-{number}-{found.name}")
        about = f"{found.kind}: {found.name}, {found.media_type}, {in_bytes(found.size)}"
        try:
            path = await asyncio.to_thread(save, self.workspace, name, stored.path, self.max_saved_bytes)
        except OSError as trouble:
            return f"[{about}; it could not be saved into the workspace: {trouble.strerror}{more}]"
        return f"[{about}; in the workspace: {path}{more}]"


def _kind(attachment: Attachment, found: str) -> str:
    """Call an image what is one; what was claimed to be one and is not is just a file."""
    if found in PICTURES:
        return AttachmentKind.IMAGE
    return AttachmentKind.FILE if attachment.kind is AttachmentKind.IMAGE else attachment.kind
