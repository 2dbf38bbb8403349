"""How long and how many: what one HTTP connection may cost."""

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Durations in seconds. A stranger is a connection that has not shown a credential yet."""

    header: float = 10.0
    """From connecting to the end of the first request's header."""
    body: float = 30.0
    handler: float = 30.0
    """For a handler to answer, unless it is an owner's WebSocket."""
    upload: float = 600.0
    """For a handler that takes a file from an owner."""
    visit: float = 75.0
    """From a stranger's complete header to the end of the connection, however slowly the answer is read."""
    keep_alive: float = 15.0
    lingering: float = 2.0
    """For reading what a refused client goes on sending, so that it sees the answer."""
    closing: float = 2.0
    """For each step of closing the server."""
    strangers: int = 64
    known: int = 512
    """Connections that have shown a credential, or came through the control socket."""
