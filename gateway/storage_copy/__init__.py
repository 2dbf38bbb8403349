"""Copies all sessions and the spool from one storage engine to another, and verifies the copy."""
