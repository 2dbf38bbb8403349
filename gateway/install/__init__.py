"""Gatehouse as a systemd service: its units, their installation, and messages to the service manager."""
