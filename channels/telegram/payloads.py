"""Telegram's objects, with only the fields that this channel reads: https://core.telegram.org/bots/api#available-types.

Other fields are skipped without being parsed, so new ones do no harm.
"""

import json
import re
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple, TypeVar

import structlog
from msgspec import Meta, Raw, Struct, field
from msgspec.json import Decoder

from channels.telegram.errors import BadResponse

log = structlog.get_logger()

MAX_DEPTH = 100
"""Objects and lists inside each other. Deeper ones are dropped if there are too many for the parser."""

# A text, a bracket, or everything between them. A text without an end extends to the end: a retry at each of its
# quotes would take quadratic time.
_JSON_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[\]{}]|[^"\[\]{}]+', re.DOTALL)
_OPENING = {b"[", b"{"}
_CLOSING = {b"]", b"}"}

T = TypeVar("T")

Timestamp = Annotated[int, Meta(ge=0, le=int(datetime.max.replace(tzinfo=UTC).timestamp()))]


class Payload(Struct, frozen=True, kw_only=True, gc=False):
    """The base of all objects. They form no cycles, so the garbage collector can skip them (`gc=False`)."""


class Marker(Payload, frozen=True):
    """An object of which only the presence is read."""


class User(Payload, frozen=True):
    id: int
    is_bot: bool = False
    first_name: str = ""
    last_name: str | None = None
    username: str | None = None

    @property
    def full_name(self) -> str:
        return f"{self.first_name} {self.last_name}" if self.last_name else self.first_name


class Chat(Payload, frozen=True):
    id: int
    type: str
    title: str | None = None


class MessageEntity(Payload, frozen=True):
    type: str
    offset: int
    length: int
    user: User | None = None


class MessageOrigin(Payload, frozen=True):
    """Where a forwarded or quoted message comes from. Each kind of origin has one of the fields."""

    sender_user: User | None = None
    sender_user_name: str | None = None
    sender_chat: Chat | None = None
    chat: Chat | None = None

    @property
    def name(self) -> str:
        """The name of the person or chat that wrote the message."""
        if self.sender_user is not None:
            return self.sender_user.full_name
        chat = self.sender_chat or self.chat
        return self.sender_user_name or (chat and chat.title) or ""


class ExternalReplyInfo(Payload, frozen=True):
    origin: MessageOrigin


class TextQuote(Payload, frozen=True):
    text: str


class RichMessage(Payload, frozen=True):
    blocks: list[Any]  # `Any`: a block's fields depend on its kind. `wire` looks for fields by name.


class File(Payload, frozen=True):
    """A photo in one size, an animation, a video, a voice message, an audio file or a document."""

    file_id: str
    file_size: int | None = None
    file_name: str | None = None
    mime_type: str | None = None


class Sticker(Payload, frozen=True):
    emoji: str | None = None


class Location(Payload, frozen=True):
    latitude: float
    longitude: float


class Venue(Payload, frozen=True):
    location: Location
    title: str
    address: str


class Contact(Payload, frozen=True):
    phone_number: str
    first_name: str
    last_name: str | None = None


class PollOption(Payload, frozen=True):
    text: str


class Poll(Payload, frozen=True):
    question: str
    options: list[PollOption]


class Dice(Payload, frozen=True):
    emoji: str
    value: int


class ChecklistTask(Payload, frozen=True):
    text: str


class Checklist(Payload, frozen=True):
    title: str
    tasks: list[ChecklistTask]


class Game(Payload, frozen=True):
    title: str


class Invoice(Payload, frozen=True):
    title: str
    description: str


class Message(Payload, frozen=True):
    """Also stands for a message that the bot can no longer access, which has the three required fields only."""

    message_id: int
    date: Timestamp
    chat: Chat
    message_thread_id: int | None = None
    is_topic_message: bool | None = None
    from_user: User | None = field(name="from", default=None)
    sender_chat: Chat | None = None
    is_automatic_forward: bool | None = None
    forward_origin: MessageOrigin | None = None
    reply_to_message: "Message | None" = None
    external_reply: ExternalReplyInfo | None = None
    quote: TextQuote | None = None
    media_group_id: str | None = None
    text: str | None = None
    entities: list[MessageEntity] | None = None
    caption: str | None = None
    caption_entities: list[MessageEntity] | None = None
    rich_message: RichMessage | None = None
    photo: list[File] | None = None
    animation: File | None = None
    video: File | None = None
    video_note: File | None = None
    voice: File | None = None
    audio: File | None = None
    document: File | None = None
    sticker: Sticker | None = None
    venue: Venue | None = None
    location: Location | None = None
    contact: Contact | None = None
    poll: Poll | None = None
    dice: Dice | None = None
    checklist: Checklist | None = None
    game: Game | None = None
    invoice: Invoice | None = None
    story: Marker | None = None
    paid_media: Marker | None = None
    giveaway: Marker | None = None
    forum_topic_created: Marker | None = None
    migrate_to_chat_id: int | None = None
    migrate_from_chat_id: int | None = None


class CallbackQuery(Payload, frozen=True):
    """A button press."""

    id: str
    from_user: User = field(name="from")
    message: Message | None = None
    data: str | None = None


class Update(Payload, frozen=True):
    update_id: int
    message: Message | None = None
    edited_message: Message | None = None
    callback_query: CallbackQuery | None = None


class WebhookInfo(Payload, frozen=True):
    url: str
    pending_update_count: int = 0
    last_error_date: int | None = None
    last_error_message: str | None = None


class StoredFile(Payload, frozen=True):
    """Where a file can be downloaded. Telegram calls this object `File`."""

    file_path: str | None = None


class SentMessage(Payload, frozen=True):
    """A message that the bot has posted. If Telegram returns its id, it is posted, so nothing else is read."""

    message_id: int


AlbumKey = tuple[int, str]
"""The chat id, and the media group id that the parts of the album share."""


class ReceivedUpdate(NamedTuple):
    """An update with its id. `update` is None if it could not be parsed."""

    id: int
    update: Update | None

    @property
    def chat(self) -> int | None:
        """The id of the chat that the update belongs to. Updates of one chat are handled in order."""
        if self.update is None:
            return None
        pressed = self.update.callback_query and self.update.callback_query.message
        message = self.update.message or self.update.edited_message or pressed
        return message.chat.id if message else None

    @property
    def album(self) -> AlbumKey | None:
        """The album that the update is a part of, if any."""
        if self.update is None or self.update.message is None or self.update.message.media_group_id is None:
            return None
        return self.update.message.chat.id, self.update.message.media_group_id


class _NumberedUpdate(Payload, frozen=True):
    update_id: int


_update = Decoder(Update)
_updates = Decoder(list[Update])
_raw_updates = Decoder(list[Raw])
_numbered_update = Decoder(_NumberedUpdate)


def parse(raw: Raw | bytes | str, decoder: Decoder[T]) -> T:
    """Parse a response or a part of it. Raises `BadResponse` if it is not what `decoder` expects."""
    try:
        return decoder.decode(raw)
    except (ValueError, RecursionError) as error:  # All of msgspec's errors are `ValueError`s.
        try:
            return decoder.decode(_repair(raw.encode(errors="replace") if isinstance(raw, str) else bytes(raw)))
        except (ValueError, RecursionError):
            raise BadResponse from error


def _repair(content: bytes) -> bytes:
    """Return JSON without what only msgspec rejects: deep nesting, control characters, half of a surrogate pair.

    One odd text must not block all updates. Its odd characters are replaced.
    """
    kept: list[bytes] = []
    depth = 0
    for token in _JSON_TOKEN.findall(content):
        if token in _CLOSING:
            depth -= 1
        if depth < MAX_DEPTH or (depth == MAX_DEPTH and token not in _OPENING | _CLOSING):
            kept.append(token)
        elif depth == MAX_DEPTH and token in _OPENING:
            kept.append(b"null")
        if token in _OPENING:
            depth += 1
    tolerant = json.loads(b"".join(kept).decode(errors="replace"), strict=False)
    return json.dumps(tolerant, ensure_ascii=False).encode(errors="replace")


def parse_updates(raw: Raw) -> list[ReceivedUpdate]:
    """Parse a list of updates. Raises `BadResponse` if it contains something else, and no update at all."""
    try:
        return [ReceivedUpdate(update.update_id, update) for update in parse(raw, _updates)]
    except BadResponse:
        # Without parsing each update separately, one that is malformed would keep the whole batch from being
        # acknowledged, and the batch would come back forever.
        raw_updates = parse(raw, _raw_updates)
        received = [each for each in map(parse_update, raw_updates) if each is not None]
        if not received:
            raise
        if len(received) < len(raw_updates):
            # The next poll acknowledges them too: it acknowledges everything before its offset.
            log.warning("updates_without_id_skipped", count=len(raw_updates) - len(received))
        return received


def parse_update(raw: Raw | str) -> ReceivedUpdate | None:
    """Parse one update. Returns None if it has no update id."""
    try:
        update = parse(raw, _update)
    except BadResponse:
        try:
            number = parse(raw, _numbered_update).update_id
        except BadResponse:
            return None
        log.warning("update_skipped", update=number, reason="it cannot be parsed")
        return ReceivedUpdate(number, None)
    return ReceivedUpdate(update.update_id, update)
