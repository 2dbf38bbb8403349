"""Outbound messages: split, streamed as drafts, committed to the outbox, and delivered with retries."""
