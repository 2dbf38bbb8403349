"""A channel with every ability and no network. A test or an embedding program acts as the person's client."""

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

CHUNK_SIZE = 65_536
QUEUE_SIZE = 1_000
"""Events that the client has not read yet. When the queue is full, `send` waits, as with a platform's rate limit."""


class Heard(Struct, frozen=True, kw_only=True):
    """An event that reached the person's client.

    `how` is send, file, draft, edit, typing, the emoji of a reaction, or `no` and the emoji when it is removed.
    """

    how: str
    address: Address
    key: str = ""
    message: Outbound | None = None
    content: bytes = b""  # The content of a file.


class LoopbackChannel:
    """The person's client calls `say` to write and `hear` to read.

    `files` are the files that the person can attach, by their ref. A file that is None cannot be fetched yet.
    """

    text_limit = TextLimit(size=4_000)
    draft_pace = 0.0
    edit_pace = 0.0
    max_buttons = 20
    max_file_bytes = 50_000_000

    def __init__(self, context: ChannelContext) -> None:
        self.name = context.name
        self.account = context.account
        self.relocate = context.relocate  # For tests: gives a chat another id, as some platforms do.
        self._pulse = context.pulse
        self._deliver: Deliver | None = None
        self._reading = asyncio.Event()
        self.files: dict[str, bytes | None] = {}
        self._heard: asyncio.Queue[Heard] = asyncio.Queue(QUEUE_SIZE)

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
        """Write `text` as `sender` (by default the peer, as an owner) and return the gateway's verdict."""
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
        """Deliver a message of which all fields are set by the caller. Waits until the channel runs."""
        await self._reading.wait()
        if self._deliver is None:
            raise Transient("The loopback channel is not running.")
        return await self._deliver(inbound)

    async def hear(self) -> Heard:
        """Return the next event, waiting for it."""
        return await self._heard.get()

    async def hear_message(self) -> Outbound:
        """Return the next final message. Skips drafts, edits, typing and reactions."""
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
        """Stream a file in chunks, as a platform would."""
        del address
        if attachment.ref not in self.files:
            raise Undeliverable("The loopback channel does not have that file.")
        content = self.files[attachment.ref]
        if content is None:
            raise Transient("The loopback channel cannot fetch that file yet.")
        for start in range(0, len(content), CHUNK_SIZE):
            yield content[start : start + CHUNK_SIZE]

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
