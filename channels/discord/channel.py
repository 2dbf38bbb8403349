"""The Discord channel as the core sees it; what speaks to Discord is imported and connected when it runs."""

import asyncio
import importlib
import re
from collections import deque
from collections.abc import AsyncGenerator, Collection
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from config import Secret
from gateway.contract import Address, Attachment, ChannelContext, Deliver, Outbound, Receipt, TextLimit
from gateway.errors import CannotStart, Transient
from gateway.text import utf16_length

if TYPE_CHECKING:
    from channels.discord.connection import Connection

TEXT_LIMIT = TextLimit(size=2000, measure=utf16_length)
"""https://discord.com/developers/docs/resources/message#create-message; counted so that emoji never surprise it."""
EDIT_PACE = 1.5
MAX_BUTTONS = 25
MAX_FILE_BYTES = 10 * 1024 * 1024
REPEATS_DROPPED_FOR = 120.0
"""Discord drops a repeated nonce for "the past few minutes"; this is the least that can mean."""

_TOKEN = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")


class DiscordChannel:
    """One bot. Without a connection, sending is `Transient`: it is made as soon as the channel runs."""

    text_limit = TEXT_LIMIT
    edit_pace = EDIT_PACE
    max_buttons = MAX_BUTTONS
    max_file_bytes = MAX_FILE_BYTES
    repeats_dropped_for = REPEATS_DROPPED_FOR

    def __init__(self, context: ChannelContext) -> None:
        self.name = context.name
        self.account = context.account
        self._context = context
        self._token = _token(context)
        self._login_times = deque[float]()
        self._connection: Connection | None = None

    async def run(self, deliver: Deliver) -> None:
        connection = await asyncio.to_thread(_connect, self._context, self._token, self._login_times)
        async with connection:
            self._connection = connection
            try:
                await connection.read(deliver)
            finally:
                self._connection = None

    async def prove_access(self, deadline: float) -> str:
        connecting = await asyncio.to_thread(_connect, self._context, self._token, self._login_times)
        async with asyncio.timeout(deadline), connecting as connection:
            return await connection.own_name()

    async def send(self, message: Outbound, *, key: str) -> Receipt:
        return await self._connected().outlet.send(message, key=key)

    async def send_file(self, message: Outbound, path: Path, *, key: str) -> Receipt:
        return await self._connected().outlet.send_file(message, path, key=key)

    async def edit(self, receipt: Receipt, message: Outbound) -> None:
        await self._connected().outlet.edit(receipt, message)

    async def look_back(self, message: Outbound, *, since: datetime, known: Collection[str]) -> Receipt | None:
        return await self._connected().outlet.look_back(message, since=since, known=known)

    async def show_typing(self, address: Address) -> None:
        await self._connected().outlet.show_typing(address)

    async def react(self, address: Address, message_id: str, emoji: str) -> None:
        await self._connected().outlet.react(address, message_id, emoji)

    async def unreact(self, address: Address, message_id: str, emoji: str) -> None:
        await self._connected().outlet.unreact(address, message_id, emoji)

    def fetch(self, attachment: Attachment, _address: Address) -> AsyncGenerator[bytes, None]:
        return self._connected().fetch(attachment)

    def _connected(self) -> "Connection":
        if self._connection is None:
            raise Transient("Discord is not connected yet.")
        return self._connection


def _connect(context: ChannelContext, token: Secret, login_times: deque[float]) -> "Connection":
    """Import what needs discord.py, which is why this is called in a thread."""
    connection: Connection = importlib.import_module("channels.discord.connection").connect(context, token, login_times)
    return connection


def _token(context: ChannelContext) -> Secret:
    """Return the token; one that cannot be one is a mistake in the config, which no retry mends."""
    token = context.settings.token
    account = "" if context.account == "default" else f".accounts.{context.account}"
    key = f"channels.{context.name}{account}.token"
    if token is None:
        raise CannotStart(f"{key} is missing. Discord's Developer Portal gives a bot its token, on the page Bot.")
    if not _TOKEN.fullmatch(token.reveal()):
        raise CannotStart(
            f"{key} is not a bot's token. Discord's Developer Portal shows it on the page Bot; "
            "it is three words with dots between them, without `Bot` before it."
        )
    return token
