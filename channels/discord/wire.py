"""Discord's messages as ours, and our buttons as Discord's. Pure: a message is read or skipped."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gateway.contract import Address, Attachment, AttachmentKind, Button, Inbound, PeerKind, Quote, Sender
from gateway.text import excerpt

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


MAX_BUTTON_CHARS = 100
LABEL_WIDTH = 80
BUTTONS_IN_ROW = 5
"""https://discord.com/developers/docs/components/reference"""
EPOCH = 1_420_070_400_000
"""The first millisecond of 2015, from which Discord's ids count."""

_SAID = {0, 19}
"""A message and a reply; all other types are notices of the platform."""
_FORWARDED = 1
_AFTER_NAME = " ,:\t\n"
_MENTION = re.compile(r"<@!?([0-9]+)>")
_CALL = re.compile(r"<@!?(&?[0-9]+)>")


@dataclass(frozen=True, slots=True, kw_only=True)
class BotIdentity:
    """Who the bot is, to the core and to Discord."""

    channel: str
    account: str
    id: str
    role: str = ""
    """The role that Discord made for it in the server at hand, if that is known."""
    must_be_mentioned: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where on Discord a message stands. Only what stands in a server has a `guild`, only a thread a `parent`."""

    channel: str
    guild: str | None = None
    parent: str | None = None


def read(message: Json, place: Place, bot: BotIdentity) -> Inbound | None:
    """Translate what a person wrote or edited; None for all else."""
    author = message["author"]
    if author.get("bot") or "webhook_id" in message or message.get("type", 0) not in _SAID:
        return None
    text, source, forwarded_from = _words(message)
    attachments, notes = media(source, place.channel, message["id"])
    text = "\n".join([_readable(text, message, bot), *notes]).strip()
    quotes, beside = _quoted(message, place, bot)
    if not text and not attachments and place.guild is not None and not _mentions(message, bot):
        return None  # Without the Message Content intent, whatever is not said to the bot looks like this.
    edited = message.get("edited_timestamp")
    return Inbound(
        address=address_of(place, str(author["id"]), bot),
        sender=sender_of(author, message.get("member")),
        event_id=f"{message['id']}:{edited}" if edited else str(message["id"]),
        text=text,
        sent_at=when(message["id"]),
        message_id=str(message["id"]),
        attachments=attachments or beside,
        guild=place.guild,
        is_addressed=place.guild is None or not bot.must_be_mentioned or _calls(message, bot),
        edits=str(message["id"]) if edited else None,
        forwarded_from=forwarded_from,
        quotes=quotes,
    )


def address_of(place: Place, person: str, bot: BotIdentity) -> Address:
    """Name the chat: a person's own, a channel of a server, or a thread of one."""
    if place.guild is None:
        return Address(channel=bot.channel, account=bot.account, kind=PeerKind.DIRECT, peer=person)
    return Address(
        channel=bot.channel,
        account=bot.account,
        kind=PeerKind.CHANNEL,
        peer=place.parent or place.channel,
        thread=place.channel if place.parent else None,
    )


def sender_of(user: Json, member: Json | None) -> Sender:
    name = (member or {}).get("nick") or user.get("global_name") or user.get("username") or ""
    return Sender(id=str(user["id"]), name=name)


def when(snowflake: str | int) -> datetime:
    """Return the time at which an id was given: https://discord.com/developers/docs/reference#snowflakes."""
    return datetime.fromtimestamp(((int(snowflake) >> 22) + EPOCH) / 1000, UTC)


def first_id(since: datetime) -> int:
    """Return the least id that was given at that time."""
    return max(int(since.timestamp() * 1000) - EPOCH, 0) << 22


def components(buttons: Sequence[Button]) -> list[Json]:
    """Lay out the buttons. A command that is too long for one stays out: the text has it."""
    keys = [
        {"type": 2, "style": 2, "label": excerpt(button.label, LABEL_WIDTH) or "…", "custom_id": button.command}
        for button in buttons
        if len(button.command) <= MAX_BUTTON_CHARS
    ]
    rows = [keys[start : start + BUTTONS_IN_ROW] for start in range(0, len(keys), BUTTONS_IN_ROW)]
    return [{"type": 1, "components": row} for row in rows]


def _words(message: Json) -> tuple[str, Json, str | None]:
    """Return what was written, what its files hang on, and whose words they are, which Discord does not say."""
    reference = message.get("message_reference") or {}
    snapshots = message.get("message_snapshots") or []
    if reference.get("type") == _FORWARDED and snapshots:
        forwarded = snapshots[0].get("message") or {}
        return forwarded.get("content") or embedded(forwarded), forwarded, ""
    return message.get("content") or embedded(message), message, None


def _quoted(message: Json, place: Place, bot: BotIdentity) -> tuple[Quote | None, tuple[Attachment, ...]]:
    """Return what a message answers to, and the files of that."""
    replied = message.get("referenced_message")
    if not replied or not replied.get("author"):
        return None, ()
    is_ours = str(replied["author"]["id"]) == bot.id
    files, notes = media(replied, place.channel, str(replied.get("id")))
    text = "\n".join(filter(None, [_named(replied.get("content") or embedded(replied), replied), *notes]))
    quote = Quote(author=sender_of(replied["author"], None).name, text=text, is_ours=is_ours) if text else None
    return quote, () if is_ours else files


def _readable(text: str, message: Json, bot: BotIdentity) -> str:
    """Drop the bot's name from the start, so that `@bot /new` is a command; put names for the other ids."""
    match = _CALL.match(text)
    if match is not None and match[1] in {bot.id, f"&{bot.role}"}:
        text = text[match.end() :].lstrip(_AFTER_NAME)
    return _named(text, message)


def _named(text: str, message: Json) -> str:
    """Put the names of those whom a message mentions for their ids."""
    names = {str(user["id"]): sender_of(user, user.get("member")).name for user in message.get("mentions") or ()}
    return _MENTION.sub(lambda found: f"@{names[found[1]]}" if names.get(found[1]) else found[0], text)


def _calls(message: Json, bot: BotIdentity) -> bool:
    """Whether the message mentions the bot or replies to it."""
    if _mentions(message, bot):
        return True
    replied = message.get("referenced_message") or {}
    return str((replied.get("author") or {}).get("id")) == bot.id


def _mentions(message: Json, bot: BotIdentity) -> bool:
    """Whether the bot is named, or its own role, which has the same name: who types `@` is offered both."""
    is_named = any(str(user["id"]) == bot.id for user in message.get("mentions") or ())
    return is_named or bot.role in map(str, message.get("mention_roles") or ())
