"""Small phrases that people read: numbers of things, and how long ago something was."""

from datetime import datetime, timedelta

__all__ = ["ago", "count", "duration"]

_MINUTE = 60
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR


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
