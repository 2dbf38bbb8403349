"""The way out: what is to be said, formatted for Telegram, and plain where Telegram does not take the formatting."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from zlib import crc32

import structlog

from channels.telegram.api import BotApi, Letter
from channels.telegram.errors import MarkupRefused
from channels.telegram.files import Parcel
from channels.telegram.markup import render
from channels.telegram.places import Place, place_of
from channels.telegram.wire import keyboard
from gateway.contract import Address, Outbound, OutboundKind, PeerKind, Receipt, TextLimit
from gateway.errors import Transient, Undeliverable
from gateway.text import clean, split

__all__ = ["Outlet"]

log = structlog.get_logger()

REMEMBERED = 512
SHORT = 200
"""Characters that are formatted in no more than a millisecond."""


class Outlet:
    """`on_sent` is called after each message that Telegram has taken."""

    def __init__(
        self,
        api: BotApi,
        limit: TextLimit,
        *,
        on_sent: Callable[[], None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._api = api
        self._limit = limit
        self._clock = clock
        self._on_sent = on_sent
        self._sent: OrderedDict[str, Receipt] = OrderedDict()
        self.has_drafts = True
        """Until the server has refused one for good."""
        self._no_drafts_before = 0.0

    async def send(self, message: Outbound, *, key: str) -> Receipt:
        """Send, unless `key` was sent lately: Telegram itself would not notice a repetition."""
        if key in self._sent:
            return self._sent[key]
        letter, plain = await self._letters(message)
        chat, number = await self._post(place_of(message.address), letter, plain)
        self._on_sent()
        return self._remember(key, Receipt(message_id=f"{chat}:{number}"))

    async def send_file(self, message: Outbound, path: Path, *, key: str) -> Receipt:
        """Send a file, unless `key` was sent lately."""
        if message.file is None:
            raise Undeliverable("There is no file to send.")
        if key in self._sent:
            return self._sent[key]
        parcel = Parcel(file=message.file, path=path, caption=clean(message.text).strip(), reply_to=_reply_to(message))
        chat, number = await self._api.files.send(place_of(message.address), parcel)
        return self._remember(key, Receipt(message_id=f"{chat}:{number}"))

    async def edit(self, receipt: Receipt, message: Outbound) -> None:
        chat, _, number = receipt.message_id.partition(":")
        letter, plain = await self._letters(message)
        try:
            await self._api.edit(int(chat), int(number), letter)
        except MarkupRefused:
            await self._api.edit(int(chat), int(number), plain)

    async def draft(self, message: Outbound, *, key: str) -> None:
        """Show a preview in a private chat; elsewhere, and on a server that has no drafts, there is none."""
        is_possible = self.has_drafts and message.address.kind is PeerKind.DIRECT
        if not is_possible or self._clock() < self._no_drafts_before:
            return
        text = (split(clean(message.text), self._limit.size, self._limit.measure) or [""])[-1]
        letter = await self._formatted_soon(text)
        try:
            await self._api.draft(place_of(message.address), crc32(key.encode()) or 1, letter)
        except MarkupRefused:
            return
        except Transient as trouble:
            self._no_drafts_before = self._clock() + (trouble.retry_after or 0.0)
        except Undeliverable as refusal:
            self.has_drafts = False
            log.info("drafts_given_up", channel=message.address.channel, reason=str(refusal))

    async def show_typing(self, address: Address) -> None:
        await self._api.show_typing(place_of(address))

    async def react(self, address: Address, message_id: str, emoji: str) -> None:
        if message_id.isdecimal():
            await self._api.react(place_of(address), int(message_id), emoji)

    async def unreact(self, address: Address, message_id: str, emoji: str) -> None:
        """Take off all that the bot has put on a message; it is one at most."""
        del emoji
        if message_id.isdecimal():
            await self._api.react(place_of(address), int(message_id), None)

    async def _post(self, place: Place, letter: Letter, plain: Letter) -> tuple[int, int]:
        try:
            return await self._api.send(place, letter)
        except MarkupRefused:
            return await self._api.send(place, plain)

    async def _letters(self, message: Outbound) -> tuple[Letter, Letter]:
        """Return the letter as it should look, and the plain one to fall back on."""
        reply_to = _reply_to(message)
        buttons = keyboard(message.buttons)
        plain = Letter(text=clean(message.text), reply_to=reply_to, keyboard=buttons)
        if message.kind is OutboundKind.NOTICE:
            return plain, plain
        formatted = await self._formatted_soon(plain.text)
        return Letter(text=formatted.text, is_html=formatted.is_html, reply_to=reply_to, keyboard=buttons), plain

    async def _formatted_soon(self, text: str) -> Letter:
        """Format a long text in a thread; for a short one, the way there takes longer than the work."""
        return await asyncio.to_thread(self._formatted, text) if len(text) > SHORT else self._formatted(text)

    def _formatted(self, text: str) -> Letter:
        """Format `text`, unless nothing or too much would be seen: a table drawn in columns may outgrow its source."""
        formatted = render(text)
        if not 0 < formatted.length <= self._limit.size:
            return Letter(text=text)
        return Letter(text=formatted.html, is_html=True)

    def _remember(self, key: str, receipt: Receipt) -> Receipt:
        self._sent[key] = receipt
        if len(self._sent) > REMEMBERED:
            self._sent.popitem(last=False)
        return receipt


def _reply_to(message: Outbound) -> int | None:
    """Name the message that is answered: in a group, where others may have spoken meanwhile."""
    is_reply = message.address.kind is PeerKind.GROUP and (message.reply_to or "").isdecimal()
    return int(message.reply_to or 0) if is_reply else None
