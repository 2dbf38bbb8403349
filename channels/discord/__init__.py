"""The Discord channel: a bot that is talked to in direct messages, in channels of servers and in threads.

Nothing here imports discord.py before `run` does, in a thread.
"""

from channels.discord.channel import DiscordChannel
from gateway.contract import Channel, ChannelContext

__all__ = ["open_channel"]


def open_channel(context: ChannelContext) -> Channel:
    return DiscordChannel(context)
