"""The terminal channel: the gateway's side of `gatehouse chat`. Importing it does not import the client."""

from channels.terminal.channel import TerminalChannel
from gateway.contract import Channel, ChannelContext

__all__ = ["open_channel"]


def open_channel(context: ChannelContext) -> Channel:
    return TerminalChannel(context)
