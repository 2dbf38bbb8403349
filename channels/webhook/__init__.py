"""Webhooks: programs that call the gateway with signed requests, and where their answers go."""

from channels.webhook.channel import WebhookChannel, open_channel

__all__ = ["WebhookChannel", "open_channel"]
