"""The Discord channel as the core sees it. Imports discord.py only when it connects."""

import asyncio
import importlib
import re
from collections import deque
from collections.abc import AsyncGenerator, Collection
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from channels.discord.markup import escape
from gateway.contract import Address, Attachment, ChannelContext, Deliver, Outbound, Receipt, TextLimit
from gateway.errors import CannotStart, Transient
from gateway.text import utf16_length

if TYPE_CHECKING:
    from channels.discord.connection import DiscordConnection

TEXT_LIMIT = TextLimit(size=2000, measure=utf16_length)
"""https://discord.com/developers/docs/resources/message#create-message. UTF-16 is the strictest way to count emoji."""
NOTICE_LIMIT = TextLimit(size=TEXT_LIMIT.size, measure=lambda text: utf16_length(escape(text)))
"""Notices are escaped, so the length after that counts."""
EDIT_INTERVAL = 1.5
MAX_BUTTONS = 25
MAX_FILE_BYTES = 10 * 1024 * 1024
NONCE_LIFETIME = 120.0
"""Discord drops a repeated nonce for "the past few minutes". Two minutes is the least that this can mean."""

_TOKEN = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")


class DiscordChannel:
    """One bot. A malformed token raises `CannotStart`. Until `run` has connected, sending raises `Transient`."""

    text_limit = TEXT_LIMIT
    notice_limit = NOTICE_LIMIT
    edit_pace = EDIT_INTERVAL
    max_buttons = MAX_BUTTONS
    max_file_bytes = MAX_FILE_BYTES
    repeats_dropped_for = NONCE_LIFETIME

    def __init__(self, context: ChannelContext) -> None:
        self.name = context.name
        self.account = context.account
        self._context = context
        self._login_times = deque[float]()  # Counts towards the login rate limit across all connections.
        self._connection: DiscordConnection | None = None
        account = "" if context.account == "default" else f".accounts.{context.account}"
        key = f"channels.{context.name}{account}.token"
        token = context.settings.token
        if token is None:
            raise CannotStart(
                f"{key} is missing. Create an application in Discord's Developer Portal, "
                "turn on Message Content Intent on its Bot page, and copy the token from there."
            )
        if not _TOKEN.fullmatch(token.reveal()):
            raise CannotStart(
                f"{key} is not a bot token. Copy it from the Bot page of Discord's Developer Portal: "
                "three parts separated by dots, without `Bot` in front."
            )
        self._token = token

    async def run(self, deliver: Deliver) -> None:
        async with await self._new_connection() as connection:
            self._connection = connection
            try:
                await connection.run(deliver)
            finally:
                self._connection = None

    async def prove_access(self, deadline: float) -> str:
        connection = await self._new_connection()
        async with asyncio.timeout(deadline), connection:
            return await connection.bot_name()

    async def send(self, message: Outbound, *, key: str) -> Receipt:
        return await self._connected().sender.send(message, key=key)

    async def send_file(self, message: Outbound, path: Path, *, key: str) -> Receipt:
        return await self._connected().sender.send_file(message, path, key=key)

    async def edit(self, receipt: Receipt, message: Outbound) -> None:
        await self._connected().sender.edit(receipt, message)

    async def look_back(self, message: Outbound, *, since: datetime, known: Collection[str]) -> Receipt | None:
        return await self._connected().sender.look_back(message, since=since, known=known)

    async def show_typing(self, address: Address) -> None:
        await self._connected().sender.show_typing(address)

    async def react(self, address: Address, message_id: str, emoji: str) -> None:
        await self._connected().sender.react(address, message_id, emoji)

    async def unreact(self, address: Address, message_id: str, emoji: str) -> None:
        await self._connected().sender.unreact(address, message_id, emoji)

    def fetch(self, attachment: Attachment, _address: Address) -> AsyncGenerator[bytes, None]:
        return self._connected().fetch(attachment)

    async def _new_connection(self) -> "DiscordConnection":
        def connect() -> "DiscordConnection":
            module = importlib.import_module("channels.discord.connection")
            connection: DiscordConnection = module.DiscordConnection(self._context, self._token, self._login_times)
            return connection

        return await asyncio.to_thread(connect)  # Importing discord.py would block the event loop for a second.

    def _connected(self) -> "DiscordConnection":
        if self._connection is None:
            raise Transient("Discord is not connected yet.")
        return self._connection
