"""The Discord channel: a bot in direct messages, server channels and threads.

Importing it does not import discord.py; `DiscordChannel.run` does so in a thread.
"""

from channels.discord.channel import DiscordChannel
from gateway.contract import Channel, ChannelContext

__all__ = ["open_channel"]


def open_channel(context: ChannelContext) -> Channel:
    return DiscordChannel(context)
