"""What came with a message besides words: files as attachments, and a note of what is no file."""

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.contract import Attachment, AttachmentKind
from gateway.text import excerpt

__all__ = ["embedded", "media"]

Json = Mapping[str, Any]  # What Discord sends is of any shape.

NAME_WIDTH = 100
TEXT_WIDTH = 300
VOICE_MESSAGE = 1 << 13
"""https://discord.com/developers/docs/resources/message#message-object-message-flags"""
TEXT_DISPLAY = 10
"""https://discord.com/developers/docs/components/reference#text-display"""
_KINDS = {"image": AttachmentKind.IMAGE, "audio": AttachmentKind.AUDIO, "video": AttachmentKind.VIDEO}


def media(source: Json, channel: str, message: str) -> tuple[tuple[Attachment, ...], list[str]]:
    """Return the files, and a note of each thing that is none. `channel` and `message` say where the files hang."""
    is_voice = bool(source.get("flags", 0) & VOICE_MESSAGE)
    files = tuple(
        _attachment(file, f"{channel}:{message}:{file['id']}", is_voice=is_voice)
        for file in source.get("attachments") or ()
    )
    return files, list(_notes(source))


def embedded(source: Json) -> str:
    """Return the words of a message that has none of its own: what bots post, and people forward, often looks so."""
    return "\n".join(words.strip() for words in _embedded(source) if words.strip())


def _embedded(source: Json) -> Iterator[str]:
    for embed in source.get("embeds") or ():
        yield from (str(embed.get(part) or "") for part in ("title", "description", "url"))
        for field in embed.get("fields") or ():
            yield f"{field.get('name', '')}: {field.get('value', '')}"
    for component in source.get("components") or ():
        if component.get("type") == TEXT_DISPLAY:
            yield str(component.get("content") or "")
        yield from _embedded({"components": component.get("components")})


def _attachment(file: Json, ref: str, *, is_voice: bool) -> Attachment:
    """Make an attachment whose name is a label and never a path."""
    media_type = str(file.get("content_type") or "application/octet-stream").partition(";")[0]
    kind = _KINDS.get(media_type.partition("/")[0], AttachmentKind.FILE)
    name = str(file.get("filename") or "").replace("/", "_").replace("\\", "_").lstrip(".")
    return Attachment(
        kind=AttachmentKind.VOICE if is_voice else kind,
        name=excerpt(name, NAME_WIDTH) or str(kind),
        media_type=media_type,
        size=int(file.get("size") or 0),
        ref=ref,
    )


def _notes(source: Json) -> Iterator[str]:
    for sticker in source.get("sticker_items") or ():
        yield f"[sticker {excerpt(str(sticker.get('name', '')), NAME_WIDTH)}".rstrip() + "]"
    poll = source.get("poll") or {}
    if poll:
        question = (poll.get("question") or {}).get("text", "")
        answers = [(answer.get("poll_media") or {}).get("text", "") for answer in poll.get("answers") or ()]
        yield f"[poll: {excerpt(', '.join([question, *answers]), TEXT_WIDTH)}]"
