"""Files over the Bot API: what people send is streamed in, what the agent made is sent out."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from aiogram import Bot
from aiogram.exceptions import TelegramBadRequest, TelegramMigrateToChat
from aiogram.types import FSInputFile, ReplyParameters
from aiohttp import ClientError, ClientResponseError

from channels.telegram.errors import translated
from channels.telegram.places import Place
from channels.telegram.sent import number_of
from config import Secret
from gateway.contract import Enclosure
from gateway.errors import Transient, Undeliverable

__all__ = ["FileApi", "Parcel"]

MAX_PHOTO_BYTES = 10_000_000
PHOTO_TYPES = frozenset({"image/jpeg", "image/png", "image/webp"})
TRANSFER_TIMEOUT = 600
"""The core gives up long before; this only ends what it has forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """A file on its way out, with what stands under it."""

    file: Enclosure
    path: Path
    caption: str = ""
    reply_to: int | None = None

    @property
    def upload(self) -> FSInputFile:
        return FSInputFile(self.path, filename=self.file.name)

    @property
    def is_picture(self) -> bool:
        return self.file.media_type in PHOTO_TYPES and self.file.size <= MAX_PHOTO_BYTES

    @property
    def reply(self) -> ReplyParameters | None:
        if self.reply_to is None:
            return None
        return ReplyParameters(message_id=self.reply_to, allow_sending_without_reply=True)


class FileApi:
    """`bot` belongs to whoever made it, who also closes it."""

    def __init__(self, bot: Bot, token: Secret) -> None:
        self._bot = bot
        self._token = token

    async def stream(self, file_id: str) -> AsyncGenerator[bytes, None]:
        """Yield a file's bytes. Its address holds the token, so no error of the transfer is passed on."""
        with translated(self._token):
            found = await self._bot.get_file(file_id)
        if not found.file_path:
            raise Undeliverable("Telegram does not give this file to bots.")
        url = self._bot.session.api.file_url(self._token.reveal(), found.file_path)
        async with (
            _without_address(),
            aclosing(self._bot.session.stream_content(url, timeout=TRANSFER_TIMEOUT)) as file,
        ):
            async for chunk in file:
                yield chunk

    async def send(self, place: Place, parcel: Parcel) -> tuple[int, int]:
        """Return the chat and the message's id in it."""
        with translated(self._token, is_send=True):
            try:
                return place.chat, await self._send(place.chat, place.thread, parcel)
            except TelegramMigrateToChat as moved:
                return moved.migrate_to_chat_id, await self._send(moved.migrate_to_chat_id, None, parcel)

    async def _send(self, chat: int, thread: int | None, parcel: Parcel) -> int:
        """Show a picture as one, unless Telegram finds it too large or too long; anything else is a document."""
        if parcel.is_picture:
            try:
                return await self._send_photo(chat, thread, parcel)
            except TelegramBadRequest as refusal:
                if not any(word in refusal.message.lower() for word in ("photo", "image")):
                    raise
        return await self._send_document(chat, thread, parcel)

    async def _send_photo(self, chat: int, thread: int | None, parcel: Parcel) -> int:
        return await number_of(
            self._bot.send_photo(
                chat,
                parcel.upload,
                caption=parcel.caption or None,
                message_thread_id=thread,
                reply_parameters=parcel.reply,
                request_timeout=TRANSFER_TIMEOUT,
            )
        )

    async def _send_document(self, chat: int, thread: int | None, parcel: Parcel) -> int:
        return await number_of(
            self._bot.send_document(
                chat,
                parcel.upload,
                caption=parcel.caption or None,
                message_thread_id=thread,
                reply_parameters=parcel.reply,
                # Otherwise Telegram makes something else than the file of a GIF or a recording.
                disable_content_type_detection=True,
                request_timeout=TRANSFER_TIMEOUT,
            )
        )


@asynccontextmanager
async def _without_address() -> AsyncIterator[None]:
    try:
        yield
    except ClientResponseError as refusal:
        if refusal.status in {HTTPStatus.NOT_FOUND, HTTPStatus.BAD_REQUEST}:
            raise Undeliverable("Telegram does not have this file any more.") from None
        raise Transient(f"Telegram answered {refusal.status} when asked for a file.") from None
    except (ClientError, OSError):
        raise Transient("The connection to Telegram broke during a file.") from None
