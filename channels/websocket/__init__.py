"""JSON frames over WebSockets: the base of the web and the terminal channel."""

from channels.websocket.channel import WebSocketChannel

__all__ = ["WebSocketChannel"]
