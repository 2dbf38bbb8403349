"""Turns: one agent run that answers accepted messages."""
