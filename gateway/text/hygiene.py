"""Making text safe to keep, to print and to show on one line."""

import re

from gateway.text.clusters import is_border

__all__ = ["clean", "excerpt", "printable"]

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def clean(text: str) -> str:
    """Put U+FFFD for what UTF-8 or a C string cannot carry (lone surrogates, NUL); all else stays as it is."""
    return _UNSTORABLE.sub("\ufffd", text)


def printable(text: str) -> str:
    """Drop what a terminal would obey rather than show: control characters but newline and tab, and bidi overrides."""
    return _UNPRINTABLE.sub("", text)


def excerpt(text: str, width: int) -> str:
    """Fold `text` to one line of at most `width` characters, ending in an ellipsis where it was cut."""
    line = " ".join(text.split())
    if len(line) <= width:
        return line
    if width < 1:
        return ""
    end = next(at for at in range(width - 1, -1, -1) if is_border(line, at))
    return line[:end].rstrip() + "…"
