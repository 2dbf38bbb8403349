"""The reference channel: a chat platform inside the process, for tests, examples and embedding."""

from channels.loopback.channel import Heard, LoopbackChannel, open_channel

__all__ = ["Heard", "LoopbackChannel", "open_channel"]
