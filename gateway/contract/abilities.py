"""What a channel may be able to do besides: each ability is a protocol of its own, which a channel has or has not."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Protocol, runtime_checkable

from gateway.contract.channel import Channel
from gateway.contract.messages import Address, Attachment, Outbound, Receipt


@runtime_checkable
class Edits(Protocol):
    """Can change a message that was sent."""

    @property
    def edit_pace(self) -> float:
        """Seconds to leave between two edits of one message."""

    async def edit(self, receipt: Receipt, message: Outbound) -> None: ...


@runtime_checkable
class Drafts(Protocol):
    """Can show an answer while it is being written. `send` with the same key then puts the whole in its place."""

    @property
    def draft_pace(self) -> float:
        """Seconds to leave between two drafts of one answer."""

    def can_draft(self, address: Address) -> bool:
        """Tell whether a draft can be shown in this chat.

        Where not, and the channel can edit, a message is edited instead.
        """

    async def draft(self, message: Outbound, *, key: str) -> None:
        """Show `message.text`, which is all of the answer so far. May be dropped; never raises for a lost peer."""


@runtime_checkable
class DropsRepeats(Protocol):
    """Shows a message once, however often it is sent with the same key.

    One that can also edit then shows the text that was sent last: a draft and its whole answer have the same key.
    """

    @property
    def repeats_dropped_for(self) -> float:
        """Seconds after the first send for which that holds."""


@runtime_checkable
class LooksBack(Protocol):
    """Can find out from the chat itself what became of a send whose outcome nobody knows."""

    async def look_back(self, message: Outbound, *, since: datetime, known: Collection[str]) -> Receipt | None:
        """Return the receipt of `message` if it is there, None if it certainly is not. `Undeliverable`: who can tell.

        `known` are the ids of other messages, which may read the same.
        """


@runtime_checkable
class ShowsTyping(Protocol):
    """Can show that an answer is being worked on."""

    async def show_typing(self, address: Address) -> None: ...


@runtime_checkable
class OffersButtons(Protocol):
    """Renders `Outbound.buttons`; elsewhere the text has to say the same."""

    @property
    def max_buttons(self) -> int: ...


@runtime_checkable
class FetchesFiles(Protocol):
    """Can read the files that its messages came with; elsewhere a `ref` names an upload to the gateway itself."""

    def fetch(self, attachment: Attachment, address: Address) -> AsyncGenerator[bytes, None]:
        """Stream the file as the platform sends it, as an async generator that can be closed at any time.

        The core reads soon after it has accepted the message, again after a crash, and no further than its own limit.
        `Transient` means: try again; `Undeliverable`: the file is gone, or the platform does not give it away.
        """


@runtime_checkable
class SendsFiles(Protocol):
    """Can send files; elsewhere the person is told in words that there is one."""

    @property
    def max_file_bytes(self) -> int: ...

    async def send_file(self, message: Outbound, path: Path, *, key: str) -> Receipt:
        """Send `message.file`, whose bytes are at `path`. The promises of `send` hold.

        After `Undeliverable` the person is told in words that the file could not be sent.
        """


@runtime_checkable
class Reacts(Protocol):
    """Can put an emoji on somebody's message, and take it off again."""

    async def react(self, address: Address, message_id: str, emoji: str) -> None: ...

    async def unreact(self, address: Address, message_id: str, emoji: str) -> None: ...


@runtime_checkable
class ProvesAccess(Protocol):
    """Can ask its platform whether it is let in, for people who look for what is wrong."""

    async def prove_access(self, deadline: float) -> str:
        """Name the bot as the platform knows it; raise `ChannelError` where that does not let it in.

        It works whether the channel runs or not, and neither takes nor sends a message. `TimeoutError` when the
        platform has not answered within `deadline` seconds, among which loading an SDK does not count.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    drafts: Drafts | None
    edits: Edits | None
    back: LooksBack | None
    typing: ShowsTyping | None
    reacts: Reacts | None
    fetches: FetchesFiles | None
    sends_files: SendsFiles | None
    max_buttons: int
    repeats_dropped_for: float


@lru_cache(maxsize=64)
def abilities_of(channel: Channel) -> Abilities:
    return Abilities(
        drafts=channel if isinstance(channel, Drafts) else None,
        edits=channel if isinstance(channel, Edits) else None,
        back=channel if isinstance(channel, LooksBack) else None,
        typing=channel if isinstance(channel, ShowsTyping) else None,
        reacts=channel if isinstance(channel, Reacts) else None,
        fetches=channel if isinstance(channel, FetchesFiles) else None,
        sends_files=channel if isinstance(channel, SendsFiles) else None,
        max_buttons=channel.max_buttons if isinstance(channel, OffersButtons) else 0,
        repeats_dropped_for=channel.repeats_dropped_for if isinstance(channel, DropsRepeats) else 0.0,
    )
