"""Access: who may talk to the gateway, how fast, and how strangers get in."""
