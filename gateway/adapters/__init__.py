"""Hosts the channels: finds, starts, supervises and serves them."""
