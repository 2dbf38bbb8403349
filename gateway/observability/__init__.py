"""Logs, metrics, status, and the periodic work that keeps the daemon healthy."""
