"""Where a text may be cut without tearing apart what a person sees as one character.

The rules are the part of Unicode's grapheme clusters (UAX #29) that people meet: combining marks, emoji sequences,
flags, Hangul, CR LF. The full tables would be a dependency, and a missed rare border only costs a prettier cut.
"""

import unicodedata

__all__ = ["is_border", "last_border"]

_ZWJ = "\u200d"
_ZWNJ = "\u200c"


def is_border(text: str, at: int) -> bool:
    """Whether `text` may be cut before the character at index `at`."""
    if at <= 0 or at >= len(text):
        return True
    before, after = text[at - 1], text[at]
    if before < "\u0300" and after < "\u0300":
        return (before, after) != ("\r", "\n")
    return not (_extends(after) or before == _ZWJ or _are_one(before, after) or _is_inside_flag(text, at))


def last_border(text: str, start: int, end: int) -> int:
    """Find the last border after `start` and not after `end`; `end` itself when there is none to be found."""
    for at in range(end, start, -1):
        if is_border(text, at):
            return at
    return end


def _extends(character: str) -> bool:
    """Whether the character only changes the one before it."""
    return (
        character in (_ZWJ, _ZWNJ)
        or "\U0001f3fb" <= character <= "\U0001f3ff"  # Skin tones.
        or "\U000e0020" <= character <= "\U000e007f"  # Tags, as in the flag of Scotland.
        or unicodedata.category(character) in ("Mn", "Mc", "Me")
    )


def _are_one(before: str, after: str) -> bool:
    is_surrogate_pair = "\ud800" <= before <= "\udbff" and "\udc00" <= after <= "\udfff"
    is_hangul = "\u1100" <= before <= "\u11ff" and "\u1160" <= after <= "\u11ff"
    return is_surrogate_pair or is_hangul


def _is_inside_flag(text: str, at: int) -> bool:
    """Count: a flag is a pair of regional indicators, so an odd number of them before the cut leaves half a flag."""
    if not _is_regional(text[at]):
        return False
    first = at
    while first > 0 and _is_regional(text[first - 1]):
        first -= 1
    return (at - first) % 2 == 1


def _is_regional(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"
