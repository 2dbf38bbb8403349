"""The Telegram channel: a bot for private chats, groups and forum topics."""

from channels.telegram.channel import TelegramChannel
from channels.telegram.webhook import WEBHOOK_URL, TelegramWebhookChannel
from gateway.contract import Channel, ChannelContext

__all__ = ["open_channel"]


def open_channel(context: ChannelContext) -> Channel:
    """Open a bot that receives by webhook if the options have a `webhook_url`, and one that polls otherwise."""
    return TelegramWebhookChannel(context) if WEBHOOK_URL in context.settings.options else TelegramChannel(context)
