"""A channel with every ability and no network: what is said into it is delivered, what it is sent can be heard."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from msgspec import Struct

from gateway.contract import (
    Address,
    Attachment,
    Channel,
    ChannelContext,
    Deliver,
    Inbound,
    Outbound,
    PeerKind,
    Receipt,
    Sender,
    TextLimit,
    Verdict,
)
from gateway.errors import Transient, Undeliverable

__all__ = ["Heard", "LoopbackChannel", "open_channel"]

PIECE = 65_536
CAPACITY = 1_000
"""A listener this far behind makes senders wait, as a platform's rate limit does."""


class Heard(Struct, frozen=True, kw_only=True):
    """Something that reached the far side: `how` is send, file, draft, edit, typing or a reaction's emoji."""

    how: str
    address: Address
    key: str = ""
    message: Outbound | None = None
    content: bytes = b""
    """Of a file."""


class LoopbackChannel:
    """`say` is what a person's client does, `hear` what it shows; `files` are those it has, by their ref.

    One that is None is not ready to be handed over.
    """

    text_limit = TextLimit(size=4_000)
    draft_pace = 0.0
    edit_pace = 0.0
    max_buttons = 20
    max_file_bytes = 50_000_000

    def __init__(self, context: ChannelContext) -> None:
        self.name = context.name
        self.account = context.account
        self.relocate = context.relocate
        """Gives a chat another id, as some platforms do."""
        self._pulse = context.pulse
        self._deliver: Deliver | None = None
        self._reading = asyncio.Event()
        self.files: dict[str, bytes | None] = {}
        self._heard: asyncio.Queue[Heard] = asyncio.Queue(CAPACITY)

    @property
    def is_reading(self) -> bool:
        return self._reading.is_set()

    async def run(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self._reading.set()
        self._pulse.up()
        try:
            await asyncio.Event().wait()
        finally:
            self._reading.clear()

    async def say(
        self,
        text: str,
        *,
        peer: str = "somebody",
        kind: PeerKind = PeerKind.DIRECT,
        thread: str | None = None,
        sender: Sender | None = None,
        event_id: str | None = None,
        attachments: Sequence[Attachment] = (),
    ) -> Verdict:
        """Say `text` as `sender` (by default the peer, as an owner) and return what the gateway made of it."""
        address = Address(channel=self.name, account=self.account, kind=kind, peer=peer, thread=thread)
        return await self.submit(
            Inbound(
                address=address,
                sender=sender or Sender(id=peer, name=peer, is_owner=True),
                event_id=event_id or uuid4().hex,
                text=text,
                sent_at=datetime.now(UTC),
                attachments=tuple(attachments),
            ),
        )

    async def submit(self, inbound: Inbound) -> Verdict:
        """Say something with all that a platform may tell of it."""
        await self._reading.wait()
        if self._deliver is None:
            raise Transient("The loopback channel is not running.")
        return await self._deliver(inbound)

    async def hear(self) -> Heard:
        return await self._heard.get()

    async def hear_message(self) -> Outbound:
        """Return the next finished message, skipping drafts and signs of life."""
        while True:
            heard = await self.hear()
            if heard.how in {"send", "file"} and heard.message is not None:
                return heard.message

    async def send(self, message: Outbound, *, key: str) -> Receipt:
        await self._heard.put(Heard(how="send", address=message.address, key=key, message=message))
        return Receipt(message_id=key)

    async def send_file(self, message: Outbound, path: Path, *, key: str) -> Receipt:
        content = await asyncio.to_thread(path.read_bytes)
        await self._heard.put(Heard(how="file", address=message.address, key=key, message=message, content=content))
        return Receipt(message_id=key)

    async def fetch(self, attachment: Attachment, address: Address) -> AsyncGenerator[bytes, None]:
        """Hand over a file, a piece at a time, as a platform would."""
        del address
        if attachment.ref not in self.files:
            raise Undeliverable("The loopback channel does not have that file.")
        content = self.files[attachment.ref]
        if content is None:
            raise Transient("The loopback channel cannot hand over that file yet.")
        for at in range(0, len(content), PIECE):
            yield content[at : at + PIECE]

    def can_draft(self, address: Address) -> bool:  # noqa: ARG002 - the contract's signature.
        return True

    async def draft(self, message: Outbound, *, key: str) -> None:
        await self._heard.put(Heard(how="draft", address=message.address, key=key, message=message))

    async def edit(self, receipt: Receipt, message: Outbound) -> None:
        await self._heard.put(Heard(how="edit", address=message.address, key=receipt.message_id, message=message))

    async def show_typing(self, address: Address) -> None:
        await self._heard.put(Heard(how="typing", address=address))

    async def react(self, address: Address, message_id: str, emoji: str) -> None:
        await self._heard.put(Heard(how=emoji, address=address, key=message_id))

    async def unreact(self, address: Address, message_id: str, emoji: str) -> None:
        await self._heard.put(Heard(how=f"no {emoji}", address=address, key=message_id))


def open_channel(context: ChannelContext) -> Channel:
    return LoopbackChannel(context)
