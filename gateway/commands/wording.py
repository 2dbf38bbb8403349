"""Small phrases that people read: numbers of things, and how long ago something was."""

from datetime import datetime, timedelta

from gateway.spool import Spent

__all__ = ["NO_SESSION", "ago", "count", "duration", "spent_in_words"]

NO_SESSION = "There is no session here yet. Write something to start the first one."

_MINUTE = 60
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR
_CENT = 0.01


def count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def duration(span: timedelta) -> str:
    """Round `span` to the one unit that matters."""
    seconds = max(int(span.total_seconds()), 0)
    for size, unit in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def ago(then: datetime, now: datetime) -> str:
    seconds = (now - then).total_seconds()
    if seconds < _MINUTE:
        return "just now"
    if _DAY <= seconds < 2 * _DAY:
        return "yesterday"
    return f"{duration(now - then)} ago"


def spent_in_words(spent: Spent) -> str:
    """Tell tokens, and the cost where there is one, in whatever currency prices are given in."""
    cached = f" ({spent.cached_tokens:,} from a cache)" if spent.cached_tokens else ""
    cost = spent.cost_micros / 1_000_000
    price = f", cost {cost:.2f}" if cost >= _CENT else f", cost {cost:.4f}"
    return f"{spent.input_tokens:,} tokens read{cached}, {spent.output_tokens:,} written{price if cost else ''}"
