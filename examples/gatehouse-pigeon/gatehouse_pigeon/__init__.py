"""The pigeon channel: letters in a folder. `open_channel` is its entry point in the group `gatehouse.channels`."""

from gatehouse_pigeon.channel import PigeonChannel
from gateway.contract import Channel, ChannelContext

__all__ = ["open_channel"]


def open_channel(context: ChannelContext) -> Channel:
    """Open the channel. It does no I/O: `run` does."""
    return PigeonChannel(context)
