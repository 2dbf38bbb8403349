"""Telegram's updates as our messages, and our buttons as Telegram's. Pure: an update is read or skipped."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from aiogram.types import (
    CallbackQuery,
    Chat,
    InaccessibleMessage,
    InlineKeyboardButton,
    InlineKeyboardMarkup,
    Message,
    MessageEntity,
    MessageOriginChannel,
    MessageOriginChat,
    MessageOriginHiddenUser,
    MessageOriginUnion,
    MessageOriginUser,
    Update,
)
from msgspec.structs import replace

from channels.telegram.media import media
from channels.telegram.rich import words_of
from gateway.contract import Address, Attachment, Button, Inbound, PeerKind, Quote, Sender
from gateway.text import excerpt

__all__ = ["BotIdentity", "keyboard", "moved", "read"]

MAX_BUTTON_BYTES = 64
"""https://core.telegram.org/bots/api#inlinekeyboardbutton"""
LABEL_WIDTH = 48

_AFTER_NAME = " ,:\t\n"
_KINDS = {"private": PeerKind.DIRECT, "group": PeerKind.GROUP, "supergroup": PeerKind.GROUP}


@dataclass(frozen=True, slots=True, kw_only=True)
class BotIdentity:
    """Who the bot is, to the core and to Telegram."""

    channel: str
    account: str
    id: int
    username: str
    must_be_mentioned: bool = True


def read(update: Update, bot: BotIdentity, *, now: datetime) -> Inbound | None:
    """Translate what a person said or pressed; None for all else. `now` is when a button counts as pressed."""
    if update.callback_query is not None:
        return _pressed(update.callback_query, bot, now)
    if update.message is not None:
        return _said(update.message, bot)
    if update.edited_message is not None:
        return _edited(update.edited_message, bot, update.update_id)
    return None


def moved(update: Update, bot: BotIdentity) -> tuple[Address, Address] | None:
    """Tell of a group that was made a supergroup: what it was, and what it is. Either of the two says so."""
    message = update.message
    if message is None or (message.migrate_from_chat_id is None and message.migrate_to_chat_id is None):
        return None
    here = Address(channel=bot.channel, account=bot.account, kind=PeerKind.GROUP, peer=str(message.chat.id))
    if message.migrate_from_chat_id is not None:
        return replace(here, peer=str(message.migrate_from_chat_id)), here
    return here, replace(here, peer=str(message.migrate_to_chat_id))


def keyboard(buttons: Sequence[Button]) -> InlineKeyboardMarkup | None:
    """One button a row, since labels are long. A command that is too long for a button stays out: the text has it."""
    rows = [
        [InlineKeyboardButton(text=excerpt(button.label, LABEL_WIDTH), callback_data=button.command)]
        for button in buttons
        if len(button.command.encode()) <= MAX_BUTTON_BYTES
    ]
    return InlineKeyboardMarkup(inline_keyboard=rows) if rows else None


def _pressed(query: CallbackQuery, bot: BotIdentity, now: datetime) -> Inbound | None:
    """Pressing is saying the command. Who presses may have sent other bytes, so nothing but a command is taken."""
    if query.message is None or query.data is None or not query.data.startswith("/") or query.from_user.is_bot:
        return None
    thread = None if isinstance(query.message, InaccessibleMessage) else _thread(query.message)
    address = _address(query.message.chat, thread, bot)
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


def _edited(message: Message, bot: BotIdentity, number: int) -> Inbound | None:
    """Read an edit. Telegram also calls it one when a live location moves, which says nothing."""
    if not _words(message):
        return None
    inbound = _said(message, bot)
    return inbound and replace(inbound, event_id=f"{inbound.event_id}:{number}", edits=inbound.event_id)


def _said(message: Message, bot: BotIdentity) -> Inbound | None:
    address = _address(message.chat, _thread(message), bot)
    sender = _sender(message)
    text = _words(message)
    attachments, notes = media(message)
    quotes, beside = _quoted(message, bot)
    is_something = text or notes or attachments
    if address is None or sender is None or not is_something or _is_for_another(message, bot):
        return None
    return Inbound(
        address=address,
        sender=sender,
        event_id=f"{message.chat.id}:{message.message_id}",
        text="\n".join([_without_mention(text, bot), *notes]).strip(),
        sent_at=message.date,
        message_id=str(message.message_id),
        attachments=attachments or beside,
        is_addressed=address.kind is PeerKind.DIRECT or _is_addressed(message, bot),
        forwarded_from=None if message.forward_origin is None else _origin(message.forward_origin),
        quotes=quotes,
    )


def _quoted(message: Message, bot: BotIdentity) -> tuple[Quote | None, tuple[Attachment, ...]]:
    """Return what a message answers to, and the files of that; of a longer text people can point at a part."""
    replied, elsewhere = _replied(message), message.external_reply
    part = message.quote.text if message.quote is not None else ""
    if replied is None:
        author = _origin(elsewhere.origin) if elsewhere is not None else ""
        return (Quote(author=author, text=part) if part else None), ()
    is_ours = replied.from_user is not None and replied.from_user.id == bot.id
    files, notes = media(replied)
    text = part or "\n".join(filter(None, [_words(replied), *notes]))
    quote = Quote(author=_author(replied), text=text, is_ours=is_ours) if text else None
    return quote, () if is_ours else files


def _author(message: Message) -> str:
    """Name who wrote. For what a channel or a group wrote, Telegram puts in a user of its own."""
    if message.sender_chat is not None or message.from_user is None:
        return (message.sender_chat or message.chat).title or ""
    return message.from_user.full_name


def _address(chat: Chat, thread: str | None, bot: BotIdentity) -> Address | None:
    kind = _KINDS.get(chat.type)
    if kind is None:
        return None
    return Address(channel=bot.channel, account=bot.account, kind=kind, peer=str(chat.id), thread=thread)


def _thread(message: Message) -> str | None:
    """Name the topic. Plain replies have a thread id too, which is no place to write to."""
    return str(message.message_thread_id) if message.is_topic_message and message.message_thread_id else None


def _sender(message: Message) -> Sender | None:
    """Name who wrote: a person, or an administrator who writes as the group. Bots and channels are not answered."""
    if message.sender_chat is not None:
        writes_as_group = message.sender_chat.id == message.chat.id and not message.is_automatic_forward
        return Sender(id=str(message.chat.id), name=message.chat.title or "") if writes_as_group else None
    if message.from_user is None or message.from_user.is_bot:
        return None
    return Sender(id=str(message.from_user.id), name=message.from_user.full_name)


def _origin(origin: MessageOriginUnion) -> str:
    match origin:
        case MessageOriginUser(sender_user=user):
            return user.full_name
        case MessageOriginHiddenUser(sender_user_name=name):
            return name
        case MessageOriginChat(sender_chat=chat):
            return chat.title or ""
        case MessageOriginChannel(chat=chat):
            return chat.title or ""
    return ""


def _without_mention(text: str, bot: BotIdentity) -> str:
    """Drop the bot's name from the start, so that `@bot /new` is a command."""
    name = f"@{bot.username}"
    head, rest = text[: len(name)], text[len(name) :]
    return rest.lstrip(_AFTER_NAME) if head.lower() == name.lower() and rest[:1] in tuple(_AFTER_NAME) else text


def _is_addressed(message: Message, bot: BotIdentity) -> bool:
    return not bot.must_be_mentioned or _is_reply_to(message, bot) or any(_calls(message, bot))


def _is_reply_to(message: Message, bot: BotIdentity) -> bool:
    replied = _replied(message)
    return replied is not None and replied.from_user is not None and replied.from_user.id == bot.id


def _replied(message: Message) -> Message | None:
    """Whatever is written in a topic is formally a reply to the notice that opened it; that one does not count."""
    replied = message.reply_to_message
    return replied if replied is not None and replied.forum_topic_created is None else None


def _calls(message: Message, bot: BotIdentity) -> Iterator[bool]:
    """For each thing in the text that may call the bot, tell whether it does."""
    for entity, words in _entities(message):
        match entity.type:
            case "mention":
                yield words.lower() == f"@{bot.username}".lower()
            case "text_mention":
                yield entity.user is not None and entity.user.id == bot.id
            case "bot_command":
                yield entity.offset == 0


def _is_for_another(message: Message, bot: BotIdentity) -> bool:
    """Whether it is a command with another bot's name behind it."""
    for entity, words in _entities(message):
        if entity.type == "bot_command" and entity.offset == 0:
            _, at, name = words.partition("@")
            return bool(at) and name.lower() != bot.username.lower()
    return False


def _words(message: Message) -> str:
    rich = message.rich_message
    return message.text or message.caption or (words_of(rich) if rich is not None else "")


def _entities(message: Message) -> Iterator[tuple[MessageEntity, str]]:
    """Yield each entity with its words. Telegram counts UTF-16 units; one may be said to begin inside a character."""
    units = (message.text or message.caption or "").encode("utf-16-le")
    for entity in message.entities or message.caption_entities or ():
        found = units[2 * entity.offset : 2 * (entity.offset + entity.length)]
        yield entity, found.decode("utf-16-le", "replace")
