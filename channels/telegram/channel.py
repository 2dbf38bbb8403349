"""The Telegram channel as the core sees it; what speaks to Telegram is imported and connected when it runs."""

import asyncio
import importlib
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

from config import Secret
from gateway.contract import Address, Attachment, ChannelContext, Deliver, Outbound, PeerKind, Receipt, TextLimit
from gateway.errors import CannotStart, Transient
from gateway.text import utf16_length

if TYPE_CHECKING:
    from channels.telegram.connection import Connection
    from channels.telegram.outlet import Outlet

__all__ = ["TelegramChannel"]

TEXT_LIMIT = TextLimit(size=4096, measure=utf16_length)
"""Telegram counts what is visible, in UTF-16 units: https://core.telegram.org/bots/api#sendmessage."""
DRAFT_PACE = 0.5
EDIT_PACE = 1.5
MAX_BUTTONS = 30
MAX_FILE_BYTES = 50_000_000
"""What a bot may send: https://core.telegram.org/bots/api#senddocument."""

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
        self._connection: Connection | None = None

    async def run(self, deliver: Deliver) -> None:
        async with await asyncio.to_thread(_connect, self._context, self._token) as connection:
            self._connection = connection
            try:
                await connection.poll(deliver)
            finally:
                self._connection = None

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
        await self._outlet().show_typing(address)

    def _outlet(self) -> "Outlet":
        if self._connection is None:
            raise Transient("Telegram is not connected yet.")
        return self._connection.outlet


def _connect(context: ChannelContext, token: Secret) -> "Connection":
    """Import what needs aiogram, which is why this is called in a thread."""
    connection: Connection = importlib.import_module("channels.telegram.connection").connect(context, token)
    return connection


def _token(context: ChannelContext) -> Secret:
    """Return the token; one that cannot be one is a mistake in the config, which no retry mends."""
    token = context.settings.token
    account = "" if context.account == "default" else f".accounts.{context.account}"
    key = f"channels.{context.name}{account}.token"
    if token is None:
        raise CannotStart(f"{key} is missing. @BotFather on Telegram gives a new bot its token.")
    if not _TOKEN.fullmatch(token.reveal()):
        raise CannotStart(f"{key} is not a bot's token. @BotFather on Telegram shows it; it looks like 123456:ABC-DEF.")
    return token
