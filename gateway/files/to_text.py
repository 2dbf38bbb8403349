"""What the model reads of a file in words: a text whole, a recording as what is heard, anything else by its name."""

import asyncio
import os
import re
import shutil
import stat
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

import msgspec
import structlog
from aiohttp import ClientError, ClientSession, ClientTimeout, FormData

from config import Secret
from gateway.contract import Attachment, AttachmentKind
from gateway.errors import Refused
from gateway.files.identify import HEAD, PICTURES, as_text, in_bytes, media_type, safe_name
from gateway.files.store import FileStore, StoredFile
from gateway.private_files import CREATE, DIRECTORY_MODE, open_private
from gateway.sessions import entries
from gateway.text import clean

log = structlog.get_logger()

FOLDER = "attachments"
_OURS = re.compile(r"[0-9a-f]{8}-\d+-.+")
"""As a `Reader` names what it saves. A workspace may be somebody's own folder, with such a folder in it."""


def save(workspace: Path, name: str, source: Path, budget: int) -> str:
    """Copy `source` into the folder for attachments; return its path in the workspace. The oldest of ours make room.

    The agent may have put a link in place of the folder or the file: none is followed.
    """
    with suppress(FileExistsError):
        (workspace / FOLDER).mkdir(mode=DIRECTORY_MODE)
    folder = open_private(workspace / FOLDER, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
        target = open_private(name, CREATE, directory=folder)
        with os.fdopen(target, "wb") as copy, source.open("rb") as original:
            shutil.copyfileobj(original, copy, 1 << 20)
        _make_room(folder, name, budget)
    finally:
        os.close(folder)
    return f"{FOLDER}/{name}"


def _make_room(folder: int, kept: str, budget: int) -> None:
    files = []
    for name in filter(_OURS.fullmatch, os.listdir(folder)):
        with suppress(FileNotFoundError):
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISREG(found.st_mode):
                files.append((found.st_mtime, found.st_size, name))
    total = sum(size for _, size, _ in files)
    for _, size, name in sorted(files):
        if total <= budget:
            return
        if name != kept:
            os.unlink(name, dir_fd=folder)
            total -= size


OPENAI = "https://api.openai.com/v1"
TIMEOUT = 120.0
MAX_ANSWER_BYTES = 1_000_000


class _Answer(msgspec.Struct):
    text: str


class Transcriber:
    """`base_url` is that of a provider, with its version, as for chat."""

    def __init__(self, *, base_url: str | None, api_key: Secret | None, model: str) -> None:
        self._url = f"{(base_url or OPENAI).rstrip('/')}/audio/transcriptions"
        self._headers = {"Authorization": f"Bearer {api_key.reveal()}"} if api_key else {}
        self._model = model

    async def transcribe(self, path: Path, name: str, media_type: str) -> str:
        """Return what is said; `Refused` with a sentence that a person may read. The log has the rest."""
        try:
            return await self._ask(path, name, media_type)
        except (ClientError, OSError) as trouble:  # A timeout is an OSError.
            log.warning("transcription_failed", reason=type(trouble).__name__)
            raise Refused("the transcription service cannot be reached") from None
        except msgspec.DecodeError as trouble:
            log.warning("transcription_failed", reason="its answer is not the JSON that was asked for")
            raise Refused("the transcription service gave no readable answer") from trouble

    async def _ask(self, path: Path, name: str, media_type: str) -> str:
        with await asyncio.to_thread(path.open, "rb") as recording:
            form = FormData({"model": self._model, "response_format": "json"})
            form.add_field("file", recording, filename=name, content_type=media_type)
            async with (
                ClientSession(timeout=ClientTimeout(total=TIMEOUT)) as client,
                client.post(self._url, data=form, headers=self._headers, allow_redirects=False) as answer,
            ):
                if answer.status != HTTPStatus.OK:
                    log.warning("transcription_failed", status=answer.status)
                    raise Refused(f"the transcription service answered {answer.status}")
                body = b""
                async for chunk in answer.content.iter_chunked(MAX_ANSWER_BYTES):
                    body += chunk
                    if len(body) > MAX_ANSWER_BYTES:
                        raise Refused("the transcription service gave no readable answer")
        return msgspec.json.decode(body, type=_Answer).text


_BACKTICKS = re.compile("`+")
_BYTES_PER_CHAR = 4
_RECORDINGS = frozenset({AttachmentKind.VOICE, AttachmentKind.AUDIO})

Transcribe = Callable[[Path, str, str], Awaitable[str]]
"""Makes text of a recording: its path, name and type in; `Refused` says in a sentence why there is none."""


def unavailable(attachment: Attachment, why: str) -> entries.Attached:
    """Describe a file that is not there."""
    name = safe_name(attachment.name, attachment.kind)
    size = f", {in_bytes(attachment.size)}" if attachment.size else ""
    note = f"[{attachment.kind}: {name}{size}; it is not available: {why}]"
    return entries.Attached(name=name, kind=attachment.kind, size=attachment.size, note=note)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentReader:
    """`max_chars` of a text stand in the message itself; `transcribe` is None where nothing listens to recordings."""

    store: FileStore
    workspace: Path
    label: str
    """Begins the names of what is saved into the workspace, so that two files of one name do not meet."""
    max_chars: int
    max_saved_bytes: int
    transcribe: Transcribe | None

    async def read(self, attachment: Attachment, stored: StoredFile, number: int) -> entries.Attached:
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
        self, transcribe: Transcribe, found: entries.Attached, stored: StoredFile, number: int
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

    async def _saved(self, found: entries.Attached, stored: StoredFile, number: int, more: str = "") -> str:
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
