"""What the channels that speak JSON over a WebSocket share: frames, the hub of open sockets, and the channel itself."""

from channels.websocket.channel import SocketChannel

__all__ = ["SocketChannel"]
