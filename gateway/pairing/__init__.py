"""Letting strangers in: codes, the guest book, and what those are told who are not in it."""

__all__ = []
