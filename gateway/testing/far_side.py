"""The far side of a channel: a person's client on the platform, as the contract suite uses it."""

from typing import Protocol, runtime_checkable

from gateway.contract import Address, Channel

__all__ = ["NOT_TAKEN", "FarSide", "GetsFiles", "HandsOverFiles"]

NOT_TAKEN = "not taken"


class FarSide(Protocol):
    """What somebody does and sees on the platform; `address` is where they are."""

    @property
    def channel(self) -> Channel: ...

    @property
    def address(self) -> Address: ...

    async def say(self, text: str, event_id: str) -> str:
        """Say something; return the verdict, or `NOT_TAKEN` when it was not acknowledged.

        `event_id` is `e` and a number; the same one again is the same event, which the platform repeats.
        """

    async def hear(self) -> str:
        """Return the text of the next whole message."""


@runtime_checkable
class HandsOverFiles(Protocol):
    """What the far side of a channel that fetches files can do besides."""

    async def say_with_file(self, text: str, event_id: str, *, name: str, content: bytes) -> str:
        """Say something, or nothing, with a text file; return as `FarSide.say`."""


@runtime_checkable
class GetsFiles(Protocol):
    """What the far side of a channel that sends files can do besides."""

    async def get_file(self) -> bytes | None:
        """Return what is in the next file; None where all that comes is a link to where the gateway itself has it."""
