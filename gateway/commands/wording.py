"""Phrases that several commands answer with."""

from gateway.spool import Spent

__all__ = ["NO_SESSION", "spent_in_words"]

NO_SESSION = "There is no session here yet. Write something to start the first one."

_CENT = 0.01


def spent_in_words(spent: Spent) -> str:
    """Tell tokens, and the cost where there is one, in whatever currency prices are given in."""
    cached = f" ({spent.cached_tokens:,} from a cache)" if spent.cached_tokens else ""
    cost = spent.cost_micros / 1_000_000
    price = f", cost {cost:.2f}" if cost >= _CENT else f", cost {cost:.4f}"
    return f"{spent.input_tokens:,} tokens read{cached}, {spent.output_tokens:,} written{price if cost else ''}"
