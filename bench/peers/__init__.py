"""Compares Gatehouse with other gateways between Telegram and a model. Each runs as its own process in its own home."""
