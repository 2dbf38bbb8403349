"""Letting strangers in: codes, the guest book, and what those are told who are not in it."""

from gateway.pairing.pairing import Pairing, Told

__all__ = ["Pairing", "Told"]
