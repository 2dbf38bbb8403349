"""The way out: what is to be said, in Discord's dialect, and bare where Discord does not take the form."""

import asyncio
import hashlib
from base64 import urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Generic, TypeVar

from channels.discord.api import PAGE, Api, Letter
from channels.discord.errors import FormRefused, ReplyRefused
from channels.discord.gateway_connection import Frame
from channels.discord.markup import escape, render
from channels.discord.wire import components, first_id
from gateway.contract import Address, Outbound, OutboundKind, PeerKind, Receipt, TextLimit
from gateway.errors import Undeliverable
from gateway.text import clean

REMEMBERED = 1024
LOOKED_AT = 500
NONCE_CHARS = 25
"""https://discord.com/developers/docs/resources/message#create-message"""

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class _Lately(Generic[_Key, _Value]):
    """Forgets what was put first when there is too much."""

    def __init__(self) -> None:
        self._items: OrderedDict[_Key, _Value] = OrderedDict()

    def get(self, key: _Key) -> _Value | None:
        return self._items.get(key)

    def put(self, key: _Key, value: _Value) -> None:
        self._items[key] = value
        if len(self._items) > REMEMBERED:
            self._items.popitem(last=False)


class Outlet:
    def __init__(self, api: Api, limit: TextLimit) -> None:
        self._api = api
        self._limit = limit
        self._direct: _Lately[str, int] = _Lately()
        self._shown: _Lately[str, Letter] = _Lately()

    def learn(self, user: str, channel: str) -> None:
        """Remember where a person is written to directly."""
        self._direct.put(user, int(channel))

    async def send(self, message: Outbound, *, key: str) -> Receipt:
        """Send with a nonce made of `key`, by which Discord knows a repetition: then it shows what was sent first."""
        letter, bare = await self._letters(message)
        nonce = _nonce(key)
        receipt = await self._post(message.address, replace(letter, nonce=nonce), replace(bare, nonce=nonce))
        shown = self._shown.get(receipt.message_id)
        if shown is not None and shown.text not in {letter.text.strip(), bare.text.strip()}:
            await self.edit(receipt, message)
        return receipt

    async def send_file(self, message: Outbound, path: Path, *, key: str) -> Receipt:
        name = message.file.name if message.file else path.name
        letter, bare = await self._letters(message)
        letter, bare = (replace(each, nonce=_nonce(key), file=path, file_name=name) for each in (letter, bare))
        return await self._post(message.address, letter, bare)

    async def edit(self, receipt: Receipt, message: Outbound) -> None:
        """Change a message, unless it looks like that already."""
        letter, bare = await self._letters(message)
        if self._shown.get(receipt.message_id) == replace(letter, text=letter.text.strip()):
            return
        channel, _, number = receipt.message_id.partition(":")
        try:
            await self._api.edit(int(channel), int(number), letter)
        except FormRefused:
            await self._api.edit(int(channel), int(number), bare)
        self._shown.put(receipt.message_id, replace(letter, text=letter.text.strip()))

    async def look_back(self, message: Outbound, *, since: datetime, known: Collection[str]) -> Receipt | None:
        """Look for a message in its chat, where it would stand among what was written since."""
        return await self._look_back(message, since, known)

    async def _look_back(self, message: Outbound, since: datetime, known: Collection[str]) -> Receipt | None:
        letters = await self._letters(message)
        channel = await self._place(message.address)
        # Behind the question, where there is one: that holds whatever our clock says.
        after = int(message.reply_to or 0) - 1 if (message.reply_to or "").isdecimal() else first_id(since)
        found: list[Frame] = []
        while len(found) < LOOKED_AT:
            page = await self._api.history(channel, after)
            found += page
            if len(page) < PAGE:
                break
            after = int(page[-1]["id"])
        else:
            raise Undeliverable("Too much was written since.")
        if not found and message.address.kind is not PeerKind.DIRECT:
            raise Undeliverable("The bot may not read the history of this channel.")
        receipts = (f"{channel}:{each['id']}" for each in found if _is_same(each, letters, self._api.me))
        return next((Receipt(message_id=receipt) for receipt in receipts if receipt not in known), None)

    async def show_typing(self, address: Address) -> None:
        await self._api.show_typing(await self._place(address))

    async def react(self, address: Address, message_id: str, emoji: str) -> None:
        await self._api.react(await self._place(address), int(message_id), emoji)

    async def unreact(self, address: Address, message_id: str, emoji: str) -> None:
        await self._api.unreact(await self._place(address), int(message_id), emoji)

    async def _post(self, address: Address, letter: Letter, bare: Letter) -> Receipt:
        channel = await self._place(address)
        try:
            number, shown = await self._api.send(channel, letter)
        except ReplyRefused:
            number, shown = await self._api.send(channel, replace(letter, reply_to=None))
        except FormRefused:  # A notice of Discord's own cannot be replied to either.
            number, shown = await self._api.send(channel, replace(bare, reply_to=None))
        receipt = Receipt(message_id=f"{channel}:{number}")
        self._shown.put(receipt.message_id, replace(letter, nonce="", text=shown.strip()))
        return receipt

    async def _letters(self, message: Outbound) -> tuple[Letter, Letter]:
        """Return the letter as it should look, and the bare one to fall back on."""
        is_reply = message.address.kind is not PeerKind.DIRECT and (message.reply_to or "").isdecimal()
        bare = Letter(text=clean(message.text), reply_to=int(message.reply_to or 0) if is_reply else None)
        shape = escape if message.kind is OutboundKind.NOTICE else render
        text = await asyncio.to_thread(shape, bare.text)
        if self._limit.measure(text) > self._limit.size:  # A table drawn in columns may outgrow its source.
            text = bare.text
        return replace(bare, text=text, components=components(message.buttons)), bare

    async def _place(self, address: Address) -> int:
        try:
            if address.kind is not PeerKind.DIRECT:
                return int(address.thread or address.peer)
            known = self._direct.get(address.peer)
            if known is None:
                known = await self._api.direct_channel(int(address.peer))
                self._direct.put(address.peer, known)
        except ValueError as wrong:
            raise Undeliverable(f"{address.peer} is no chat on Discord.") from wrong
        return known


def _is_same(message: Frame, letters: Sequence[Letter], me: str) -> bool:
    """Whether Discord shows one of the `letters` here."""
    replied = int((message.get("message_reference") or {}).get("message_id") or 0)
    return (
        message["author"]["id"] == me
        and replied == (letters[0].reply_to or 0)
        and message["content"] in {letter.text.strip() for letter in letters}
    )


def _nonce(key: str) -> str:
    digest = hashlib.sha256(key.encode()).digest()
    return urlsafe_b64encode(digest).decode()[:NONCE_CHARS]
