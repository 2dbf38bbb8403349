"""The web channel: a chat page and the socket behind it, on the gateway's own HTTP server."""

from channels.web.channel import WebChannel
from gateway.contract import Channel, ChannelContext

__all__ = ["open_channel"]


def open_channel(context: ChannelContext) -> Channel:
    return WebChannel(context)
