"""Names for files, made of what somebody on a platform claims; pure."""

import re
import unicodedata

from gateway.text import clean, printable

__all__ = ["MAX_NAME_BYTES", "in_bytes", "safe_name"]

MAX_NAME_BYTES = 120
"""File systems end at 255; ours also has a turn and a number in it."""

_LONGEST_SUFFIX = 20
_FORBIDDEN = re.compile(r'[/\\:*?"<>|\r\n\t]+')
_THOUSAND = 1000


def safe_name(claimed: str, fallback: str = "file") -> str:
    """Return a label that is one path component, never hidden, and has no character that a header or shell minds."""
    text = unicodedata.normalize("NFC", printable(clean(claimed)))
    text = " ".join(_FORBIDDEN.sub("_", text).split()).strip(". ")
    stem, dot, suffix = text.rpartition(".")
    if not dot or len(suffix.encode()) > _LONGEST_SUFFIX:
        stem, suffix = text, ""
    room = MAX_NAME_BYTES - len(suffix.encode()) - 1
    stem = stem.encode()[:room].decode(errors="ignore").strip(". ") or fallback
    return f"{stem}.{suffix}" if suffix else stem


def in_bytes(size: int) -> str:
    """Say a size as people do: 20 MB."""
    amount = float(size)
    for unit in ("bytes", "kB", "MB", "GB"):
        if amount < _THOUSAND or unit == "GB":
            break
        amount /= _THOUSAND
    return f"{amount:.0f} {unit}" if amount >= 10 or unit == "bytes" else f"{amount:.1f} {unit}"  # noqa: PLR2004 - two digits.
