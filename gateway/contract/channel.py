"""The protocol of a channel, and the parts of the core that it can use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from config import ChannelSettings
from gateway.contract.browsing import Browser
from gateway.contract.messages import Address, Inbound, Outbound, Receipt
from gateway.errors import Undeliverable


class Verdict(StrEnum):
    """The outcome of an inbound message. With any verdict, the message may be acknowledged."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    REFUSED = "refused"
    """Not accepted. The sender gets a message with the reason."""
    IGNORED = "ignored"
    """Not accepted, without an answer: an unknown sender in a group, or a message that was not for the bot."""


Deliver = Callable[[Inbound], Awaitable[Verdict]]
"""Hands a message to the core. Once it returns, the message may be acknowledged.

`NotAccepted` means that the core cannot take it now, since nothing can be stored or it is shutting down. Do not
acknowledge the message, offer it again later, and do not report the channel as down.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLimit:
    """The longest text of one message, in the platform's own unit."""

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
    """Reports whether the channel can receive messages. `/readyz` and the status show it."""

    def up(self) -> None: ...

    def down(self, reason: str) -> None: ...


class Notebook(Protocol):
    """Small facts that a channel keeps across restarts, such as its read position. Each bot identity has its own."""

    async def read(self) -> dict[str, str]:
        """Return all facts by name. Raises `NotAccepted` if that cannot be done now."""

    async def write(self, facts: Mapping[str, str | None]) -> None:
        """Return once the facts survive a power cut. None deletes one. Raises `NotAccepted` if that is not possible."""


Relocate = Callable[[Address, Address], Awaitable[None]]
"""Tells the core that the platform has replaced the first address of a chat by the second."""


class Post(Protocol):
    """Sends a POST request to an address that a program has named, or the configuration."""

    async def __call__(
        self, url: str, body: bytes, headers: Mapping[str, str], /, *, hosts: Collection[str] = ()
    ) -> None:
        """Return once the server has accepted the request. The address must be public and have HTTPS.

        `hosts` are exempt from that: names or addresses, each with or without a port. Raises `Transient` if it may work
        later, and `Undeliverable` if the server refuses it or the address is not allowed.
        """


class Lead(Protocol):
    """Lets one node of a cluster receive the messages of a bot that may have only one connection."""

    async def __call__(self, receive: Callable[[], Awaitable[None]], /) -> None:
        """Run `receive` while this node is the one that receives. Without a cluster, that is always.

        When another node takes over, `receive` is cancelled. It starts again if this node gets the bot back.
        """

    def confirm(self) -> None:
        """Return if no other node can be the one that receives yet; raise `NotAccepted` otherwise.

        A process that was paused goes on where it was, and another node may have taken over in between. So call this
        right before each request that two nodes must not make at the same time.
        """


class _AlwaysLead:
    async def __call__(self, receive: Callable[[], Awaitable[None]], /) -> None:
        await receive()

    def confirm(self) -> None:
        """Return: there is no other node."""


_ALWAYS_LEAD = _AlwaysLead()


async def _no_post(_url: str, _body: bytes, _headers: Mapping[str, str], *, hosts: Collection[str] = ()) -> None:
    """Refuse, for channels that are opened outside of a gateway."""
    del hosts
    raise Undeliverable("There is no gateway that could send this.")


async def _stay(_old: Address, _new: Address) -> None:
    """Do nothing, for channels whose chats keep their ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelContext:
    """Everything that the core gives to a channel when it is opened."""

    name: str
    account: str
    settings: ChannelSettings
    browser: Browser
    notebook: Notebook
    pulse: Pulse
    relocate: Relocate = _stay
    post: Post = _no_post
    lead: Lead = _ALWAYS_LEAD
    max_poll_seconds: float | None = None
    """For how long the platform may hold a request for new messages. In a cluster, it has to end with the lease."""

    @property
    def is_in_cluster(self) -> bool:
        """Whether other nodes run this bot as well."""
        return self.max_poll_seconds is not None


OpenChannel = Callable[[ChannelContext], Channel]
"""An entry point of the group `gatehouse.channels`. It must not do I/O; `run` does."""
