"""The far side of a channel: a person's client on the platform, which the contract suite controls."""

from typing import Protocol, runtime_checkable

from gateway.contract import Address, Channel

NOT_TAKEN = "not taken"
"""The result of `FarSide.say` for a message that the channel did not acknowledge."""


class FarSide(Protocol):
    """A person on the platform, in the chat `address`."""

    @property
    def channel(self) -> Channel: ...

    @property
    def address(self) -> Address: ...

    async def say(self, text: str, event_id: str) -> str:
        """Send a message. Return the verdict, or `NOT_TAKEN` if the channel did not acknowledge the message.

        `event_id` is `e` and a number. The same id again means that the platform repeats the event.
        """

    async def hear(self) -> str:
        """Return the text of the next complete message that the person sees."""


@runtime_checkable
class HandsOverFiles(Protocol):
    """A far side that can send files, for channels that fetch files."""

    async def say_with_file(self, text: str, event_id: str, *, name: str, content: bytes) -> str:
        """Send a text file, with `text` or with an empty text. Returns the same as `FarSide.say`."""


@runtime_checkable
class GetsFiles(Protocol):
    """A far side that can receive files, for channels that send files."""

    async def get_file(self) -> bytes | None:
        """Return the content of the next file, or None if the channel sends a link to the gateway's own copy."""
