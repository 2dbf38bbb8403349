"""What a channel can show of the sessions of a chat."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from gateway.contract.messages import Address, Enclosure, Outbound, Sender

__all__ = [
    "Browser",
    "CommandInfo",
    "Line",
    "OpenQuestion",
    "SessionInfo",
]


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
