"""What the channels that speak JSON over a WebSocket share: frames, the hub of open sockets, and the endpoint."""

from channels.sockets.endpoint import SocketEndpoint

__all__ = ["SocketEndpoint"]
