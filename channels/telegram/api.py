"""The Bot API, one method for each call this channel makes; what it raises is ours, and never holds the token."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import structlog
from aiogram import Bot
from aiogram.client.session.aiohttp import AiohttpSession
from aiogram.client.telegram import PRODUCTION, TelegramAPIServer
from aiogram.exceptions import (
    ClientDecodeError,
    TelegramBadRequest,
    TelegramConflictError,
    TelegramForbiddenError,
    TelegramMigrateToChat,
    TelegramNotFound,
)
from aiogram.types import (
    BotCommand,
    InlineKeyboardMarkup,
    LinkPreviewOptions,
    ReactionTypeEmoji,
    ReactionTypeUnion,
    ReplyParameters,
    Update,
    User,
)
from pydantic import ValidationError

from channels.telegram.aiogram_loading import build_models
from channels.telegram.albums import Arrived
from channels.telegram.errors import translated
from channels.telegram.files import FileApi
from channels.telegram.places import Place
from channels.telegram.sent import number_of
from config import Secret
from gateway.errors import AuthRejected, ChannelError

__all__ = ["BotApi", "Letter", "WebhookState"]

log = structlog.get_logger()

TIMEOUT = 30
SIGN_TIMEOUT = 5
"""A sign of life that takes longer is out of date."""
WANTED = ["message", "edited_message", "callback_query"]
# A preview makes Telegram fetch whatever address the agent has written, with all that may be in it.
NO_PREVIEW = LinkPreviewOptions(is_disabled=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A text on its way out; formatted as Telegram's HTML, or plain."""

    text: str
    is_html: bool = False
    reply_to: int | None = None
    keyboard: InlineKeyboardMarkup | None = None

    @property
    def parse_mode(self) -> str | None:
        return "HTML" if self.is_html else None


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookState:
    """Where Telegram calls, how many updates wait, and when and how the last call failed."""

    url: str
    waiting: int
    failed_at: float | None
    failure: str


class BotApi:
    """Open from `async with` on; it makes its connection when it is first used."""

    def __init__(self, token: Secret, base: str | None) -> None:
        server = TelegramAPIServer.from_base(base) if base else PRODUCTION
        self._token = token
        self._bot = Bot(token.reveal(), session=AiohttpSession(api=server, timeout=TIMEOUT))
        self.files = FileApi(self._bot, token)
        self._has_deleted_webhook = False
        self._models = build_models()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._bot.session.close()

    async def me(self) -> User:
        with translated(self._token):
            try:
                return await self._bot.get_me()
            except TelegramNotFound as unknown:  # What a token gets that never was one.
                raise AuthRejected(
                    "Telegram does not know this bot's token. @BotFather shows the right one."
                ) from unknown

    async def set_menu(self, commands: Mapping[str, str]) -> None:
        with translated(self._token):
            menu = [BotCommand(command=name, description=summary) for name, summary in commands.items()]
            await self._bot.set_my_commands(menu)

    async def updates(self, offset: int | None, *, wait: int, slack: int) -> list[Arrived]:
        """Acknowledge what lies before `offset` and return what follows, by id; None is one that cannot be read."""
        with translated(self._token):
            try:
                updates = await self._bot.get_updates(
                    offset=offset, timeout=wait, allowed_updates=WANTED, request_timeout=wait + slack
                )
            except ClientDecodeError as unreadable:
                return _one_by_one(unreadable, self._bot)
            except TelegramConflictError as conflict:
                if "webhook" not in conflict.message or self._has_deleted_webhook:
                    raise
                await self._delete_webhook()
                return await self.updates(offset, wait=wait, slack=slack)
        return [(update.update_id, update) for update in updates]

    async def acknowledge(self, offset: int) -> None:
        """Tell Telegram to forget what lies before `offset`, without taking anything."""
        with translated(self._token), suppress(ClientDecodeError):
            await self._bot.get_updates(
                offset=offset, limit=1, timeout=0, allowed_updates=WANTED, request_timeout=SIGN_TIMEOUT
            )

    async def send(self, place: Place, letter: Letter) -> tuple[int, int]:
        """Return the chat and the message's id in it."""
        with translated(self._token, is_send=True):
            try:
                return place.chat, await self._send(place.chat, place.thread, letter)
            except TelegramMigrateToChat as moved:
                return moved.migrate_to_chat_id, await self._send(moved.migrate_to_chat_id, None, letter)

    async def edit(self, chat: int, message: int, letter: Letter) -> None:
        with translated(self._token):
            try:
                await self._bot.edit_message_text(
                    chat_id=chat,
                    message_id=message,
                    text=letter.text,
                    parse_mode=letter.parse_mode,
                    link_preview_options=NO_PREVIEW,
                    reply_markup=letter.keyboard,
                )
            except TelegramBadRequest as refusal:
                if "message is not modified" not in refusal.message:
                    raise

    async def draft(self, place: Place, number: int, letter: Letter) -> None:
        """Show a preview; one who has blocked the bot sees none, which says nothing about drafts."""
        with translated(self._token), suppress(TelegramForbiddenError):
            await self._bot.send_message_draft(
                chat_id=place.chat,
                draft_id=number,
                message_thread_id=place.thread,
                text=letter.text,
                parse_mode=letter.parse_mode,
                request_timeout=SIGN_TIMEOUT,
            )

    async def show_typing(self, place: Place) -> None:
        with translated(self._token):
            await self._bot.send_chat_action(
                place.chat, "typing", message_thread_id=place.thread, request_timeout=SIGN_TIMEOUT
            )

    async def react(self, place: Place, message: int, emoji: str | None) -> None:
        """Put an emoji on a message in place of the one before; None takes that off."""
        reaction: list[ReactionTypeUnion] = [] if emoji is None else [ReactionTypeEmoji(emoji=emoji)]
        with translated(self._token):
            await self._bot.set_message_reaction(place.chat, message, reaction=reaction, request_timeout=SIGN_TIMEOUT)

    async def release_button(self, callback: str, text: str | None = None) -> None:
        """Stop the spinner on a pressed button, and show `text`; nothing depends on whether that works."""
        with suppress(ChannelError), translated(self._token):
            await self._bot.answer_callback_query(callback, text=text, request_timeout=SIGN_TIMEOUT)

    async def set_webhook(self, url: str, secret: Secret) -> None:
        with translated(self._token):
            await self._bot.set_webhook(
                url, secret_token=secret.reveal(), allowed_updates=WANTED, drop_pending_updates=False
            )

    async def webhook(self) -> WebhookState:
        with translated(self._token):
            info = await self._bot.get_webhook_info()
        failed_at = info.last_error_date.timestamp() if info.last_error_date else None
        return WebhookState(
            url=info.url,
            waiting=info.pending_update_count,
            failed_at=failed_at,
            failure=info.last_error_message or "",
        )

    async def delete_webhook(self) -> None:
        """Remove it; what waits at Telegram goes on waiting."""
        with translated(self._token):
            await self._bot.delete_webhook(drop_pending_updates=False)

    def update(self, raw: object) -> Arrived | None:
        """Read an update as Telegram has sent it; None for what is none."""
        number = raw.get("update_id") if isinstance(raw, dict) else None
        return (number, _read(raw, number, self._bot)) if isinstance(raw, dict) and isinstance(number, int) else None

    async def _delete_webhook(self) -> None:
        await self._bot.delete_webhook(drop_pending_updates=False)
        self._has_deleted_webhook = True
        log.warning("webhook_deleted", reason="a bot with a webhook cannot be polled")

    async def _send(self, chat: int, thread: int | None, letter: Letter) -> int:
        reply = letter.reply_to and ReplyParameters(message_id=letter.reply_to, allow_sending_without_reply=True)
        return await number_of(
            self._bot.send_message(
                chat,
                letter.text,
                message_thread_id=thread,
                parse_mode=letter.parse_mode,
                link_preview_options=NO_PREVIEW,
                reply_parameters=reply or None,
                reply_markup=letter.keyboard,
            )
        )


def _one_by_one(unreadable: ClientDecodeError, bot: Bot) -> list[Arrived]:
    """Read each update by itself: one that is newer than aiogram must not hold up the others for ever."""
    return [(number, _read(raw, number, bot)) for number, raw in _raw_updates(unreadable)]


def _raw_updates(unreadable: ClientDecodeError) -> list[tuple[int, dict[str, Any]]]:
    match unreadable.data:
        case {"ok": True, "result": [*updates]}:
            found = [(raw["update_id"], raw) for raw in updates if isinstance(raw, dict) and "update_id" in raw]
            if found and all(isinstance(number, int) for number, _ in found):
                return found
    raise unreadable


def _read(raw: dict[str, Any], number: int, bot: Bot) -> Update | None:
    try:
        return Update.model_validate(raw, context={"bot": bot})
    except ValidationError:
        log.warning("update_skipped", update=number, reason="aiogram cannot read it")
        return None
