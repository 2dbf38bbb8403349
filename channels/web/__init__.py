"""The web channel: the chat page and its WebSocket, on the gateway's HTTP server."""

from channels.web.channel import WebChannel
from gateway.contract import Channel, ChannelContext

__all__ = ["open_channel"]


def open_channel(context: ChannelContext) -> Channel:
    return WebChannel(context)
