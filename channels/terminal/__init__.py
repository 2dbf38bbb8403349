"""The terminal channel: the socket behind `gatehouse chat`; the client is not imported with it."""

from channels.terminal.channel import TerminalChannel
from gateway.contract import Channel, ChannelContext

__all__ = ["open_channel"]


def open_channel(context: ChannelContext) -> Channel:
    return TerminalChannel(context)
