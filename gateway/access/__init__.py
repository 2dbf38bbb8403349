"""Access: who may talk to the gateway, how fast (the rate limit), and how unknown senders get access."""
