"""Translates Discord payloads to `Inbound` messages, and our buttons to Discord components. Pure functions, no I/O."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gateway.contract import Address, Attachment, AttachmentKind, Button, Inbound, PeerKind, Quote, Sender
from gateway.text import excerpt

Json = dict[str, Any]  # Discord payloads have no fixed shape.

# Limits of a button: https://discord.com/developers/docs/components/reference
MAX_COMMAND_CHARS = 100
MAX_LABEL_CHARS = 80
BUTTONS_IN_ROW = 5

MAX_NAME_CHARS = 100
MAX_POLL_CHARS = 300
DISCORD_EPOCH_MS = 1_420_070_400_000
"""Snowflakes count milliseconds from the start of 2015."""
UNREADABLE = (KeyError, TypeError, ValueError, AttributeError)
"""Errors of reading a payload whose shape is newer than this code. Skip it: it must not hold up the others."""

_MESSAGE_TYPES = {0, 19}  # A message and a reply. All other types are system notices (a pin, a new member, ...).
_FORWARD = 1  # https://discord.com/developers/docs/resources/message#message-reference-types
_VOICE_MESSAGE = 1 << 13  # https://discord.com/developers/docs/resources/message#message-object-message-flags
_TEXT_DISPLAY = 10  # https://discord.com/developers/docs/components/reference#text-display
_THREAD_TYPES = {10, 11, 12}  # https://discord.com/developers/docs/resources/channel#channel-object-channel-types
_USER_MENTION = re.compile(r"<@!?([0-9]+)>")
_USER_OR_ROLE_MENTION = re.compile(r"<@!?(&?[0-9]+)>")
_SEPARATORS = " ,:\t\n"
_KINDS = {"image": AttachmentKind.IMAGE, "audio": AttachmentKind.AUDIO, "video": AttachmentKind.VIDEO}


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscordBot:
    """The bot's identity, for the core and for Discord."""

    channel: str
    account: str
    id: str
    role: str = ""
    """The role that Discord created for the bot in the current server, if known."""
    must_be_mentioned: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscordChat:
    """A direct chat, a server channel or a thread. Only the last two have a `guild`, only a thread has a `parent`."""

    channel: str
    guild: str | None = None
    parent: str | None = None


def read_message(message: Json, chat: DiscordChat, bot: DiscordBot) -> Inbound | None:
    """Translate a message that a person wrote or edited. Return None for all other messages."""
    author = message["author"]
    if author.get("bot") or "webhook_id" in message or message.get("type", 0) not in _MESSAGE_TYPES:
        return None

    # A forward has its content in a snapshot, which does not name the original author.
    snapshots = message.get("message_snapshots") or []
    is_forward = bool(snapshots) and (message.get("message_reference") or {}).get("type") == _FORWARD
    source = (snapshots[0].get("message") or {}) if is_forward else message
    text = source.get("content") or embedded_text(source)

    # Without the leading mention, "@bot /new" is a command.
    mention = _USER_OR_ROLE_MENTION.match(text)
    if mention is not None and mention[1] in {bot.id, f"&{bot.role}"}:
        text = text[mention.end() :].lstrip(_SEPARATORS)
    attachments, notes = media(source, chat.channel, message["id"])
    text = "\n".join([_with_names(text, message), *notes]).strip()

    # The role that Discord creates for a bot has the bot's name: typing `@` offers both, and they look the same.
    is_mentioned = any(str(user["id"]) == bot.id for user in message.get("mentions") or ())
    is_mentioned = is_mentioned or bot.role in map(str, message.get("mention_roles") or ())
    if not text and not attachments and chat.guild is not None and not is_mentioned:
        return None  # Without the Message Content intent, every message that does not mention the bot is empty.

    replied = message.get("referenced_message") or {}
    replied_author = replied.get("author") or {}
    is_reply_to_bot = str(replied_author.get("id")) == bot.id
    quote = None
    if replied_author:
        quoted_files, notes = media(replied, chat.channel, str(replied.get("id")))
        quoted = _with_names(replied.get("content") or embedded_text(replied), replied)
        if quoted := "\n".join(filter(None, [quoted, *notes])):
            quote = Quote(author=sender_of(replied_author, None).name, text=quoted, is_ours=is_reply_to_bot)
        if not attachments and not is_reply_to_bot:
            attachments = quoted_files

    edited_at = message.get("edited_timestamp")
    return Inbound(
        address=address_of(chat, str(author["id"]), bot),
        sender=sender_of(author, message.get("member")),
        event_id=f"{message['id']}:{edited_at}" if edited_at else str(message["id"]),
        text=text,
        sent_at=created_at(message["id"]),
        message_id=str(message["id"]),
        attachments=attachments,
        guild=chat.guild,
        is_addressed=chat.guild is None or not bot.must_be_mentioned or is_mentioned or is_reply_to_bot,
        edits=str(message["id"]) if edited_at else None,
        forwarded_from="" if is_forward else None,
        quotes=quote,
    )


def media(source: Json, channel: str, message: str) -> tuple[tuple[Attachment, ...], list[str]]:
    """Return the files of a message, and a note for each sticker and poll.

    Discord's URLs expire, so an attachment refers to its file by the ids of `channel`, `message` and file.
    """
    is_voice = bool(source.get("flags", 0) & _VOICE_MESSAGE)
    files = []
    for file in source.get("attachments") or ():
        media_type = str(file.get("content_type") or "application/octet-stream").partition(";")[0]
        kind = _KINDS.get(media_type.partition("/")[0], AttachmentKind.FILE)
        # A name is shown to people and may become part of a path, so it must not hold one.
        name = str(file.get("filename") or "").replace("/", "_").replace("\\", "_").lstrip(".")
        files.append(
            Attachment(
                kind=AttachmentKind.VOICE if is_voice else kind,
                name=excerpt(name, MAX_NAME_CHARS) or str(kind),
                media_type=media_type,
                size=int(file.get("size") or 0),
                ref=f"{channel}:{message}:{file['id']}",
            )
        )
    stickers = [str(sticker.get("name", "")) for sticker in source.get("sticker_items") or ()]
    notes = [f"[sticker {excerpt(name, MAX_NAME_CHARS)}".rstrip() + "]" for name in stickers]
    if poll := source.get("poll"):
        question = (poll.get("question") or {}).get("text", "")
        answers = [(answer.get("poll_media") or {}).get("text", "") for answer in poll.get("answers") or ()]
        notes.append(f"[poll: {excerpt(', '.join([question, *answers]), MAX_POLL_CHARS)}]")
    return tuple(files), notes


def embedded_text(source: Json) -> str:
    """Return the text of embeds and components. Posts of bots, which people forward, often have no other text."""
    return "\n".join(part.strip() for part in _embedded_parts(source) if part.strip())


def _embedded_parts(source: Json) -> Iterator[str]:
    for embed in source.get("embeds") or ():
        yield from (str(embed.get(part) or "") for part in ("title", "description", "url"))
        for field in embed.get("fields") or ():
            yield f"{field.get('name', '')}: {field.get('value', '')}"
    for component in source.get("components") or ():
        if component.get("type") == _TEXT_DISPLAY:
            yield str(component.get("content") or "")
        yield from _embedded_parts({"components": component.get("components")})


def _with_names(text: str, message: Json) -> str:
    """Replace the ids of mentioned users by their names."""
    names = {str(user["id"]): sender_of(user, user.get("member")).name for user in message.get("mentions") or ()}
    return _USER_MENTION.sub(lambda found: f"@{names[found[1]]}" if names.get(found[1]) else found[0], text)


def address_of(chat: DiscordChat, person: str, bot: DiscordBot) -> Address:
    """Return the address of a chat. A direct chat has the id of the person, not of Discord's channel."""
    if chat.guild is None:
        return Address(channel=bot.channel, account=bot.account, kind=PeerKind.DIRECT, peer=person)
    return Address(
        channel=bot.channel,
        account=bot.account,
        kind=PeerKind.CHANNEL,
        peer=chat.parent or chat.channel,
        thread=chat.channel if chat.parent else None,
    )


def sender_of(user: Json, member: Json | None) -> Sender:
    name = (member or {}).get("nick") or user.get("global_name") or user.get("username") or ""
    return Sender(id=str(user["id"]), name=name)


def thread_parent(channel: Json) -> int:
    """Return the id of the channel that a thread belongs to, or 0 if `channel` is not a thread."""
    return int(channel.get("parent_id") or 0) if channel.get("type") in _THREAD_TYPES else 0


def chat_of_interaction(interaction: Json) -> DiscordChat:
    """Return the chat of an interaction, whose payload includes the channel. That of a message does not."""
    guild, channel = interaction.get("guild_id"), interaction.get("channel") or {}
    parent = thread_parent(channel)
    return DiscordChat(
        channel=str(interaction.get("channel_id") or channel["id"]),
        guild=str(guild) if guild else None,
        parent=str(parent) if guild and parent else None,
    )


def created_at(snowflake: str | int) -> datetime:
    """Return the time that an id contains: https://discord.com/developers/docs/reference#snowflakes."""
    return datetime.fromtimestamp(((int(snowflake) >> 22) + DISCORD_EPOCH_MS) / 1000, UTC)


def first_snowflake(since: datetime) -> int:
    """Return the lowest id that Discord can have assigned at that time."""
    return max(int(since.timestamp() * 1000) - DISCORD_EPOCH_MS, 0) << 22


def button_rows(buttons: Sequence[Button]) -> list[Json]:
    """Lay out the buttons in rows. Leaves out commands that are too long for a button; the text lists them too."""
    keys = [
        {"type": 2, "style": 2, "label": excerpt(button.label, MAX_LABEL_CHARS) or "…", "custom_id": button.command}
        for button in buttons
        if len(button.command) <= MAX_COMMAND_CHARS
    ]
    rows = [keys[start : start + BUTTONS_IN_ROW] for start in range(0, len(keys), BUTTONS_IN_ROW)]
    return [{"type": 1, "components": row} for row in rows]
