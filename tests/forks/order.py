"""What a process to be forked is told."""

from dataclasses import dataclass

import msgspec

__all__ = ["SIZE", "Order"]

SIZE = 100_000
"""Bytes that an order may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """`entry` is the `module:function` that it runs, and `command` what it takes for its command line."""

    entry: str
    command: tuple[str, ...]
    cwd: str
    env: dict[str, str]
    umask: int

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, text: bytes) -> "Order":
        return msgspec.json.decode(text, type=cls)
