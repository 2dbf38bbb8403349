"""Translates Telegram's updates into our messages, and our addresses, buttons and commands into Telegram's.

Pure functions. An update is read or skipped; reading raises nothing.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from msgspec.structs import replace

from channels.telegram.media import find_attachments, find_notes
from channels.telegram.payloads import CallbackQuery, Chat, Message, Update
from gateway.contract import Address, Attachment, Button, CommandInfo, Inbound, PeerKind, Quote, Sender
from gateway.errors import Undeliverable
from gateway.text import excerpt

MAX_BUTTON_BYTES = 64
"""https://core.telegram.org/bots/api#inlinekeyboardbutton"""
BUTTON_LABEL_WIDTH = 48
MENU_SUMMARY_WIDTH = 256
"""https://core.telegram.org/bots/api#botcommand"""

TOO_DEEP = "[a rich message with too many blocks inside each other]"

Keyboard = Mapping[str, Sequence[Sequence[Mapping[str, str]]]]
"""https://core.telegram.org/bots/api#inlinekeyboardmarkup"""

_MENU_NAME = re.compile(r"[a-z0-9_]{1,32}")
_AFTER_MENTION = " ,:\t\n"
_KINDS = {"private": PeerKind.DIRECT, "group": PeerKind.GROUP, "supergroup": PeerKind.GROUP}

# Fields of a rich message's blocks: inline text, and nested blocks.
_RICH_INLINE = ("text", "expression", "alternative_text", "button")
_RICH_BLOCKS = ("label", "summary", "blocks", "items", "cells", "caption", "credit")


@dataclass(frozen=True, slots=True, kw_only=True)
class BotIdentity:
    """The bot's names in the core and on Telegram."""

    channel: str
    account: str
    id: int
    username: str
    must_be_mentioned: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTarget:
    """Where on Telegram a message goes: a chat, and the forum topic in it, if any."""

    chat: int
    thread: int | None = None


def target_of(address: Address) -> ChatTarget:
    """Return the chat of `address`. Raises `Undeliverable` if its ids are not numbers."""
    try:
        return ChatTarget(chat=int(address.peer), thread=int(address.thread) if address.thread else None)
    except ValueError as wrong:
        raise Undeliverable(f"{address.peer} is not a Telegram chat id.") from wrong


def keyboard(buttons: Sequence[Button]) -> Keyboard | None:
    """Return a keyboard with one button per row, since labels are long.

    Buttons whose command exceeds Telegram's limit are left out. The message text lists the commands as well.
    """
    rows = [
        [{"text": excerpt(button.label, BUTTON_LABEL_WIDTH), "callback_data": button.command}]
        for button in buttons
        if len(button.command.encode()) <= MAX_BUTTON_BYTES
    ]
    return {"inline_keyboard": rows} if rows else None


def command_menu(commands: Iterable[CommandInfo]) -> dict[str, str]:
    """Return the commands for Telegram's menu, each with its summary.

    A menu entry is a single word, so a command of several words appears under its first alias that is one.
    """
    menu: dict[str, str] = {}
    for command in commands:
        name = next(filter(_MENU_NAME.fullmatch, (command.name, *command.aliases)), None)
        if name is not None:
            menu[name] = excerpt(command.summary, MENU_SUMMARY_WIDTH)
    return menu


def read_migration(update: Update, bot: BotIdentity) -> tuple[Address, Address] | None:
    """Return the old and the new address of a group that became a supergroup, if `update` reports that.

    Telegram reports it twice: in the old group and in the new one.
    """
    message = update.message
    if message is None or (message.migrate_from_chat_id is None and message.migrate_to_chat_id is None):
        return None
    here = Address(channel=bot.channel, account=bot.account, kind=PeerKind.GROUP, peer=str(message.chat.id))
    if message.migrate_from_chat_id is not None:
        return replace(here, peer=str(message.migrate_from_chat_id)), here
    return here, replace(here, peer=str(message.migrate_to_chat_id))


def read_update(update: Update, bot: BotIdentity, *, now: datetime) -> Inbound | None:
    """Translate a message, an edit or a button press of a person. Returns None for all other updates.

    Telegram does not say when a button was pressed, so `now` is used.
    """
    if update.callback_query is not None:
        return _read_button_press(update.callback_query, bot, now)
    if update.message is not None:
        return _read_message(update.message, bot)
    edited = update.edited_message
    # A live location that moves is reported as an edit too. It has no text.
    if edited is None or not _text_of(edited):
        return None
    inbound = _read_message(edited, bot)
    return inbound and replace(inbound, event_id=f"{inbound.event_id}:{update.update_id}", edits=inbound.event_id)


def _read_button_press(query: CallbackQuery, bot: BotIdentity, now: datetime) -> Inbound | None:
    """Translate a button press into a message with the button's command."""
    # A modified client can send any data, so only commands are accepted.
    if query.message is None or query.data is None or not query.data.startswith("/") or query.from_user.is_bot:
        return None
    address = _address_of(query.message.chat, _thread_of(query.message), bot)
    if address is None:
        return None
    return Inbound(
        address=address,
        sender=Sender(id=str(query.from_user.id), name=query.from_user.full_name),
        event_id=f"button:{query.id}",
        text=query.data,
        sent_at=now,
        message_id=str(query.message.message_id),
    )


def _read_message(message: Message, bot: BotIdentity) -> Inbound | None:
    address = _address_of(message.chat, _thread_of(message), bot)
    text, attachments, notes = _text_of(message), find_attachments(message), find_notes(message)
    if address is None or not (text or attachments or notes):
        return None

    if message.sender_chat is not None:
        # An administrator can write anonymously, as the group. Posts of other chats, such as a linked channel, come
        # with `sender_chat` too and are not answered.
        if message.sender_chat.id != message.chat.id or message.is_automatic_forward:
            return None
        sender = Sender(id=str(message.chat.id), name=message.chat.title or "")
    elif message.from_user is not None and not message.from_user.is_bot:
        sender = Sender(id=str(message.from_user.id), name=message.from_user.full_name)
    else:
        return None

    replied = _replied_message(message)
    is_reply_to_bot = replied is not None and replied.from_user is not None and replied.from_user.id == bot.id
    is_addressed = address.kind is PeerKind.DIRECT or not bot.must_be_mentioned or is_reply_to_bot
    mention = f"@{bot.username}".lower()
    # Telegram counts offsets in UTF-16 units, and an entity may start in the middle of a surrogate pair.
    units = (message.text or message.caption or "").encode("utf-16-le")
    for entity in message.entities or message.caption_entities or ():
        words = units[2 * entity.offset : 2 * (entity.offset + entity.length)].decode("utf-16-le", "replace").lower()
        match entity.type:
            case "bot_command" if entity.offset == 0:
                _, at, name = words.partition("@")
                if at and name != bot.username.lower():
                    return None  # A command for another bot in the group, like /new@other_bot.
                is_addressed = True
            case "mention":
                is_addressed |= words == mention
            case "text_mention":
                is_addressed |= entity.user is not None and entity.user.id == bot.id

    # Drop the bot's name from the start, so that "@bot /new" is a command.
    if text[: len(mention)].lower() == mention and text[len(mention) : len(mention) + 1] in tuple(_AFTER_MENTION):
        text = text[len(mention) :].lstrip(_AFTER_MENTION)
    quote, quoted_attachments = _read_quote(message, bot)
    return Inbound(
        address=address,
        sender=sender,
        event_id=f"{message.chat.id}:{message.message_id}",
        text="\n".join([text, *notes]).strip(),
        sent_at=datetime.fromtimestamp(message.date, UTC),
        message_id=str(message.message_id),
        attachments=attachments or quoted_attachments,
        is_addressed=is_addressed,
        forwarded_from=None if message.forward_origin is None else message.forward_origin.name,
        quotes=quote,
    )


def _read_quote(message: Message, bot: BotIdentity) -> tuple[Quote | None, tuple[Attachment, ...]]:
    """Return the text that a message replies to, and the files of the replied message unless the bot sent it."""
    replied, external = _replied_message(message), message.external_reply
    # People can select a part of the message that they reply to.
    selected = message.quote.text if message.quote is not None else ""
    if replied is None:
        # A reply to a message in another chat comes with its origin and the selected part, but not with its text.
        author = external.origin.name if external is not None else ""
        return (Quote(author=author, text=selected) if selected else None), ()
    text = selected or "\n".join(filter(None, [_text_of(replied), *find_notes(replied)]))
    if replied.sender_chat is not None or replied.from_user is None:
        # For a post of a channel or a group, `from_user` is a placeholder account of Telegram's.
        author = (replied.sender_chat or replied.chat).title or ""
    else:
        author = replied.from_user.full_name
    is_ours = replied.from_user is not None and replied.from_user.id == bot.id
    quote = Quote(author=author, text=text, is_ours=is_ours) if text else None
    return quote, () if is_ours else find_attachments(replied)


def _replied_message(message: Message) -> Message | None:
    # In a forum topic every message is formally a reply to the notice that created the topic. That one doesn't count.
    replied = message.reply_to_message
    return replied if replied is not None and replied.forum_topic_created is None else None


def _address_of(chat: Chat, thread: str | None, bot: BotIdentity) -> Address | None:
    kind = _KINDS.get(chat.type)
    if kind is None:
        return None
    return Address(channel=bot.channel, account=bot.account, kind=kind, peer=str(chat.id), thread=thread)


def _thread_of(message: Message) -> str | None:
    # Messages in a chain of replies have a thread id too, but only topics can be written to.
    return str(message.message_thread_id) if message.is_topic_message and message.message_thread_id else None


def _text_of(message: Message) -> str:
    if message.text or message.caption or message.rich_message is None:
        return message.text or message.caption or ""
    try:
        return "\n".join(line for line in _rich_lines(message.rich_message.blocks) if line.strip())
    except RecursionError:  # Python allows far fewer nested calls than msgspec allows nested blocks.
        return TOO_DEEP


def _rich_lines(block: object) -> Iterator[str]:
    """Yield the text of a rich message's blocks, one line per block. Media are left out.

    https://core.telegram.org/bots/api#richmessage. A block's fields depend on its kind, and new kinds may be added, so
    this looks for fields by name.
    """
    match block:
        case str():
            yield block
        case list():
            for part in block:
                yield from _rich_lines(part)
        case dict():
            yield _rich_inline(block)
            for name in _RICH_BLOCKS:
                yield from _rich_lines(block.get(name))


def _rich_inline(text: object) -> str:
    match text:
        case str():
            return text
        case list():
            return "".join(map(_rich_inline, text))
        case dict():
            return "".join(_rich_inline(text.get(name)) for name in _RICH_INLINE)
    return ""
