"""How long to wait before Telegram is asked again."""

from collections.abc import Iterator
from itertools import chain, repeat

__all__ = ["pauses"]


def pauses() -> Iterator[float]:
    return chain((1.0, 2.0, 5.0, 10.0), repeat(30.0))
