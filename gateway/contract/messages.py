"""Incoming and outgoing messages, their senders and addresses."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct


class PeerKind(StrEnum):
    DIRECT = "direct"
    GROUP = "group"
    CHANNEL = "channel"


class Address(Struct, frozen=True, kw_only=True):
    """Where a message came from, with everything that a reply needs to get there."""

    channel: str
    kind: PeerKind
    peer: str
    account: str = "default"
    thread: str | None = None


class Sender(Struct, frozen=True, kw_only=True):
    """The author of a message. A channel sets `is_owner` only if it has proof, such as a token or a Unix socket.

    A channel sets `is_verified` for a program that the configuration itself lets in, once it has proof, such as the
    signature of a webhook. `id` is the name of its table then, and no policy has to let it in. It has no rights of an
    owner, and gets no notices: `deliver` raises instead of refusing its message with a text.
    """

    id: str
    name: str = ""
    is_owner: bool = False
    is_verified: bool = False
    token: str = ""
    """The id of the API token of a program. The program has access while that token is valid."""
    schedule: str = ""
    """The name of a schedule of the settings, which acts for the operator. Only the core sets it."""


class AttachmentKind(StrEnum):
    IMAGE = "image"
    AUDIO = "audio"
    VOICE = "voice"
    VIDEO = "video"
    FILE = "file"


class Attachment(Struct, frozen=True, kw_only=True):
    """A file that came with a message and is not downloaded yet. `ref` is the platform's own handle for it.

    Name, type and size are claims that the core does not trust; 0 means an unknown size. The core names the file to
    the model, so the text of the message need not.
    """

    kind: AttachmentKind
    name: str
    media_type: str
    size: int
    ref: str


class Quote(Struct, frozen=True, kw_only=True):
    """The earlier message that a message replies to. `author` is "" if unknown."""

    author: str
    text: str
    is_ours: bool = False
    """Whether the bot wrote it."""


class OutboundKind(StrEnum):
    REPLY = "reply"
    """An answer of the agent. It is in the transcript too."""
    NOTICE = "notice"
    """A message of the gateway itself, such as the answer to a command. It is in no transcript."""


class Arrival(Struct, frozen=True, kw_only=True):
    """How a message has come to the node of the cluster that owns its scope: in that node itself, or by another one.

    `position` is the place of a message that another node has accepted, among all messages of its shard.
    """

    scope: str
    position: int = 0


class Scheduled(Struct, frozen=True, kw_only=True):
    """The run of a schedule that a message comes from. `number` is that of the schedule within its scope."""

    id: str
    number: int
    run: int
    is_apart: bool = True
    """The schedule has a session of its own."""


class Inbound(Struct, frozen=True, kw_only=True):
    """One incoming message. `event_id` is unique within the account, and the same when the platform repeats the event.

    `edits` is the event id of an earlier message whose text was changed to this one; `sent_at` is still the time of
    the earlier message then. `forwarded_from` names the author of a forwarded message, "" if unknown. `quotes` is the
    message that this one replies to. The text of a message with `is_prompt` goes to the agent as it is, even if it
    looks like a command. `instructions` are added to the system prompt of its turn. If the operator wants the answer in
    another chat, that is its `answer_address`, which may be on another channel.
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
    is_prompt: bool = False
    instructions: str = ""
    answer_address: Address | None = None
    arrival: Arrival | None = None
    """Set by the core, and only in a cluster."""
    scheduled: Scheduled | None = None
    """Set by the core for a message that no person has written. Its sender has made the schedule."""

    @property
    def is_answered_elsewhere(self) -> bool:
        """Whether the answer goes to a chat of another channel, or of another account."""
        to = self.answer_address or self.address
        return (to.channel, to.account) != (self.address.channel, self.address.account)

    def reply(self, text: str, *, session: int | None = None, kind: OutboundKind = OutboundKind.NOTICE) -> Outbound:
        """Return `text` as a message to the chat that gets the answers to this one."""
        address = self.answer_address or self.address
        if self.is_answered_elsewhere:
            # That chat has not asked, so the text says what it is about. Our numbers and ids mean nothing there.
            about = f"[{self.address.channel} {self.sender.id}]"
            return Outbound(address=address, text=f"{about} {text}".rstrip(), kind=kind)
        return Outbound(
            address=address,
            text=text,
            kind=kind,
            reply_to=self.message_id,
            # The chat does not show the session of a schedule, so the answer must not look like one of its own.
            session=None if self.scheduled is not None and self.scheduled.is_apart else session,
            recipient=self.sender,
            guild=self.guild,
        )


class Button(Struct, frozen=True, kw_only=True):
    """A button that sends `command`. In a question, `is_answer` is false for one that only shows more."""

    label: str
    command: str
    is_answer: bool = True


class Enclosure(Struct, frozen=True, kw_only=True):
    """A file to send. `ref` is the core's own handle for it; `name` is a plain label that is safe in any header."""

    name: str
    media_type: str
    size: int
    ref: str


class Outbound(Struct, frozen=True, kw_only=True):
    """One outgoing message. `session` is the number of its session, for channels that show several.

    A message with a `file` goes to `send_file`; its text may be empty. A reply with `is_failure` says why there is no
    answer; its `details` are the cause in technical words, and are only set for owners. The first reply of a session
    after a start says how many of its turns were `restored`. The buttons of a message with `is_question` are answers,
    of which one counts; a plain yes or no does the same.

    `recipient` is the person whom it answers, and `guild` is the server of their message. The core sends it only while
    they have access. A message about access itself has no recipient, and neither has the answer to a message of another
    channel. That one has no session either: no transcript that this chat can show has it.
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
    recipient: Sender | None = None
    guild: str | None = None
    details: str = ""
    unanswered: tuple[str, ...] = ()
    """The ids of messages of this chat that were dropped, for channels that can mark them."""


class Receipt(Struct, frozen=True, kw_only=True):
    """The platform's own id of a message it has accepted."""

    message_id: str
