"""Extraction: what is worth keeping of sessions that have ended goes into the memory of their scope."""
