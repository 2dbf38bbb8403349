"""Plain text: cleaning for storage and terminals, one-line excerpts, tables, and all units: counts, sizes and times."""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta

from gateway.text.splitting import is_border

_CODE = re.compile("`([^`\n]+)`")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def clean(text: str) -> str:
    """Replace by U+FFFD what UTF-8 or a C string cannot contain: lone surrogates and NUL."""
    return _UNSTORABLE.sub("\ufffd", text)


def printable(text: str) -> str:
    """Drop characters that a terminal would obey: controls except newline and tab, and bidi overrides."""
    return _UNPRINTABLE.sub("", text)


def without_code(text: str) -> str:
    """Remove the marks of `code` from a sentence in Markdown that becomes part of a plain text."""
    return _CODE.sub(r"\1", text)


def excerpt(text: str, width: int) -> str:
    """Return `text` as one line of at most `width` characters. If it was cut, it ends in an ellipsis."""
    line = " ".join(text.split())
    if len(line) <= width:
        return line
    if width < 1:
        return ""
    # Not within a character that consists of several code points.
    end = next(at for at in range(width - 1, -1, -1) if is_border(line, at))
    return line[:end].rstrip() + "…"


_THOUSAND = 1000
_MINUTE = 60
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR


def count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def in_bytes(size: int) -> str:
    """Return a size for people, such as 20 MB."""
    amount = float(size)
    for unit in ("bytes", "kB", "MB", "GB"):
        if amount < _THOUSAND or unit == "GB":
            break
        amount /= _THOUSAND
    return f"{amount:.0f} {unit}" if amount >= 10 or unit == "bytes" else f"{amount:.1f} {unit}"  # noqa: PLR2004 - two digits.


def duration(span: timedelta) -> str:
    """Return `span` in its largest unit, such as `5 min`."""
    seconds = max(int(span.total_seconds()), 0)
    for size, unit in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def took(seconds: float) -> str:
    """Return how long something took, such as `85 ms` or `1.2 s`. From ten seconds on like `duration`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:.1f} ms"  # noqa: PLR2004 - two digits.
    return f"{seconds:.1f} s" if seconds < 10 else duration(timedelta(seconds=seconds))  # noqa: PLR2004 - as above.


def local_time(at: datetime) -> str:
    """Return a time in the zone of this machine, such as `2026-03-01 12:00:00`."""
    return f"{at.astimezone():%Y-%m-%d %H:%M:%S}"


def ago(then: datetime, now: datetime) -> str:
    seconds = (now - then).total_seconds()
    if seconds < _MINUTE:
        return "just now"
    if _DAY <= seconds < 2 * _DAY:
        return "yesterday"
    return f"{duration(now - then)} ago"


def draw_table(rows: Sequence[Sequence[str]]) -> str:
    """Draw a table for a monospaced font. All rows have the same number of cells; the first row is the head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    head, *body = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([head, "  ".join("─" * width for width in widths), *body])
