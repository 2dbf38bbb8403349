"""Inbound messages: checked for access, rate and duplicates, committed to the inbox, and put into lanes."""
