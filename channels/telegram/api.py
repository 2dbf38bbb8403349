"""The Bot API: one method for each call that this channel makes.

Every method raises only `ChannelError`s, none of which contains the token. https://core.telegram.org/bots/api
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from itertools import chain, repeat
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog
from aiohttp import ClientError, ClientResponseError, ClientTimeout
from msgspec import Raw
from msgspec.json import Decoder

from channels.telegram.client import BotClient
from channels.telegram.errors import BadResponse, Refusal, translate_errors
from channels.telegram.payloads import (
    ReceivedUpdate,
    SentMessage,
    StoredFile,
    User,
    WebhookInfo,
    parse,
    parse_updates,
)
from channels.telegram.wire import ChatTarget, Keyboard
from config import Secret
from gateway.contract import Enclosure
from gateway.errors import AuthRejected, ChannelError, Transient, Undeliverable

log = structlog.get_logger()

INDICATOR_TIMEOUT = ClientTimeout(total=5)
"""For typing indicators, drafts and the like: one that takes longer is out of date."""
ALLOWED_UPDATES = ["message", "edited_message", "callback_query"]
# For a preview Telegram fetches the address that the agent wrote, including any data in its query.
NO_PREVIEW = {"is_disabled": True}

# The limit of https://core.telegram.org/bots/api#sendphoto. Larger images, and other types, are sent as documents.
MAX_PHOTO_BYTES = 10_000_000
_MEDIA_FIELDS = {
    "image/jpeg": "photo",
    "image/png": "photo",
    "image/webp": "photo",
    "audio/ogg": "voice",
    "audio/mpeg": "audio",
    "audio/mp4": "audio",
}
"""The field and the method for files that Telegram shows or plays: https://core.telegram.org/bots/api#sendvoice."""

_user = Decoder(User)
_sent_message = Decoder(SentMessage)
_stored_file = Decoder(StoredFile)
_webhook_info = Decoder(WebhookInfo)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingText:
    """A text to post, either plain or formatted as Telegram's HTML."""

    text: str
    is_html: bool = False
    reply_to: int | None = None
    keyboard: Keyboard | None = None

    @property
    def parse_mode(self) -> str | None:
        return "HTML" if self.is_html else None


class BotApi:
    """The calls of one bot. Use it as a context manager; it connects on the first call."""

    def __init__(self, token: Secret, base: str | None) -> None:
        self._token = token
        self._client = BotClient(token, base)
        self._has_deleted_webhook = False

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)

    async def get_me(self) -> User:
        with translate_errors(self._token):
            try:
                return parse(await self._client.call("getMe", {}), _user)
            except Refusal as refusal:
                # Telegram answers 404 to text that never was a token, and 401 to a token that is no longer valid.
                if refusal.status != HTTPStatus.NOT_FOUND:
                    raise
                raise AuthRejected(
                    "Telegram doesn't recognise this bot token. Ask @BotFather for the correct one."
                ) from refusal

    async def set_menu(self, commands: Mapping[str, str], *, chat: int | None = None) -> None:
        """Register `commands`, each with its description, as the bot's command menu, or as that of one chat."""
        await self._set_menu(commands, None if chat is None else _chat_scope(chat))

    async def set_group_menu(self, commands: Mapping[str, str]) -> None:
        """Register the menu of all groups."""
        await self._set_menu(commands, {"type": "all_group_chats"})

    async def delete_menu(self, chat: int) -> None:
        """Delete the menu of one chat. The bot's menu appears there instead."""
        with translate_errors(self._token):
            await self._client.call("deleteMyCommands", {"scope": _chat_scope(chat)})

    async def _set_menu(self, commands: Mapping[str, str], scope: Mapping[str, object] | None) -> None:
        menu = [{"command": name, "description": summary} for name, summary in commands.items()]
        with translate_errors(self._token):
            await self._client.call("setMyCommands", {"commands": menu, "scope": scope})

    async def get_updates(self, offset: int | None, *, wait: int, slack: int) -> list[ReceivedUpdate]:
        """Acknowledge all updates before `offset`, and return those from `offset` on.

        Telegram holds the request for up to `wait` seconds until an update comes. If no response comes within `slack`
        seconds after that, the connection is treated as dead.
        """
        fields = {"offset": offset, "timeout": wait, "allowed_updates": ALLOWED_UPDATES}
        with translate_errors(self._token):
            try:
                return parse_updates(await self._client.call("getUpdates", fields, limit=_timeout(wait + slack)))
            except Refusal as refusal:
                # Telegram does not let a bot poll while a webhook is set. Delete a leftover webhook, but only once:
                # if it comes back, another program sets it.
                is_webhook = refusal.status == HTTPStatus.CONFLICT and "webhook" in refusal.description
                if not is_webhook or self._has_deleted_webhook:
                    raise
                await self._client.call("deleteWebhook", {"drop_pending_updates": False})
                self._has_deleted_webhook = True
                log.warning("webhook_deleted", reason="a bot with a webhook cannot be polled")
                return await self.get_updates(offset, wait=wait, slack=slack)

    async def acknowledge(self, offset: int) -> None:
        """Let Telegram forget all updates before `offset`."""
        # `getUpdates` is the only call that acknowledges. The update it returns is ignored here; it comes again.
        fields = {"offset": offset, "limit": 1, "timeout": 0, "allowed_updates": ALLOWED_UPDATES}
        with translate_errors(self._token), suppress(BadResponse):
            await self._client.call("getUpdates", fields, limit=INDICATOR_TIMEOUT)

    async def send_text(self, target: ChatTarget, text: OutgoingText) -> tuple[int, int]:
        """Post a text. Returns the chat id and the message id."""

        async def send(chat: int, thread: int | None) -> Raw:
            fields = {
                "chat_id": chat,
                "text": text.text,
                "message_thread_id": thread,
                "parse_mode": text.parse_mode,
                "link_preview_options": NO_PREVIEW,
                "reply_parameters": _reply_parameters(text.reply_to),
                "reply_markup": text.keyboard,
            }
            return await self._client.call("sendMessage", fields)

        return await self._post(target, send)

    async def send_file(
        self, target: ChatTarget, file: Enclosure, path: Path, *, caption: str | None, reply_to: int | None
    ) -> tuple[int, int]:
        """Post a file, as a photo if possible. Returns the chat id and the message id."""

        async def send(chat: int, thread: int | None) -> Raw:
            fields = {
                "chat_id": chat,
                "caption": caption,
                "message_thread_id": thread,
                "reply_parameters": _reply_parameters(reply_to),
            }
            field = _MEDIA_FIELDS.get(file.media_type)
            if field is not None and (field != "photo" or file.size <= MAX_PHOTO_BYTES):
                method = f"send{field.capitalize()}"
                try:
                    return await self._client.upload(method, fields, field=field, path=path, name=file.name)
                except Refusal as refusal:
                    # Too wide, too tall, or not decodable; or a person who takes no voice messages. It can still be
                    # sent as a document.
                    words = ("photo", "image", "voice", "audio")
                    if not refusal.is_bad_request or not any(word in refusal.description.lower() for word in words):
                        raise
            # Otherwise Telegram shows a GIF as something else than a file.
            fields["disable_content_type_detection"] = True
            return await self._client.upload("sendDocument", fields, field="document", path=path, name=file.name)

        return await self._post(target, send)

    async def _post(self, target: ChatTarget, send: Callable[[int, int | None], Awaitable[Raw]]) -> tuple[int, int]:
        with translate_errors(self._token, is_send=True):
            chat = target.chat
            try:
                result = await send(chat, target.thread)
            except Refusal as refusal:
                # The group may have become a supergroup, which has a new chat id and none of the old threads.
                if refusal.migrate_to_chat_id is None:
                    raise
                chat = refusal.migrate_to_chat_id
                result = await send(chat, None)
            return chat, parse(result, _sent_message).message_id

    async def edit_text(self, chat: int, message: int, text: OutgoingText) -> None:
        fields = {
            "chat_id": chat,
            "message_id": message,
            "text": text.text,
            "parse_mode": text.parse_mode,
            "link_preview_options": NO_PREVIEW,
            "reply_markup": text.keyboard,
        }
        with translate_errors(self._token):
            try:
                await self._client.call("editMessageText", fields)
            except Refusal as refusal:
                if not refusal.is_bad_request or "message is not modified" not in refusal.description:
                    raise

    async def show_draft(self, target: ChatTarget, draft_id: int, text: OutgoingText) -> None:
        """Show a preview of an answer. Calls with the same `draft_id` update the same preview."""
        fields = {
            "chat_id": target.chat,
            "draft_id": draft_id,
            "message_thread_id": target.thread,
            "text": text.text,
            "parse_mode": text.parse_mode,
        }
        with translate_errors(self._token):
            try:
                await self._client.call("sendMessageDraft", fields, limit=INDICATOR_TIMEOUT)
            except Refusal as refusal:
                # A user who has blocked the bot gets no draft. That does not mean that the server has no drafts.
                if refusal.status != HTTPStatus.FORBIDDEN:
                    raise

    async def show_typing(self, target: ChatTarget) -> None:
        fields = {"chat_id": target.chat, "action": "typing", "message_thread_id": target.thread}
        with translate_errors(self._token):
            await self._client.call("sendChatAction", fields, limit=INDICATOR_TIMEOUT)

    async def set_reaction(self, target: ChatTarget, message: int, emoji: str | None) -> None:
        """Replace the bot's reaction on a message. None removes it."""
        reaction = [] if emoji is None else [{"type": "emoji", "emoji": emoji}]
        fields = {"chat_id": target.chat, "message_id": message, "reaction": reaction}
        with translate_errors(self._token):
            await self._client.call("setMessageReaction", fields, limit=INDICATOR_TIMEOUT)

    async def answer_button(self, query_id: str, text: str | None = None) -> None:
        """Stop the spinner on a pressed button and show `text`. Errors are ignored."""
        fields = {"callback_query_id": query_id, "text": text}
        with suppress(ChannelError), translate_errors(self._token):
            await self._client.call("answerCallbackQuery", fields, limit=INDICATOR_TIMEOUT)

    async def set_webhook(self, url: str, secret: Secret) -> None:
        fields = {
            "url": url,
            "secret_token": secret.reveal(),
            "allowed_updates": ALLOWED_UPDATES,
            "drop_pending_updates": False,
        }
        with translate_errors(self._token):
            await self._client.call("setWebhook", fields)

    async def get_webhook_info(self) -> WebhookInfo:
        with translate_errors(self._token):
            return parse(await self._client.call("getWebhookInfo", {}), _webhook_info)

    async def delete_webhook(self) -> None:
        """Remove the webhook. Telegram keeps the updates that are waiting."""
        with translate_errors(self._token):
            await self._client.call("deleteWebhook", {"drop_pending_updates": False})

    async def stream_file(self, file_id: str) -> AsyncGenerator[bytes, None]:
        """Yield the content of a file that a user has sent."""
        with translate_errors(self._token):
            found = parse(await self._client.call("getFile", {"file_id": file_id}), _stored_file)
        if not found.file_path:
            raise Undeliverable("Telegram doesn't let bots download this file.")
        # The URL contains the token, and aiohttp's errors quote the URL. So none of them becomes a cause.
        try:
            async with aclosing(self._client.download(found.file_path)) as file:
                async for chunk in file:
                    yield chunk
        except ClientResponseError as refusal:
            if refusal.status in {HTTPStatus.NOT_FOUND, HTTPStatus.BAD_REQUEST}:
                raise Undeliverable("Telegram no longer has this file.") from None
            raise Transient(f"Telegram answered {refusal.status} to the download of a file.") from None
        except (ClientError, OSError):
            raise Transient("The connection to Telegram broke during a file download.") from None


@cache
def _timeout(seconds: int) -> ClientTimeout:
    return ClientTimeout(total=seconds)


def _chat_scope(chat: int) -> dict[str, object]:
    return {"type": "chat", "chat_id": chat}


def _reply_parameters(reply_to: int | None) -> dict[str, object] | None:
    # The message may have been deleted since. Then the answer is posted without a reference to it.
    return None if reply_to is None else {"message_id": reply_to, "allow_sending_without_reply": True}


def retry_delays() -> Iterator[float]:
    """Yield how many seconds to wait before each retry."""
    return chain((1.0, 2.0, 5.0, 10.0), repeat(30.0))


def delay_after(error: ChannelError, delays: Iterator[float]) -> float:
    """Return the delay that Telegram asked for, or the next one of `delays`."""
    retry_after = error.retry_after if isinstance(error, Transient) else None
    return retry_after or next(delays)
