"""Counting what happens, and telling it in the way that Prometheus reads."""
