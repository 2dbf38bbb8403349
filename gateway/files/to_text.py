"""Turns attachments into text for the model: short ones in full, recordings transcribed, other files as a path."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path

import msgspec
import structlog
from aiohttp import ClientError, ClientSession, ClientTimeout, FormData

from config import Secret, Settings
from gateway.contract import Attachment, AttachmentKind
from gateway.documents.conversion import DocumentConverter, DocumentUnreadable
from gateway.documents.identify import HEAD, is_document, is_html
from gateway.errors import Refused
from gateway.files.identify import PICTURES, as_text, media_type, safe_name
from gateway.files.store import FileStore, StoredFile
from gateway.sandbox.bubblewrap import ATTACHMENTS
from gateway.sessions import entries
from gateway.text import clean
from gateway.text.plain import in_bytes

log = structlog.get_logger()

OPENAI_URL = "https://api.openai.com/v1"
TRANSCRIPTION_TIMEOUT = 120.0
MAX_TRANSCRIPT_BYTES = 1_000_000


Transcribe = Callable[[Path, str, str], Awaitable[str]]
"""Transcribes a recording, given its path, name and type. Raises `Refused` with the reason if it cannot."""


class _Transcript(msgspec.Struct):
    text: str


class Transcriber:
    """Transcribes recordings with a provider's OpenAI API. `base_url` includes the version, as for chat."""

    def __init__(self, *, base_url: str | None, api_key: Secret | None, model: str) -> None:
        self._url = f"{(base_url or OPENAI_URL).rstrip('/')}/audio/transcriptions"
        self._headers = {"Authorization": f"Bearer {api_key.reveal()}"} if api_key else {}
        self._model = model

    async def transcribe(self, path: Path, name: str, media_type: str) -> str:
        """Return the spoken words. Raises `Refused` with a reason for the person. The log has the details."""
        try:
            with await asyncio.to_thread(path.open, "rb") as recording:
                form = FormData({"model": self._model, "response_format": "json"})
                form.add_field("file", recording, filename=name, content_type=media_type)
                async with (
                    ClientSession(timeout=ClientTimeout(total=TRANSCRIPTION_TIMEOUT)) as client,
                    client.post(self._url, data=form, headers=self._headers, allow_redirects=False) as answer,
                ):
                    if answer.status != HTTPStatus.OK:
                        log.warning("transcription_failed", status=answer.status)
                        raise Refused(f"the transcription service answered {answer.status}")
                    body = b""
                    async for chunk in answer.content.iter_chunked(MAX_TRANSCRIPT_BYTES):
                        body += chunk
                        if len(body) > MAX_TRANSCRIPT_BYTES:
                            raise Refused("the transcription service sent an unreadable answer")
            return msgspec.json.decode(body, type=_Transcript).text
        except (ClientError, OSError) as error:  # A timeout is an OSError.
            log.warning("transcription_failed", reason=type(error).__name__)
            raise Refused("the transcription service cannot be reached") from None
        except msgspec.DecodeError as error:
            log.warning("transcription_failed", reason="the answer is not the expected JSON")
            raise Refused("the transcription service sent an unreadable answer") from error


def configured_transcriber(settings: Settings) -> Transcribe | None:
    """Return the function that transcribes recordings, or None if transcription is not configured."""
    wanted = settings.transcription
    if wanted.provider is None:
        return None
    provider = settings.providers[wanted.provider]
    return Transcriber(base_url=provider.base_url, api_key=provider.api_key, model=wanted.model).transcribe


_BACKTICKS = re.compile("`+")
_BYTES_PER_CHAR = 4
_RECORDINGS = frozenset({AttachmentKind.VOICE, AttachmentKind.AUDIO})


def unavailable(attachment: Attachment, why: str) -> entries.Attached:
    """Return the transcript note of an attachment that is not available."""
    name = safe_name(attachment.name, attachment.kind)
    size = f", {in_bytes(attachment.size)}" if attachment.size else ""
    note = f"[{attachment.kind}: {name}{size}; it is not available: {why}]"
    return entries.Attached(name=name, kind=attachment.kind, size=attachment.size, note=note)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentReader:
    """Reads the attachments of one message. Texts of up to `max_chars` become part of the message."""

    store: FileStore
    max_chars: int
    transcribe: Transcribe | None
    documents: DocumentConverter

    async def read(self, attachment: Attachment, stored: StoredFile) -> entries.Attached:
        head = await self.store.read(stored.ref, HEAD)
        found_type = media_type(head, attachment.media_type)
        kind = attachment.kind
        if found_type in PICTURES:
            kind = AttachmentKind.IMAGE
        elif kind is AttachmentKind.IMAGE:  # Claimed to be an image, but its content is none.
            kind = AttachmentKind.FILE
        found = entries.Attached(
            name=safe_name(attachment.name, attachment.kind),
            kind=kind,
            media_type=found_type,
            size=stored.size,
            ref=stored.ref,
        )
        failure = ""
        if kind in _RECORDINGS and self.transcribe is not None:
            try:
                said = clean(await self.transcribe(stored.path, found.name, found_type)).strip()[: self.max_chars]
            except Refused as error:
                failure = f"; it could not be transcribed: {error}"
            else:
                note = f"[{kind}: {found.name}, transcribed:] {said or '(no speech)'}"
                return msgspec.structs.replace(found, note=note, said=said)
        # The agent's tools open everything else. They see the stored file itself, so that no copy outlives the session.
        place = f"saved as {ATTACHMENTS}/{stored.path.name}"
        if kind is AttachmentKind.FILE and (is_document(head) or is_html(head)):
            try:
                text = await self._document_text(found, is_html=is_html(head))
            except DocumentUnreadable as reason:
                failure = f". {reason}".rstrip(".")
            else:
                if text is not None:
                    return msgspec.structs.replace(
                        found, note=f"[{kind}: {found.name}, {found_type}, {place}; its text:]\n{_fenced(text)}"
                    )
                failure = "; read_file shows its text, which is long"
        elif kind is AttachmentKind.FILE and (text := await self._whole_text(found)) is not None:
            return msgspec.structs.replace(found, note=f"[file: {found.name}]\n{_fenced(text)}")
        note = f"[{kind}: {found.name}, {found_type}, {in_bytes(found.size)}; {place}{failure}]"
        return msgspec.structs.replace(found, note=note)

    async def _whole_text(self, found: entries.Attached) -> str | None:
        """Return a text file in full, or None if it is too long or not a text."""
        if not 0 < found.size <= self.max_chars * _BYTES_PER_CHAR:
            return None
        content = await self.store.read(found.ref, found.size)
        text = await asyncio.to_thread(as_text, content)
        if text is None or len(text) > self.max_chars:
            return None
        return text

    async def _document_text(self, found: entries.Attached, *, is_html: bool) -> str | None:
        """Return the text of a document in full, or None if it is too long. Raises `DocumentUnreadable`."""
        if not self.max_chars:
            return None
        document = await self.documents.convert(
            partial(self.store.read, found.ref, self.documents.max_bytes + 1),
            html_charset="" if is_html else None,
            room=self.max_chars * _BYTES_PER_CHAR,
        )
        text = document.text.strip()
        return None if document.next_page or len(text) > self.max_chars else text


def _fenced(text: str) -> str:
    # A longer fence than any in the text, so that the text cannot end it.
    fence = "`" * max(3, 1 + max(map(len, _BACKTICKS.findall(text)), default=0))
    return f"{fence}\n{clean(text)}\n{fence}"
