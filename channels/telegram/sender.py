"""Sends the gateway's messages to Telegram: formatted, or as plain text if Telegram rejects the formatting."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic
from zlib import crc32

import structlog

from channels.telegram.api import BotApi, OutgoingText
from channels.telegram.errors import MarkupRefused
from channels.telegram.markup import is_plain, render, visible_length
from channels.telegram.wire import keyboard, target_of
from gateway.contract import Address, Outbound, OutboundKind, PeerKind, Receipt, TextLimit
from gateway.errors import Transient, Undeliverable
from gateway.text import clean

log = structlog.get_logger()

REMEMBERED_KEYS = 512
MAX_INLINE_FORMATTING = 200
"""Texts up to this many characters are formatted on the event loop. That takes at most a millisecond."""


class TelegramSender:
    def __init__(self, api: BotApi, limit: TextLimit, *, clock: Callable[[], float] = monotonic) -> None:
        self._api = api
        self._limit = limit
        self._clock = clock
        self._receipts: OrderedDict[str, Receipt] = OrderedDict()
        self.has_drafts = True
        """False once the server has rejected a draft for good. Older Bot API servers have no drafts."""
        self._no_drafts_before = 0.0

    async def send(self, message: Outbound, *, key: str) -> Receipt:
        """Post a message, unless `key` was sent recently. Telegram itself does not detect repeated messages."""
        if key in self._receipts:
            return self._receipts[key]
        target = target_of(message.address)
        formatted, plain = await self._prepare(message)
        try:
            chat, message_id = await self._api.send_text(target, formatted)
        except MarkupRefused:
            chat, message_id = await self._api.send_text(target, plain)
        return self._remember(key, chat, message_id)

    async def send_file(self, message: Outbound, path: Path, *, key: str) -> Receipt:
        """Post a file, unless `key` was sent recently."""
        if message.file is None:
            raise Undeliverable("The message has no file to send.")
        if key in self._receipts:
            return self._receipts[key]
        caption = clean(message.text).strip() or None
        chat, message_id = await self._api.send_file(
            target_of(message.address), message.file, path, caption=caption, reply_to=_reply_to(message)
        )
        return self._remember(key, chat, message_id)

    async def edit(self, receipt: Receipt, message: Outbound) -> None:
        chat, _, message_id = receipt.message_id.partition(":")
        formatted, plain = await self._prepare(message)
        try:
            await self._api.edit_text(int(chat), int(message_id), formatted)
        except MarkupRefused:
            await self._api.edit_text(int(chat), int(message_id), plain)

    async def draft(self, message: Outbound, *, key: str) -> None:
        """Show a preview of an answer that is still growing. Does nothing where drafts are not available.

        Telegram has drafts in private chats only.
        """
        is_possible = self.has_drafts and message.address.kind is PeerKind.DIRECT
        if not is_possible or self._clock() < self._no_drafts_before:
            return
        formatted = await self._format(OutgoingText(text=clean(message.text)))
        try:
            # Telegram wants a draft id that is a number and not zero.
            await self._api.show_draft(target_of(message.address), crc32(key.encode()) or 1, formatted)
        except MarkupRefused:
            return  # Markdown that is cut in the middle. The next draft may be fine.
        except Transient as error:
            self._no_drafts_before = self._clock() + (error.retry_after or 0.0)
        except Undeliverable as refusal:
            self.has_drafts = False
            log.info("drafts_not_supported", channel=message.address.channel, reason=str(refusal))

    async def show_typing(self, address: Address) -> None:
        await self._api.show_typing(target_of(address))

    async def react(self, address: Address, message_id: str, emoji: str | None) -> None:
        """Set the bot's reaction on a message, or remove it with None. A bot can have one reaction per message."""
        if message_id.isdecimal():
            await self._api.set_reaction(target_of(address), int(message_id), emoji)

    async def _prepare(self, message: Outbound) -> tuple[OutgoingText, OutgoingText]:
        """Return the formatted text, and the plain text to fall back on."""
        plain = OutgoingText(text=clean(message.text), reply_to=_reply_to(message), keyboard=keyboard(message.buttons))
        # The gateway's own notices are plain text: what looks like Markdown in them is meant literally.
        return (plain if message.kind is OutboundKind.NOTICE else await self._format(plain)), plain

    async def _format(self, plain: OutgoingText) -> OutgoingText:
        """Render Markdown as Telegram's HTML, in a thread if the text is long."""
        if is_plain(plain.text):
            return plain
        is_short = len(plain.text) <= MAX_INLINE_FORMATTING
        html = render(plain.text) if is_short else await asyncio.to_thread(render, plain.text)
        # A link definition alone renders as nothing, and a table drawn in columns may be longer than its source.
        if not 0 < visible_length(html) <= self._limit.size:
            return plain
        return replace(plain, text=html, is_html=True)

    def _remember(self, key: str, chat: int, message_id: int) -> Receipt:
        receipt = Receipt(message_id=f"{chat}:{message_id}")
        self._receipts[key] = receipt
        if len(self._receipts) > REMEMBERED_KEYS:
            self._receipts.popitem(last=False)
        return receipt


def _reply_to(message: Outbound) -> int | None:
    # In a group other people may have written in the meantime. In a private chat a reference would be noise.
    is_reply = message.address.kind is PeerKind.GROUP and (message.reply_to or "").isdecimal()
    return int(message.reply_to or 0) if is_reply else None
