"""What a channel and the core say to each other; a new channel needs nothing else of ours but `errors` and `text`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from config import ChannelSettings

if TYPE_CHECKING:
    # Only channels that live on HTTP pay for the import.
    from aiohttp import web

__all__ = [
    "Access",
    "Address",
    "Attachment",
    "AttachmentKind",
    "Browser",
    "Button",
    "Caller",
    "Channel",
    "ChannelContext",
    "CommandInfo",
    "Deliver",
    "Drafts",
    "DropsRepeats",
    "Edits",
    "Enclosure",
    "FetchesFiles",
    "HasRoutes",
    "Inbound",
    "Line",
    "LooksBack",
    "Notebook",
    "OffersButtons",
    "OpenChannel",
    "OpenQuestion",
    "Outbound",
    "OutboundKind",
    "PeerKind",
    "ProvesAccess",
    "Pulse",
    "Reacts",
    "Receipt",
    "Relocate",
    "Route",
    "Sender",
    "SendsFiles",
    "SessionInfo",
    "ShowsTyping",
    "TextLimit",
    "Verdict",
]


class PeerKind(StrEnum):
    DIRECT = "direct"
    GROUP = "group"
    CHANNEL = "channel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a message came from: all that a reply needs to get back there."""

    channel: str
    kind: PeerKind
    peer: str
    account: str = "default"
    thread: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Who wrote. `is_owner` is set only by a channel that has proven it itself (a token, a Unix socket)."""

    id: str
    name: str = ""
    is_owner: bool = False


class AttachmentKind(StrEnum):
    IMAGE = "image"
    AUDIO = "audio"
    VOICE = "voice"
    VIDEO = "video"
    FILE = "file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A file that came with a message, offered but not read yet. `ref` is the platform's own handle on it.

    Name, type and size are claims, of which the core believes none; size 0 is an unknown one. The core names the file
    to the model, so the text of the message need not.
    """

    kind: AttachmentKind
    name: str
    media_type: str
    size: int
    ref: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbound:
    """One thing somebody said. `event_id` is unique within the account, and the same when the platform repeats it.

    `edits` is the event id of an earlier message whose text was changed to this one; `sent_at` is then still that of
    the earlier. `forwarded_from` names whose words these are, if not the sender's own: "" when nobody can tell.
    """

    address: Address
    sender: Sender
    event_id: str
    text: str
    sent_at: datetime
    message_id: str | None = None
    attachments: tuple[Attachment, ...] = ()
    guild: str | None = None
    is_addressed: bool = True
    edits: str | None = None
    forwarded_from: str | None = None


class OutboundKind(StrEnum):
    REPLY = "reply"
    """What the agent said; it is in the transcript too."""
    NOTICE = "notice"
    """What the gateway itself says: a command's answer, a refusal. It is in no transcript."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Button:
    """Pressing it is the same as sending `command`."""

    label: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Enclosure:
    """A file to send. `ref` is the core's own handle on it; `name` is a plain label, safe in any header."""

    name: str
    media_type: str
    size: int
    ref: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outbound:
    """One thing to say. `session` is the number of the session it belongs to, for channels that show several.

    With a `file` it goes to `send_file`, and the text, which may be empty, stands beside the file. A reply with
    `is_failure` tells why there is no answer; the first one of a session after a start says how many of its turns
    were `restored`. With `is_question` its buttons are answers, of which one counts; saying yes or no does the same.
    """

    address: Address
    text: str
    kind: OutboundKind = OutboundKind.NOTICE
    reply_to: str | None = None
    session: int | None = None
    buttons: tuple[Button, ...] = ()
    is_failure: bool = False
    restored: int = 0
    file: Enclosure | None = None
    is_question: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The platform's own id of a message it has accepted."""

    message_id: str


class Verdict(StrEnum):
    """What became of an inbound message. Whatever the verdict, the platform may now forget the message."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    REFUSED = "refused"
    """Not taken, and its sender is told why by a message."""
    IGNORED = "ignored"
    """Not taken, and nobody is told: a stranger in a group, or words that were not for the bot."""


Deliver = Callable[[Inbound], Awaitable[Verdict]]
"""Hands a message to the core. Once it returns, the message may be acknowledged; `Transient` means: try again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLimit:
    """The longest text the platform takes in one message, in the unit in which the platform counts."""

    size: int
    measure: Callable[[str], int] = len


class Channel(Protocol):
    """One bot identity on one chat platform."""

    def __hash__(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def account(self) -> str: ...

    @property
    def text_limit(self) -> TextLimit: ...

    async def run(self, deliver: Deliver) -> None:
        """Read the platform until cancelled. Raise only `ChannelError`s."""

    async def send(self, message: Outbound, *, key: str) -> Receipt:
        """Return once the platform has accepted `message`; raise otherwise. `key` is the same on every retry."""


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
    """Can put an emoji on somebody's message."""

    async def react(self, address: Address, message_id: str, emoji: str) -> None: ...


@runtime_checkable
class ProvesAccess(Protocol):
    """Can ask its platform whether it is let in, for people who look for what is wrong."""

    async def prove_access(self) -> str:
        """Name the bot as the platform knows it; raise `ChannelError` where that does not let it in.

        It works whether the channel runs or not, and neither takes nor sends a message.
        """


class Access(StrEnum):
    """Who may call a route."""

    PUBLIC = "public"
    """Anybody who can reach the port: liveness, the page without its data, the exchange of a code."""
    OWNER = "owner"
    """Who has the token, a browser's cookie made from it, or the control socket."""
    CONTROL = "control"
    """Who can open the control socket, and nobody over TCP."""
    CHANNEL = "channel"
    """Whom the channel itself knows by a header: a platform that calls us. `Route.knows` is asked before any of the
    body is read. Guesses are not counted, or a stranger could shut the platform out: the secret must be a long one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who is calling a route, as the server has found out by itself. Empty `name`: a stranger."""

    name: str = ""
    is_owner: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One HTTP route of a channel. Host, Origin, credential and size have been checked before `handle` runs.

    With `takes_file` the body is no JSON but a file, of which nothing has been read: `handle` reads it, and has to
    stop where it is too long.
    """

    method: str
    path: str
    access: Access
    handle: Callable[[web.Request, Caller], Awaitable[web.StreamResponse]]
    knows: Callable[[Mapping[str, str]], bool] | None = None
    """For `Access.CHANNEL`: tells by the headers whether it is who it should be. Without it, nobody is."""
    takes_file: bool = False


@runtime_checkable
class HasRoutes(Protocol):
    """Lives on the gateway's own HTTP server."""

    def routes(self) -> Sequence[Route]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """What a person sees of a session."""

    number: int
    title: str
    messages: int
    updated_at: datetime
    is_active: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One visible line of a conversation: a person's or the agent's."""

    role: str
    text: str
    at: datetime
    file: Enclosure | None = None
    """What the agent has sent; the text names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandInfo:
    """A command as a person may type it; `aliases` are shorter names for the same."""

    name: str
    arguments: str
    summary: str
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenQuestion:
    """Something that was asked and not answered yet, with the key under which it was sent."""

    key: str
    message: Outbound


class Browser(Protocol):
    """Lets a channel show the sessions of the chat it is talking to, and of no other."""

    def sessions(self, address: Address, sender: Sender, guild: str | None = None) -> list[SessionInfo]:
        """Newest first; empty when the chat has none yet."""

    async def history(self, address: Address, sender: Sender, *, limit: int) -> list[Line]:
        """Return the last `limit` lines of the active session, oldest first."""

    def questions(self, address: Address, sender: Sender) -> list[OpenQuestion]:
        """Return what waits for an answer in this chat, for a client that shows it again when it comes back."""

    def commands(self) -> list[CommandInfo]: ...


class Pulse(Protocol):
    """How a channel tells whether it can receive, so that readiness tells the truth."""

    def up(self) -> None: ...

    def down(self, reason: str) -> None: ...


class Notebook(Protocol):
    """Small facts that a channel keeps across restarts, like how far it has read. They are nobody else's."""

    async def read(self) -> dict[str, str]:
        """Return all of them, by name."""

    async def write(self, facts: Mapping[str, str | None]) -> None:
        """Return once they will survive a power cut; None removes one. `Transient` when the disk is full."""


Relocate = Callable[[Address, Address], Awaitable[None]]
"""Tells the core that the platform has given the first chat another id, the second: its conversation goes on there."""


async def _stay(_old: Address, _new: Address) -> None:
    """Do nothing: for channels whose chats keep their ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelContext:
    """All that the core gives to a channel when it is opened."""

    name: str
    account: str
    settings: ChannelSettings
    browser: Browser
    notebook: Notebook
    pulse: Pulse
    relocate: Relocate = _stay


OpenChannel = Callable[[ChannelContext], Channel]
"""The entry point of the group `gatehouse.channels`. It does no I/O: `run` does."""
