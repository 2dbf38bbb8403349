"""The way out: replies are split, streamed and delivered with retries."""
