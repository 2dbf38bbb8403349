"""What looks after the gateway while it runs, and tells how it is doing."""
