"""The Telegram channel as the core sees it. The connection is opened when the channel runs."""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from channels.telegram.api import BotApi
from channels.telegram.polling import Poller
from channels.telegram.sender import TelegramSender
from channels.telegram.updates import UpdateHandler
from channels.telegram.webhook_receiver import WebhookAlbums
from gateway.contract import Address, Attachment, ChannelContext, Deliver, Outbound, PeerKind, Receipt, TextLimit
from gateway.errors import CannotStart, Transient
from gateway.text import utf16_length

TEXT_LIMIT = TextLimit(size=4096, measure=utf16_length)
"""Telegram counts the visible text, in UTF-16 units: https://core.telegram.org/bots/api#sendmessage."""
MAX_POLL_SECONDS = 50
DRAFT_INTERVAL = 0.5
EDIT_INTERVAL = 1.5
MAX_BUTTONS = 30
MAX_FILE_BYTES = 50_000_000
"""The limit for uploads by bots: https://core.telegram.org/bots/api#senddocument."""

_ID = re.compile(r"-?[0-9]+")
_TOKEN = re.compile(r"[0-9]+:[A-Za-z0-9_-]+")


class Connection(NamedTuple):
    api: BotApi
    sender: TelegramSender


class TelegramChannel:
    """One bot that polls. Until it runs, it is not connected, and sending raises `Transient`."""

    text_limit = TEXT_LIMIT
    draft_pace = DRAFT_INTERVAL
    edit_pace = EDIT_INTERVAL
    max_buttons = MAX_BUTTONS
    max_file_bytes = MAX_FILE_BYTES

    def __init__(self, context: ChannelContext) -> None:
        """Check the settings. Raises `CannotStart` if a retry could never succeed."""
        self.name = context.name
        self.account = context.account
        self._context = context
        self._connection: Connection | None = None
        settings, table = context.settings, settings_table(context)
        if settings.token is None:
            raise CannotStart(f"{table}.token is missing. Create a bot with @BotFather on Telegram to get a token.")
        if not _TOKEN.fullmatch(settings.token.reveal()):
            raise CannotStart(
                f"{table}.token is not a bot token. Copy it from @BotFather on Telegram; it looks like 123456:ABC-DEF."
            )
        self._token = settings.token
        for key, ids in (("allow", settings.allow), ("group_allow", settings.group_allow)):
            # A user name that its owner gives up can be taken by someone else, who would then have access.
            names = [each for each in ids if not _ID.fullmatch(each)]
            if names:
                raise CannotStart(
                    f"{table}.{key} must list numeric Telegram ids, but contains {names[0]}. Names are not accepted, "
                    "because their owner can change. The bot tells unknown senders their id."
                )
        seconds = settings.options.get("poll_seconds", MAX_POLL_SECONDS)
        if isinstance(seconds, bool) or not isinstance(seconds, int) or not 1 <= seconds <= MAX_POLL_SECONDS:
            raise CannotStart(
                f"{table}.options.poll_seconds must be a whole number from 1 to {MAX_POLL_SECONDS}: the number of "
                "seconds for which Telegram may hold a request while there is nothing new."
            )
        longest = context.max_poll_seconds
        self._poll_seconds = seconds if longest is None else min(seconds, max(1, int(longest)))

    async def run(self, deliver: Deliver) -> None:
        async with self._connected(deliver) as (api, handler):
            # The bot may have had a webhook in its last run. Saved parts of albums were acknowledged then, so Telegram
            # does not send them again.
            await WebhookAlbums(handler, self._context.notebook).resume()
            if self._context.is_in_cluster:  # Another node may poll. This one can send.
                await handler.identify()
                self._context.pulse.up()

            async def poll() -> None:
                # A new one each time: another node may have polled since.
                lead = self._context.lead
                await Poller(api, handler, self._context.pulse, max_wait=self._poll_seconds, confirm=lead.confirm).run()

            await self._context.lead(poll)

    @asynccontextmanager
    async def _connected(self, deliver: Deliver) -> AsyncIterator[tuple[BotApi, UpdateHandler]]:
        async with BotApi(self._token, self._context.settings.api_base) as api:
            self._connection = Connection(api, TelegramSender(api, TEXT_LIMIT))
            try:
                async with UpdateHandler(api, self._context, deliver) as handler:
                    yield api, handler
            finally:
                self._connection = None

    async def prove_access(self, deadline: float) -> str:
        """Return the bot's user name, to show that the token works. Changes nothing at Telegram."""
        async with asyncio.timeout(deadline), BotApi(self._token, self._context.settings.api_base) as api:
            me = await api.get_me()
            return f"@{me.username or me.id}"

    def _require_connection(self) -> Connection:
        if self._connection is None:
            raise Transient("Telegram is not connected yet.")
        return self._connection

    async def send(self, message: Outbound, *, key: str) -> Receipt:
        return await self._require_connection().sender.send(message, key=key)

    async def send_file(self, message: Outbound, path: Path, *, key: str) -> Receipt:
        return await self._require_connection().sender.send_file(message, path, key=key)

    async def fetch(self, attachment: Attachment, address: Address) -> AsyncGenerator[bytes, None]:
        """Stream a file. Telegram's file ids do not depend on the chat, so `address` is ignored."""
        del address
        async with aclosing(self._require_connection().api.stream_file(attachment.ref)) as file:
            async for chunk in file:
                yield chunk

    async def edit(self, receipt: Receipt, message: Outbound) -> None:
        await self._require_connection().sender.edit(receipt, message)

    def can_draft(self, address: Address) -> bool:
        return address.kind is PeerKind.DIRECT and (self._connection is None or self._connection.sender.has_drafts)

    async def draft(self, message: Outbound, *, key: str) -> None:
        await self._require_connection().sender.draft(message, key=key)

    async def show_typing(self, address: Address) -> None:
        await self._require_connection().sender.show_typing(address)

    async def react(self, address: Address, message_id: str, emoji: str) -> None:
        await self._require_connection().sender.react(address, message_id, emoji)

    async def unreact(self, address: Address, message_id: str, emoji: str) -> None:
        """Remove the bot's reaction. There is at most one, so `emoji` is ignored."""
        del emoji
        await self._require_connection().sender.react(address, message_id, None)


def settings_table(context: ChannelContext) -> str:
    """Return the name of this bot's table in the configuration."""
    account = "" if context.account == "default" else f".accounts.{context.account}"
    return f"channels.{context.name}{account}"
