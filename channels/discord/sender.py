"""Sends outbound messages in Discord's Markdown, and falls back to plain text where Discord rejects the form."""

import asyncio
import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Collection
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from msgspec import structs

from channels.discord.api import HISTORY_PAGE, DiscordApi, MessagePayload
from channels.discord.cache import RecentDict
from channels.discord.errors import FormRefused, ReplyRefused
from channels.discord.markup import escape, render
from channels.discord.responses import PRIVATE_PREFIX, TOO_LATE, CommandResponses
from channels.discord.wire import Json, button_rows, first_snowflake
from gateway.contract import Address, Outbound, OutboundKind, PeerKind, Receipt, TextLimit
from gateway.errors import Undeliverable
from gateway.text import clean, split

MAX_CACHED = 1024
MAX_LOOK_BACK = 500
"""Messages that `look_back` reads before it gives up."""
NONCE_CHARS = 25
"""https://discord.com/developers/docs/resources/message#create-message"""


class DiscordSender:
    """A receipt's message id is `channel:message`, because Discord finds a message only in its channel."""

    def __init__(self, api: DiscordApi, limit: TextLimit, responses: CommandResponses) -> None:
        self._api = api
        self._limit = limit
        self._responses = responses
        self._direct_channels = RecentDict[str, int](MAX_CACHED)  # By the id of the person.
        self._shown = RecentDict[str, MessagePayload](MAX_CACHED)  # Current content, by the receipt's message id.

    def learn_direct_channel(self, user: str, channel: str) -> None:
        """Remember the direct channel of a person, which saves asking for it."""
        self._direct_channels[user] = int(channel)

    async def send(self, message: Outbound, *, key: str) -> Receipt:
        payload, plain = await self._payloads(message)
        answered = await self._responses.answer(message.reply_to, message.kind, payload)
        if answered is not None:
            return answered
        if message.kind is OutboundKind.NOTICE and (message.reply_to or "").startswith(PRIVATE_PREFIX):
            message = structs.replace(message, text=TOO_LATE, buttons=())
            payload, plain = await self._payloads(message)
        receipt = await self._post(message.address, payload, plain, key)
        # Discord answers a repeated nonce with the message that it already has. After a crash that may be a draft
        # of this message, so bring it up to date.
        if self._shown[receipt.message_id].text not in {payload.text.strip(), plain.text.strip()}:
            await self.edit(receipt, message)
        return receipt

    async def send_file(self, message: Outbound, path: Path, *, key: str) -> Receipt:
        name = message.file.name if message.file else path.name
        payload, plain = (replace(each, file=path, file_name=name) for each in await self._payloads(message))
        return await self._post(message.address, payload, plain, key)

    async def edit(self, receipt: Receipt, message: Outbound) -> None:
        """Change a message, unless it already looks like that."""
        payload, plain = await self._payloads(message)
        shown = replace(payload, text=payload.text.strip())
        if self._shown.get(receipt.message_id) == shown:
            return
        channel, _, number = receipt.message_id.partition(":")
        try:
            await self._api.edit(int(channel), int(number), payload)
        except FormRefused:
            await self._api.edit(int(channel), int(number), plain)
        self._shown[receipt.message_id] = shown

    async def look_back(self, message: Outbound, *, since: datetime, known: Collection[str]) -> Receipt | None:
        """Search the chat for a message whose send had an unknown outcome."""
        payload, plain = await self._payloads(message)
        channel = await self._channel_of(message.address)
        # An answer comes after its question. If that is known, the result does not depend on our clock.
        has_question = (message.reply_to or "").isdecimal()
        after = int(message.reply_to or 0) - 1 if has_question else first_snowflake(since)
        found: list[Json] = []
        while len(found) < MAX_LOOK_BACK:
            page = await self._api.history(channel, after)
            found += page
            if len(page) < HISTORY_PAGE:
                break
            after = int(page[-1]["id"])
        else:
            raise Undeliverable("Too many messages were written since.")
        # Without the permission to read the history, Discord returns an empty page instead of an error.
        if not found and message.address.kind is not PeerKind.DIRECT:
            raise Undeliverable("The bot may not read the history of this channel.")
        texts = {payload.text.strip(), plain.text.strip()}
        for each in found:
            replied_to = int((each.get("message_reference") or {}).get("message_id") or 0)
            is_ours = each["author"]["id"] == self._api.bot_id and replied_to == (payload.reply_to or 0)
            receipt = Receipt(message_id=f"{channel}:{each['id']}")
            if is_ours and each["content"] in texts and receipt.message_id not in known:
                return receipt
        return None

    async def show_typing(self, address: Address) -> None:
        await self._api.show_typing(await self._channel_of(address))

    async def react(self, address: Address, message_id: str, emoji: str) -> None:
        await self._api.react(await self._channel_of(address), _number(message_id), emoji)

    async def unreact(self, address: Address, message_id: str, emoji: str) -> None:
        await self._api.unreact(await self._channel_of(address), _number(message_id), emoji)

    async def _payloads(self, message: Outbound) -> tuple[MessagePayload, MessagePayload]:
        """Return the formatted payload, and the plain one to fall back on."""
        # In a direct chat the question is right above, so a reference to it is noise.
        is_reply = message.address.kind is not PeerKind.DIRECT and (message.reply_to or "").isdecimal()
        plain = MessagePayload(text=clean(message.text), reply_to=int(message.reply_to or 0) if is_reply else None)
        if message.kind is OutboundKind.NOTICE:
            # Notices of the gateway are plain text, which may quote an agent: they are never sent unescaped.
            fitting = split(plain.text, self._limit.size, lambda text: self._limit.measure(escape(text)))
            plain = replace(plain, text=escape(fitting[0]) if fitting else "")
            return replace(plain, components=button_rows(message.buttons)), plain
        # An agent writes Markdown. Parsing can take a while, so use a thread.
        text = await asyncio.to_thread(render, plain.text)
        if self._limit.measure(text) > self._limit.size:  # A table drawn in columns can be longer than its source.
            text = plain.text
        return replace(plain, text=text, components=button_rows(message.buttons)), plain

    async def _post(self, address: Address, payload: MessagePayload, plain: MessagePayload, key: str) -> Receipt:
        """Send with a nonce made of `key`, so that Discord recognises a retry and shows the message once."""
        digest = hashlib.sha256(key.encode()).digest()
        nonce = urlsafe_b64encode(digest).decode()[:NONCE_CHARS]
        payload, plain = replace(payload, nonce=nonce), replace(plain, nonce=nonce)
        channel = await self._channel_of(address)
        try:
            number, shown = await self._api.send(channel, payload)
        except ReplyRefused:
            number, shown = await self._api.send(channel, replace(payload, reply_to=None))
        except FormRefused:  # Replying to a system message is also refused with this error.
            number, shown = await self._api.send(channel, replace(plain, reply_to=None))
        receipt = Receipt(message_id=f"{channel}:{number}")
        self._shown[receipt.message_id] = replace(payload, nonce="", text=shown.strip())
        return receipt

    async def _channel_of(self, address: Address) -> int:
        try:
            if address.kind is not PeerKind.DIRECT:
                return int(address.thread or address.peer)
            known = self._direct_channels.get(address.peer)
            if known is None:
                known = self._direct_channels[address.peer] = await self._api.direct_channel(int(address.peer))
        except ValueError as error:
            raise Undeliverable(f"{address.peer} is not the id of a Discord chat.") from error
        return known


def _number(message_id: str) -> int:
    if not message_id.isdecimal():
        raise Undeliverable("A slash command has no message of its own.")
    return int(message_id)
