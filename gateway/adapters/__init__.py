"""Hosts the channels: finds, opens and supervises them, and gives them their services."""
