"""What came with a message besides words: a file as an attachment, anything else as a note that can be read."""

from collections.abc import Iterator

from aiogram.types import Location, Message

from gateway.contract import Attachment, AttachmentKind
from gateway.text import excerpt

__all__ = ["media"]

NAME_WIDTH = 100
TEXT_WIDTH = 300


def media(message: Message) -> tuple[tuple[Attachment, ...], list[str]]:
    """Return the files, which the core names to the agent, and one note for each thing that is no file."""
    file = _file(message)
    return () if file is None else (file,), [note for note in _notes(message) if note]


def _file(message: Message) -> Attachment | None:
    """Find the file; Telegram sends one with a message, and an animation also as a document."""
    if message.photo:
        best = message.photo[-1]
        return _attachment(AttachmentKind.IMAGE, "photo.jpg", "image/jpeg", best.file_size, best.file_id)
    if (clip := message.animation or message.video) is not None:
        return _attachment(
            AttachmentKind.VIDEO, clip.file_name or "video.mp4", clip.mime_type, clip.file_size, clip.file_id
        )
    if (note := message.video_note) is not None:
        return _attachment(AttachmentKind.VIDEO, "video.mp4", "video/mp4", note.file_size, note.file_id)
    if (voice := message.voice) is not None:
        return _attachment(AttachmentKind.VOICE, "voice.ogg", voice.mime_type, voice.file_size, voice.file_id)
    if (audio := message.audio) is not None:
        return _attachment(
            AttachmentKind.AUDIO, audio.file_name or "audio", audio.mime_type, audio.file_size, audio.file_id
        )
    if (file := message.document) is not None:
        return _attachment(AttachmentKind.FILE, file.file_name or "file", file.mime_type, file.file_size, file.file_id)
    return None


def _attachment(kind: AttachmentKind, name: str, media_type: str | None, size: int | None, ref: str) -> Attachment:
    """Make an attachment whose name is a label and never a path."""
    label = excerpt(name.replace("/", "_").replace("\\", "_").lstrip("."), NAME_WIDTH)
    return Attachment(
        kind=kind,
        name=label or str(kind),
        media_type=media_type or "application/octet-stream",
        size=size or 0,
        ref=ref,
    )


def _notes(message: Message) -> Iterator[str]:
    if message.sticker is not None:
        yield f"[sticker {message.sticker.emoji or ''}".rstrip() + "]"
    if message.venue is not None:
        place = message.venue
        yield f"[place: {_line(place.title, place.address)} at {_point(place.location)}]"
    elif message.location is not None:
        yield f"[location: {_point(message.location)}]"
    if message.contact is not None:
        person = message.contact
        yield f"[contact: {_line(person.first_name, person.last_name, person.phone_number)}]"
    if message.poll is not None:
        yield f"[poll: {_line(message.poll.question, *(option.text for option in message.poll.options))}]"
    if message.dice is not None:
        yield f"[dice {message.dice.emoji}: {message.dice.value}]"
    if message.checklist is not None:
        yield f"[checklist: {_line(message.checklist.title, *(task.text for task in message.checklist.tasks))}]"
    if message.game is not None:
        yield f"[game: {_line(message.game.title)}]"
    if message.invoice is not None:
        yield f"[invoice: {_line(message.invoice.title, message.invoice.description)}]"
    yield from (note for is_there, note in _unseen(message) if is_there)


def _unseen(message: Message) -> Iterator[tuple[bool, str]]:
    """For each thing that Telegram shows to people but not to bots, tell whether it is there."""
    yield message.story is not None, "[story]"
    yield message.paid_media is not None, "[paid media]"
    yield message.giveaway is not None, "[giveaway]"


def _point(location: Location) -> str:
    return f"{location.latitude:.6f}, {location.longitude:.6f}"


def _line(*parts: str | None) -> str:
    return excerpt(", ".join(part for part in parts if part), TEXT_WIDTH)
