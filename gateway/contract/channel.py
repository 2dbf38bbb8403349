"""What a channel is, what it is given and what it calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from config import ChannelSettings
from gateway.contract.browsing import Browser
from gateway.contract.messages import Address, Inbound, Outbound, Receipt

__all__ = [
    "Channel",
    "ChannelContext",
    "Deliver",
    "Notebook",
    "OpenChannel",
    "Pulse",
    "Relocate",
    "TextLimit",
    "Verdict",
]


class Verdict(StrEnum):
    """What became of an inbound message. Whatever the verdict, the platform may now forget the message."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    REFUSED = "refused"
    """Not taken, and its sender is told why by a message."""
    IGNORED = "ignored"
    """Not taken, and nobody is told: a stranger in a group, or words that were not for the bot."""


Deliver = Callable[[Inbound], Awaitable[Verdict]]
"""Hands a message to the core. Once it returns, the message may be acknowledged.

`NotAccepted` means that the core cannot take it now, since its disk is full or it is shutting down. Do not acknowledge
the message, offer it again later, and do not report the channel as down.
"""


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


class Pulse(Protocol):
    """How a channel tells whether it can receive, so that readiness tells the truth."""

    def up(self) -> None: ...

    def down(self, reason: str) -> None: ...


class Notebook(Protocol):
    """Small facts that a channel keeps across restarts, like how far it has read. They are nobody else's."""

    async def read(self) -> dict[str, str]:
        """Return all of them, by name."""

    async def write(self, facts: Mapping[str, str | None]) -> None:
        """Return once they will survive a power cut; None removes one. `NotAccepted` when the disk is full."""


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
