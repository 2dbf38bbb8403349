"""Lets a channel show the sessions of a chat."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, runtime_checkable

from gateway.contract.messages import Address, Enclosure, Outbound, Sender


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """A session as a person sees it."""

    number: int
    title: str
    messages: int
    updated_at: datetime
    is_active: bool
    id: str = ""
    """The id in the HTTP API."""
    agent: str = ""
    model: str | None = None
    """The model that was chosen for this session; None for that of the agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One visible line of a conversation, by a person or by the agent."""

    role: str
    text: str
    at: datetime
    file: Enclosure | None = None
    """A file that the agent sent. The text names it."""
    is_failure: bool = False
    """The text says why there is no answer."""
    details: str = ""
    """The cause of a failure in technical words. Empty unless an owner reads it."""
    event_id: str | None = None
    """The `Inbound.event_id` of a person's message."""
    turn: str | None = None
    """The turn of an answer. The keys of its messages are the turn, or start with the turn and a dot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandInfo:
    """A command as a person may type it. `aliases` are other names for it.

    The answer to a personal command is of interest only to the person who sent it.
    """

    name: str
    arguments: str
    summary: str
    aliases: tuple[str, ...] = ()
    is_personal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenQuestion:
    """A question that waits for an answer, with the key of its message."""

    key: str
    message: Outbound


@dataclass(frozen=True, slots=True, kw_only=True)
class SentMessage:
    """A message that answers another one, with its key."""

    key: str
    message: Outbound
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierMessage:
    """What became of a message that was delivered before, for a client that sends it again.

    `turn` and `session` are those in which it is answered; None for a command that was answered at once, and about two
    days later. `message_id` is the one that it had the first time. `answers` are those of the agent.
    """

    turn: str | None = None
    session: int | None = None
    message_id: str | None = None
    is_finished: bool = True
    answers: tuple[SentMessage, ...] = ()


class Browser(Protocol):
    """Gives a channel access to the sessions of one chat, and of no other."""

    def sessions(self, address: Address, sender: Sender, guild: str | None = None) -> list[SessionInfo]:
        """Return the sessions, newest first. Empty if the chat has none yet."""

    async def history(self, address: Address, sender: Sender, *, limit: int) -> list[Line]:
        """Return the last `limit` lines of the active session, oldest first.

        If the session cannot be read, the only line says so.
        """

    def questions(self, address: Address, sender: Sender) -> list[OpenQuestion]:
        """Return the open questions of this chat, for a client that reconnects and shows them again."""

    async def earlier(self, address: Address, sender: Sender, event_id: str) -> EarlierMessage:
        """Return what became of the message `event_id` of this chat, whose verdict was `DUPLICATE` this time."""

    def commands(self, address: Address | None = None, sender: Sender | None = None) -> list[CommandInfo]:
        """Return the commands that `sender` may use in this chat. Without a chat: all but those for owners."""

    def max_message_chars(self) -> int:
        """Return how long the text of a message may be. Longer ones are refused."""


@runtime_checkable
class KnowsSetup(Protocol):
    """A `Browser` that also knows whether the gateway has been set up."""

    def needs_setup(self, address: Address, sender: Sender) -> bool:
        """Return whether built-in rules answer in this chat instead of a model, and `sender` may change that."""

    def transcribes(self) -> bool:
        """Return whether recordings are turned into text."""


@runtime_checkable
class KnowsOwner(Protocol):
    """A `Browser` that also knows which chats this node of a cluster owns."""

    @property
    def is_shared(self) -> bool:
        """Whether there is a cluster, so that other nodes may change the facts of a chat."""

    def require_here(self, address: Address, sender: Sender) -> None:
        """Raise `HeldElsewhere` if another node owns this chat. A handler of a route lets that pass."""

    def watched(self, address: Address, sender: Sender, on_moved: Callable[[], None]) -> AbstractContextManager[None]:
        """Call `on_moved` if another node takes over this chat while inside. Raises as `require_here`."""
