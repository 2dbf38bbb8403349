"""Optional abilities of a channel. Each is a separate protocol that a channel may implement."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Protocol, runtime_checkable

from config import ChannelSettings
from gateway.contract.channel import Channel, TextLimit
from gateway.contract.messages import Address, Attachment, Outbound, Receipt


@runtime_checkable
class Edits(Protocol):
    """Can edit a message that was sent."""

    @property
    def edit_pace(self) -> float:
        """Minimum number of seconds between two edits of one message."""

    async def edit(self, receipt: Receipt, message: Outbound) -> None: ...


@runtime_checkable
class Drafts(Protocol):
    """Can show an answer while it is being written. `send` with the same key then replaces the draft by the answer."""

    @property
    def draft_pace(self) -> float:
        """Minimum number of seconds between two drafts of one answer."""

    def can_draft(self, address: Address) -> bool:
        """Return whether a draft can be shown in this chat.

        If not, and the channel implements `Edits`, the core edits a message instead.
        """

    async def draft(self, message: Outbound, *, key: str) -> None:
        """Show `message.text`, the whole answer so far. A draft may be dropped. Never raises for a lost connection.

        If the channel implements `Edits` too, the text is never longer than a message: of a longer answer, the core
        sends the finished messages and shows the one that is being written, under its own key.
        """


@runtime_checkable
class DropsRepeats(Protocol):
    """Shows a message once, however often it is sent with the same key.

    A channel that also implements `Edits` then shows the last text, since a draft and its answer have the same key.
    """

    @property
    def repeats_dropped_for(self) -> float:
        """Seconds after the first send in which a repeat is recognised."""


@runtime_checkable
class LooksBack(Protocol):
    """Can look into the chat to find out whether a message with unknown outcome has arrived."""

    async def look_back(self, message: Outbound, *, since: datetime, known: Collection[str]) -> Receipt | None:
        """Return the receipt of `message` if it is there, None if it certainly is not. `Undeliverable`: who can tell.

        `known` are the ids of other messages, which may read the same.
        """


@runtime_checkable
class ShowsTyping(Protocol):
    """Can show a typing indicator."""

    async def show_typing(self, address: Address) -> None: ...


@runtime_checkable
class OffersButtons(Protocol):
    """Can render `Outbound.buttons`. On other channels the text says the same."""

    @property
    def max_buttons(self) -> int: ...


@runtime_checkable
class LimitsNotices(Protocol):
    """Has another limit for `OutboundKind.NOTICE`, for example because it escapes them, which makes them longer."""

    @property
    def notice_limit(self) -> TextLimit: ...


@runtime_checkable
class FetchesFiles(Protocol):
    """Can download the attachments of its messages. On other channels a `ref` names an upload to the gateway."""

    def fetch(self, attachment: Attachment, address: Address) -> AsyncGenerator[bytes, None]:
        """Stream the file in an async generator that can be closed at any time.

        The core reads soon after it has accepted the message, again after a crash, and only up to its own limit. Raise
        `Transient` to be retried, and `Undeliverable` if the file is gone or the platform does not release it.
        """


@runtime_checkable
class SendsFiles(Protocol):
    """Can send files. On other channels a text names the file."""

    @property
    def max_file_bytes(self) -> int: ...

    async def send_file(self, message: Outbound, path: Path, *, key: str) -> Receipt:
        """Send `message.file`, whose content is at `path`, with the same promises as `send`.

        After `Undeliverable` the core sends a text that says so.
        """


@runtime_checkable
class ShowsTranscript(Protocol):
    """Shows the transcripts of its sessions. So the core sends it no answers, which are there, but only notices."""

    @property
    def shows_transcript(self) -> bool: ...


@runtime_checkable
class Reacts(Protocol):
    """Can add an emoji to a message, and remove it."""

    async def react(self, address: Address, message_id: str, emoji: str) -> None: ...

    async def unreact(self, address: Address, message_id: str, emoji: str) -> None: ...


@runtime_checkable
class TakesSettings(Protocol):
    """Can apply new settings while it runs. Other channels are opened again, or need a restart."""

    def take_settings(self, settings: ChannelSettings) -> None:
        """Apply settings that differ only in keys that `config.reload` lists as applied. Must not fail."""


@runtime_checkable
class SendsToManyHosts(Protocol):
    """Has no platform of its own: each chat is on another server. So if one fails, the channel can still send."""

    @property
    def sends_to_many_hosts(self) -> bool: ...


@runtime_checkable
class ProvesAccess(Protocol):
    """Can check with its platform whether the bot has access, for `gatehouse doctor`."""

    async def prove_access(self, deadline: float) -> str:
        """Return the bot's name on the platform. Raises `ChannelError` if the platform rejects the bot.

        Works whether or not the channel runs, and neither receives nor sends a message. Raises `TimeoutError` if the
        platform does not answer within `deadline` seconds. The time to load an SDK does not count.
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
    notice_limit: TextLimit
    max_buttons: int
    repeats_dropped_for: float
    sends_to_many_hosts: bool
    shows_transcript: bool


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
        notice_limit=channel.notice_limit if isinstance(channel, LimitsNotices) else channel.text_limit,
        max_buttons=channel.max_buttons if isinstance(channel, OffersButtons) else 0,
        repeats_dropped_for=channel.repeats_dropped_for if isinstance(channel, DropsRepeats) else 0.0,
        sends_to_many_hosts=channel.sends_to_many_hosts if isinstance(channel, SendsToManyHosts) else False,
        shows_transcript=channel.shows_transcript if isinstance(channel, ShowsTranscript) else False,
    )
