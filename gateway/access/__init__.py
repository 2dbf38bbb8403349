"""Access: who may talk to the gateway, how fast, and how unknown senders get access."""
