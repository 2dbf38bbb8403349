"""How long to wait before trying again."""

import random
from collections.abc import Iterator
from typing import Protocol

__all__ = ["Jitter", "backoff"]


class Jitter(Protocol):
    def uniform(self, a: float, b: float, /) -> float: ...


_chance = random.Random()  # noqa: S311 - nothing here is a secret


def backoff(*, first: float = 0.5, cap: float = 60.0, jitter: Jitter = _chance) -> Iterator[float]:
    """Yield waits that double up to `cap`, each shortened by up to half so that many peers do not return at once."""
    wait = first
    while True:
        yield wait * jitter.uniform(0.5, 1.0)
        wait = min(wait * 2, cap)
