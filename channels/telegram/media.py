"""Reads the parts of a message that are not text: files become attachments, the rest becomes notes in brackets."""

from channels.telegram.payloads import Location, Message
from gateway.contract import Attachment, AttachmentKind
from gateway.text import excerpt

FILE_NAME_WIDTH = 100
NOTE_WIDTH = 300


def find_attachments(message: Message) -> tuple[Attachment, ...]:
    """Return the file of a message as a tuple of one, or an empty tuple. Telegram sends at most one per message."""
    if message.photo:
        # Telegram offers several sizes, the largest last. Photos have neither a name nor a media type.
        photo = message.photo[-1]
        return _attachment(AttachmentKind.IMAGE, "photo.jpg", "image/jpeg", photo.file_size, photo.file_id)
    # An animation has its `document` field set as well, so it is checked before documents.
    if (clip := message.animation or message.video) is not None:
        name = clip.file_name or "video.mp4"
        return _attachment(AttachmentKind.VIDEO, name, clip.mime_type, clip.file_size, clip.file_id)
    if (note := message.video_note) is not None:
        return _attachment(AttachmentKind.VIDEO, "video.mp4", "video/mp4", note.file_size, note.file_id)
    if (voice := message.voice) is not None:
        return _attachment(AttachmentKind.VOICE, "voice.ogg", voice.mime_type, voice.file_size, voice.file_id)
    if (audio := message.audio) is not None:
        name = audio.file_name or "audio"
        return _attachment(AttachmentKind.AUDIO, name, audio.mime_type, audio.file_size, audio.file_id)
    if (file := message.document) is not None:
        return _attachment(AttachmentKind.FILE, file.file_name or "file", file.mime_type, file.file_size, file.file_id)
    return ()


def _attachment(
    kind: AttachmentKind, name: str, media_type: str | None, size: int | None, file_id: str
) -> tuple[Attachment]:
    # The sender chooses the name. It must never work as a path.
    label = excerpt(name.replace("/", "_").replace("\\", "_").lstrip("."), FILE_NAME_WIDTH)
    return (
        Attachment(
            kind=kind,
            name=label or str(kind),
            media_type=media_type or "application/octet-stream",
            size=size or 0,
            ref=file_id,
        ),
    )


def find_notes(message: Message) -> list[str]:
    """Return a note for each thing in a message that is neither text nor a file."""
    notes: list[str] = []
    if message.sticker is not None:
        notes.append(f"[sticker {message.sticker.emoji or ''}".rstrip() + "]")
    # A venue has its `location` field set as well.
    if message.venue is not None:
        venue = message.venue
        notes.append(f"[place: {_join(venue.title, venue.address)} at {_coordinates(venue.location)}]")
    elif message.location is not None:
        notes.append(f"[location: {_coordinates(message.location)}]")
    if message.contact is not None:
        person = message.contact
        notes.append(f"[contact: {_join(person.first_name, person.last_name, person.phone_number)}]")
    if message.poll is not None:
        notes.append(f"[poll: {_join(message.poll.question, *(option.text for option in message.poll.options))}]")
    if message.dice is not None:
        notes.append(f"[dice {message.dice.emoji}: {message.dice.value}]")
    if message.checklist is not None:
        notes.append(f"[checklist: {_join(message.checklist.title, *(task.text for task in message.checklist.tasks))}]")
    if message.game is not None:
        notes.append(f"[game: {_join(message.game.title)}]")
    if message.invoice is not None:
        notes.append(f"[invoice: {_join(message.invoice.title, message.invoice.description)}]")
    # Telegram does not show the content of these to bots.
    if message.story is not None:
        notes.append("[story]")
    if message.paid_media is not None:
        notes.append("[paid media]")
    if message.giveaway is not None:
        notes.append("[giveaway]")
    return notes


def _coordinates(location: Location) -> str:
    return f"{location.latitude:.6f}, {location.longitude:.6f}"


def _join(*parts: str | None) -> str:
    return excerpt(", ".join(part for part in parts if part), NOTE_WIDTH)
