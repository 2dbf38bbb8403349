"""The Telegram channel as the core sees it; what speaks to Telegram is imported and connected when it runs."""

import asyncio
import importlib
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from channels.telegram.aiogram_loading import load_aiogram
from config import Secret
from gateway.contract import Address, Attachment, ChannelContext, Deliver, Outbound, PeerKind, Receipt, TextLimit
from gateway.errors import CannotStart, Transient
from gateway.text import utf16_length

if TYPE_CHECKING:
    from channels.telegram.connection import Connection
    from channels.telegram.outlet import Outlet

__all__ = ["TelegramChannel", "key_of"]

TEXT_LIMIT = TextLimit(size=4096, measure=utf16_length)
"""Telegram counts what is visible, in UTF-16 units: https://core.telegram.org/bots/api#sendmessage."""
POLL_SECONDS = 50
DRAFT_PACE = 0.5
EDIT_PACE = 1.5
TYPING_DELAY = 0.3
MAX_BUTTONS = 30
MAX_FILE_BYTES = 50_000_000
"""What a bot may send: https://core.telegram.org/bots/api#senddocument."""

_ID = re.compile(r"-?[0-9]+")
_TOKEN = re.compile(r"[0-9]+:[A-Za-z0-9_-]+")


class TelegramChannel:
    """One bot. Without a connection, sending is `Transient`: it is made as soon as the channel runs."""

    text_limit = TEXT_LIMIT
    draft_pace = DRAFT_PACE
    edit_pace = EDIT_PACE
    max_buttons = MAX_BUTTONS
    max_file_bytes = MAX_FILE_BYTES

    def __init__(self, context: ChannelContext) -> None:
        self.name = context.name
        self.account = context.account
        self._context = context
        self._token = _token(context)
        _check_ids(context)
        self._poll_seconds = _poll_seconds(context)
        self._connection: Connection | None = None

    async def run(self, deliver: Deliver) -> None:
        async with self._connected() as connection:
            await connection.poll(deliver, longest=self._poll_seconds)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator["Connection"]:
        async with await asyncio.to_thread(_connect, self._context, self._token) as connection:
            self._connection = connection
            try:
                yield connection
            finally:
                self._connection = None

    async def prove_access(self, deadline: float) -> str:
        connecting = await asyncio.to_thread(_connect, self._context, self._token)
        async with asyncio.timeout(deadline), connecting as connection:
            return await connection.own_name()

    async def send(self, message: Outbound, *, key: str) -> Receipt:
        return await self._outlet().send(message, key=key)

    async def send_file(self, message: Outbound, path: Path, *, key: str) -> Receipt:
        return await self._outlet().send_file(message, path, key=key)

    async def fetch(self, attachment: Attachment, address: Address) -> AsyncGenerator[bytes, None]:
        """Stream a file; its id is good for every chat, and its address on the server for at least an hour."""
        del address
        if self._connection is None:
            raise Transient("Telegram is not connected yet.")
        async with aclosing(self._connection.files.stream(attachment.ref)) as file:
            async for chunk in file:
                yield chunk

    async def edit(self, receipt: Receipt, message: Outbound) -> None:
        await self._outlet().edit(receipt, message)

    def can_draft(self, address: Address) -> bool:
        return address.kind is PeerKind.DIRECT and (self._connection is None or self._connection.outlet.has_drafts)

    async def draft(self, message: Outbound, *, key: str) -> None:
        await self._outlet().draft(message, key=key)

    async def show_typing(self, address: Address) -> None:
        """Show it in a moment: what is answered before needs no request for a sign, and is not delayed by one."""
        await asyncio.sleep(TYPING_DELAY)
        await self._outlet().show_typing(address)

    async def react(self, address: Address, message_id: str, emoji: str) -> None:
        await self._outlet().react(address, message_id, emoji)

    async def unreact(self, address: Address, message_id: str, emoji: str) -> None:
        await self._outlet().unreact(address, message_id, emoji)

    def _outlet(self) -> "Outlet":
        if self._connection is None:
            raise Transient("Telegram is not connected yet.")
        return self._connection.outlet


def _connect(context: ChannelContext, token: Secret) -> "Connection":
    """Import what needs aiogram, which is why this is called in a thread."""
    load_aiogram()
    connection: Connection = importlib.import_module("channels.telegram.connection").connect(context, token)
    return connection


def _token(context: ChannelContext) -> Secret:
    """Return the token; one that cannot be one is a mistake in the config, which no retry mends."""
    token, key = context.settings.token, f"{key_of(context)}.token"
    if token is None:
        raise CannotStart(f"{key} is missing. @BotFather on Telegram gives a new bot its token.")
    if not _TOKEN.fullmatch(token.reveal()):
        raise CannotStart(f"{key} is not a bot's token. @BotFather on Telegram shows it; it looks like 123456:ABC-DEF.")
    return token


def _poll_seconds(context: ChannelContext) -> int:
    seconds = context.settings.options.get("poll_seconds", POLL_SECONDS)
    if isinstance(seconds, bool) or not isinstance(seconds, int) or not 1 <= seconds <= POLL_SECONDS:
        raise CannotStart(
            f"{key_of(context)}.options.poll_seconds has to be a whole number from 1 to {POLL_SECONDS}: for so many "
            "seconds Telegram may hold back the answer that there is nothing new."
        )
    return seconds


def _check_ids(context: ChannelContext) -> None:
    """Refuse names: whoever gives one up leaves it to the next who wants it."""
    settings = context.settings
    for key, ids in (("allow", settings.allow), ("group_allow", settings.group_allow)):
        names = [each for each in ids if not _ID.fullmatch(each)]
        if names:
            raise CannotStart(
                f"{key_of(context)}.{key} holds ids, which are numbers on Telegram; {names[0]} is none. The bot tells "
                "strangers their id; names are not taken, because they can change hands."
            )


def key_of(context: ChannelContext) -> str:
    """Name the table in the configuration that this bot comes from."""
    account = "" if context.account == "default" else f".accounts.{context.account}"
    return f"channels.{context.name}{account}"
