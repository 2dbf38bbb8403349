"""What is said: messages that come in and go out, who said them and where."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

__all__ = [
    "Address",
    "Attachment",
    "AttachmentKind",
    "Button",
    "Enclosure",
    "Inbound",
    "Outbound",
    "OutboundKind",
    "PeerKind",
    "Quote",
    "Receipt",
    "Sender",
]


class PeerKind(StrEnum):
    DIRECT = "direct"
    GROUP = "group"
    CHANNEL = "channel"


class Address(Struct, frozen=True, kw_only=True):
    """Where a message came from: all that a reply needs to get back there."""

    channel: str
    kind: PeerKind
    peer: str
    account: str = "default"
    thread: str | None = None


class Sender(Struct, frozen=True, kw_only=True):
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


class Attachment(Struct, frozen=True, kw_only=True):
    """A file that came with a message, offered but not read yet. `ref` is the platform's own handle on it.

    Name, type and size are claims, of which the core believes none; size 0 is an unknown one. The core names the file
    to the model, so the text of the message need not.
    """

    kind: AttachmentKind
    name: str
    media_type: str
    size: int
    ref: str


class Quote(Struct, frozen=True, kw_only=True):
    """What an earlier message says that another answers to. Its author is "" when nobody can tell."""

    author: str
    text: str
    is_ours: bool = False
    """Whether the bot itself has said it."""


class Inbound(Struct, frozen=True, kw_only=True):
    """One thing somebody said. `event_id` is unique within the account, and the same when the platform repeats it.

    `edits` is the event id of an earlier message whose text was changed to this one; `sent_at` is then still that of
    the earlier. `forwarded_from` names whose words these are, if not the sender's own: "" when nobody can tell.
    `quotes` is what it was said in reply to, where people can point at that.
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
    quotes: Quote | None = None


class OutboundKind(StrEnum):
    REPLY = "reply"
    """What the agent said; it is in the transcript too."""
    NOTICE = "notice"
    """What the gateway itself says: a command's answer, a refusal. It is in no transcript."""


class Button(Struct, frozen=True, kw_only=True):
    """Pressing it is the same as sending `command`."""

    label: str
    command: str


class Enclosure(Struct, frozen=True, kw_only=True):
    """A file to send. `ref` is the core's own handle on it; `name` is a plain label, safe in any header."""

    name: str
    media_type: str
    size: int
    ref: str


class Outbound(Struct, frozen=True, kw_only=True):
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


class Receipt(Struct, frozen=True, kw_only=True):
    """The platform's own id of a message it has accepted."""

    message_id: str
