"""The Telegram channel: a bot that is talked to in private chats, groups and forum topics.

Nothing here imports aiogram before `run` does, in a thread: it costs seconds and more than a hundred megabytes.
"""

from channels.telegram.channel import TelegramChannel
from channels.telegram.webhook import WEBHOOK_URL, WebhookChannel
from gateway.contract import Channel, ChannelContext

__all__ = ["open_channel"]


def open_channel(context: ChannelContext) -> Channel:
    """Open a bot that polls, or one that is called where the options say so."""
    return WebhookChannel(context) if WEBHOOK_URL in context.settings.options else TelegramChannel(context)
