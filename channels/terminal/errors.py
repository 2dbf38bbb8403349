"""What can end a chat from outside; each is a sentence for the person at the terminal."""

from gateway.errors import GatehouseError

__all__ = ["InputTooLong", "Lost"]


class Lost(GatehouseError):
    """The gateway went away and did not come back."""


class InputTooLong(GatehouseError):
    """More was piped in than any message may have."""
