"""The Bot API client: one method for each call that this channel makes.

Every method raises only `ChannelError`s, none of which contains the token. https://core.telegram.org/bots/api
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from http import HTTPStatus
from itertools import chain, repeat
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import structlog
from aiogram import Bot, types
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
from aiohttp import ClientError, ClientResponseError
from pydantic import ValidationError

from channels.telegram.aiogram_loading import build_models
from channels.telegram.errors import sent_message_id, translate_errors
from channels.telegram.wire import ChatTarget
from config import Secret
from gateway.contract import Enclosure
from gateway.errors import AuthRejected, ChannelError, Transient, Undeliverable

log = structlog.get_logger()

REQUEST_TIMEOUT = 30
INDICATOR_TIMEOUT = 5
"""For typing indicators, drafts and the like: one that takes longer is out of date."""
TRANSFER_TIMEOUT = 600
"""For files. The core gives up much earlier; this only ends transfers that the core has abandoned."""
ALLOWED_UPDATES = ["message", "edited_message", "callback_query"]
# For a preview Telegram fetches the address that the agent wrote, including any data in its query.
NO_PREVIEW = types.LinkPreviewOptions(is_disabled=True)

# The limit of https://core.telegram.org/bots/api#sendphoto. Larger images, and other types, are sent as documents.
MAX_PHOTO_BYTES = 10_000_000
PHOTO_TYPES = frozenset({"image/jpeg", "image/png", "image/webp"})


AlbumKey = tuple[int, str]
"""The chat id, and the media group id that the parts of the album share."""


class ReceivedUpdate(NamedTuple):
    """An update with its id. `update` is None if aiogram could not parse it."""

    id: int
    update: types.Update | None

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


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingText:
    """A text to post, either plain or formatted as Telegram's HTML."""

    text: str
    is_html: bool = False
    reply_to: int | None = None
    keyboard: types.InlineKeyboardMarkup | None = None

    @property
    def parse_mode(self) -> str | None:
        return "HTML" if self.is_html else None


class BotApi:
    """A client for one bot. Use it as a context manager; it connects on the first call."""

    def __init__(self, token: Secret, base: str | None) -> None:
        server = TelegramAPIServer.from_base(base) if base else PRODUCTION
        self._token = token
        self._bot = Bot(token.reveal(), session=AiohttpSession(api=server, timeout=REQUEST_TIMEOUT))
        self._has_deleted_webhook = False
        self._response_models = build_models()  # Only kept alive, never read: see `build_models`.

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._bot.session.close()

    async def get_me(self) -> types.User:
        with translate_errors(self._token):
            try:
                return await self._bot.get_me()
            except TelegramNotFound as unknown:
                # Telegram answers 404 to text that never was a token, and 401 to a token that is no longer valid.
                raise AuthRejected(
                    "Telegram doesn't recognise this bot token. Ask @BotFather for the correct one."
                ) from unknown

    async def set_menu(self, commands: Mapping[str, str], *, chat: int | None = None) -> None:
        """Register `commands`, each with its description, as the bot's command menu, or as that of one chat."""
        scope = None if chat is None else types.BotCommandScopeChat(chat_id=chat)
        await self._set_menu(commands, scope)

    async def set_group_menu(self, commands: Mapping[str, str]) -> None:
        """Register the menu of all groups."""
        await self._set_menu(commands, types.BotCommandScopeAllGroupChats())

    async def delete_menu(self, chat: int) -> None:
        """Delete the menu of one chat. The bot's menu appears there instead."""
        with translate_errors(self._token):
            await self._bot.delete_my_commands(scope=types.BotCommandScopeChat(chat_id=chat))

    async def _set_menu(self, commands: Mapping[str, str], scope: types.BotCommandScopeUnion | None) -> None:
        with translate_errors(self._token):
            menu = [types.BotCommand(command=name, description=summary) for name, summary in commands.items()]
            await self._bot.set_my_commands(menu, scope=scope)

    async def get_updates(self, offset: int | None, *, wait: int, slack: int) -> list[ReceivedUpdate]:
        """Acknowledge all updates before `offset`, and return those from `offset` on.

        Telegram holds the request for up to `wait` seconds until an update comes. If no response comes within `slack`
        seconds after that, the connection is treated as dead.
        """
        with translate_errors(self._token):
            try:
                updates = await self._bot.get_updates(
                    offset=offset, timeout=wait, allowed_updates=ALLOWED_UPDATES, request_timeout=wait + slack
                )
            except ClientDecodeError as undecodable:
                # A single update that is newer than aiogram's models makes the whole batch fail. Without parsing each
                # update separately, the batch would never be acknowledged and would come back forever.
                match undecodable.data:
                    case {"ok": True, "result": [*raw_updates]}:
                        received = [each for each in map(self.parse_update, raw_updates) if each is not None]
                        if received:
                            return received
                raise
            except TelegramConflictError as conflict:
                # Telegram does not let a bot poll while a webhook is set. Delete a leftover webhook, but only once:
                # if it comes back, another program sets it.
                if "webhook" not in conflict.message or self._has_deleted_webhook:
                    raise
                await self._bot.delete_webhook(drop_pending_updates=False)
                self._has_deleted_webhook = True
                log.warning("webhook_deleted", reason="a bot with a webhook cannot be polled")
                return await self.get_updates(offset, wait=wait, slack=slack)
        return [ReceivedUpdate(update.update_id, update) for update in updates]

    async def acknowledge(self, offset: int) -> None:
        """Let Telegram forget all updates before `offset`."""
        # `getUpdates` is the only call that acknowledges. The update it returns is ignored here; it comes again.
        with translate_errors(self._token), suppress(ClientDecodeError):
            await self._bot.get_updates(
                offset=offset, limit=1, timeout=0, allowed_updates=ALLOWED_UPDATES, request_timeout=INDICATOR_TIMEOUT
            )

    def parse_update(self, raw: object) -> ReceivedUpdate | None:
        """Parse an update from its JSON. Returns None if it has no update id."""
        update_id = raw.get("update_id") if isinstance(raw, dict) else None
        if not isinstance(update_id, int):
            return None
        try:
            return ReceivedUpdate(update_id, types.Update.model_validate(raw, context={"bot": self._bot}))
        except ValidationError:
            log.warning("update_skipped", update=update_id, reason="aiogram cannot parse it")
            return ReceivedUpdate(update_id, None)

    async def send_text(self, target: ChatTarget, text: OutgoingText) -> tuple[int, int]:
        """Post a text. Returns the chat id and the message id."""
        return await self._post(
            target,
            lambda chat, thread: self._bot.send_message(
                chat,
                text.text,
                message_thread_id=thread,
                parse_mode=text.parse_mode,
                link_preview_options=NO_PREVIEW,
                reply_parameters=_reply_parameters(text.reply_to),
                reply_markup=text.keyboard,
            ),
        )

    async def send_file(
        self, target: ChatTarget, file: Enclosure, path: Path, *, caption: str | None, reply_to: int | None
    ) -> tuple[int, int]:
        """Post a file, as a photo if possible. Returns the chat id and the message id."""

        async def send(chat: int, thread: int | None) -> types.Message | None:
            upload, reply = types.FSInputFile(path, filename=file.name), _reply_parameters(reply_to)
            if file.media_type in PHOTO_TYPES and file.size <= MAX_PHOTO_BYTES:
                try:
                    return await self._bot.send_photo(
                        chat,
                        upload,
                        caption=caption,
                        message_thread_id=thread,
                        reply_parameters=reply,
                        request_timeout=TRANSFER_TIMEOUT,
                    )
                except TelegramBadRequest as refusal:
                    # Too wide, too tall, or not decodable: it can still be sent as a document.
                    if not any(word in refusal.message.lower() for word in ("photo", "image")):
                        raise
            return await self._bot.send_document(
                chat,
                upload,
                caption=caption,
                message_thread_id=thread,
                reply_parameters=reply,
                # Otherwise Telegram shows a GIF or a recording as something else than a file.
                disable_content_type_detection=True,
                request_timeout=TRANSFER_TIMEOUT,
            )

        return await self._post(target, send)

    async def _post(
        self, target: ChatTarget, send: Callable[[int, int | None], Awaitable[types.Message | None]]
    ) -> tuple[int, int]:
        with translate_errors(self._token, is_send=True):
            try:
                return target.chat, await sent_message_id(send(target.chat, target.thread))
            except TelegramMigrateToChat as moved:
                # The group has become a supergroup, which has a new chat id and none of the old threads.
                return moved.migrate_to_chat_id, await sent_message_id(send(moved.migrate_to_chat_id, None))

    async def edit_text(self, chat: int, message: int, text: OutgoingText) -> None:
        with translate_errors(self._token):
            try:
                await self._bot.edit_message_text(
                    chat_id=chat,
                    message_id=message,
                    text=text.text,
                    parse_mode=text.parse_mode,
                    link_preview_options=NO_PREVIEW,
                    reply_markup=text.keyboard,
                )
            except TelegramBadRequest as refusal:
                if "message is not modified" not in refusal.message:
                    raise

    async def show_draft(self, target: ChatTarget, draft_id: int, text: OutgoingText) -> None:
        """Show a preview of an answer. Calls with the same `draft_id` update the same preview."""
        # A user who has blocked the bot gets no draft. That does not mean that the server has no drafts.
        with translate_errors(self._token), suppress(TelegramForbiddenError):
            await self._bot.send_message_draft(
                chat_id=target.chat,
                draft_id=draft_id,
                message_thread_id=target.thread,
                text=text.text,
                parse_mode=text.parse_mode,
                request_timeout=INDICATOR_TIMEOUT,
            )

    async def show_typing(self, target: ChatTarget) -> None:
        with translate_errors(self._token):
            await self._bot.send_chat_action(
                target.chat, "typing", message_thread_id=target.thread, request_timeout=INDICATOR_TIMEOUT
            )

    async def set_reaction(self, target: ChatTarget, message: int, emoji: str | None) -> None:
        """Replace the bot's reaction on a message. None removes it."""
        reaction: list[types.ReactionTypeUnion] = [] if emoji is None else [types.ReactionTypeEmoji(emoji=emoji)]
        with translate_errors(self._token):
            await self._bot.set_message_reaction(
                target.chat, message, reaction=reaction, request_timeout=INDICATOR_TIMEOUT
            )

    async def answer_button(self, query_id: str, text: str | None = None) -> None:
        """Stop the spinner on a pressed button and show `text`. Errors are ignored."""
        with suppress(ChannelError), translate_errors(self._token):
            await self._bot.answer_callback_query(query_id, text=text, request_timeout=INDICATOR_TIMEOUT)

    async def set_webhook(self, url: str, secret: Secret) -> None:
        with translate_errors(self._token):
            await self._bot.set_webhook(
                url, secret_token=secret.reveal(), allowed_updates=ALLOWED_UPDATES, drop_pending_updates=False
            )

    async def get_webhook_info(self) -> types.WebhookInfo:
        with translate_errors(self._token):
            return await self._bot.get_webhook_info()

    async def delete_webhook(self) -> None:
        """Remove the webhook. Telegram keeps the updates that are waiting."""
        with translate_errors(self._token):
            await self._bot.delete_webhook(drop_pending_updates=False)

    async def stream_file(self, file_id: str) -> AsyncGenerator[bytes, None]:
        """Yield the content of a file that a user has sent."""
        with translate_errors(self._token):
            found = await self._bot.get_file(file_id)
        if not found.file_path:
            raise Undeliverable("Telegram doesn't let bots download this file.")
        url = self._bot.session.api.file_url(self._token.reveal(), found.file_path)
        # The URL contains the token, and aiohttp's errors quote the URL. So none of them becomes a cause.
        try:
            async with aclosing(self._bot.session.stream_content(url, timeout=TRANSFER_TIMEOUT)) as file:
                async for chunk in file:
                    yield chunk
        except ClientResponseError as refusal:
            if refusal.status in {HTTPStatus.NOT_FOUND, HTTPStatus.BAD_REQUEST}:
                raise Undeliverable("Telegram no longer has this file.") from None
            raise Transient(f"Telegram answered {refusal.status} to the download of a file.") from None
        except (ClientError, OSError):
            raise Transient("The connection to Telegram broke during a file download.") from None


def _reply_parameters(reply_to: int | None) -> types.ReplyParameters | None:
    # The message may have been deleted since. Then the answer is posted without a reference to it.
    return None if reply_to is None else types.ReplyParameters(message_id=reply_to, allow_sending_without_reply=True)


def retry_delays() -> Iterator[float]:
    """Yield how many seconds to wait before each retry."""
    return chain((1.0, 2.0, 5.0, 10.0), repeat(30.0))


def delay_after(error: ChannelError, delays: Iterator[float]) -> float:
    """Return the delay that Telegram asked for, or the next one of `delays`."""
    retry_after = error.retry_after if isinstance(error, Transient) else None
    return retry_after or next(delays)
