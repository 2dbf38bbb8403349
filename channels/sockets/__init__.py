"""What the channels that speak JSON over a WebSocket share: frames, the hub of open sockets, and the channel itself."""

from channels.sockets.channel import SocketChannel

__all__ = ["SocketChannel"]
