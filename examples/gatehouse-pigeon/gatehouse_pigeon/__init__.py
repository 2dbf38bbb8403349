"""The pigeon channel: letters in a folder. The entry point of the group `gatehouse.channels` is `open_channel`."""

from gatehouse_pigeon.channel import PigeonChannel
from gateway.contract import Channel, ChannelContext

__all__ = ["open_channel"]


def open_channel(context: ChannelContext) -> Channel:
    """Open the channel. It does no I/O: `run` does."""
    return PigeonChannel(context)
