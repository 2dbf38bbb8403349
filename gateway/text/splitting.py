"""Cutting a long answer into messages that a platform takes, at the places where a reader would."""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

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


Measure = Callable[[str], int]

_BREAKS = (
    re.compile(r"\n[ \t]*\n"),
    re.compile(r"\n"),
    re.compile(r"[.!?…][\"')\]*_”’]*[ \t]+|[。！？]"),  # noqa: RUF001  The full-width marks are what CJK text uses.
    re.compile(r"[ \t]+"),
)
"""Best first: paragraph, line or list item, sentence, word."""

_FENCE_LINE = re.compile(r"^[ \t]*(`{3,}|~{3,})([^\n]*)$", re.MULTILINE)


def utf16_length(text: str) -> int:
    """Count as Telegram does: characters beyond U+FFFF count twice."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def split(text: str, size: int, measure: Measure = len) -> list[str]:
    """Cut `text` into parts of at most `size`, as counted by `measure`.

    Nothing is dropped but blank parts, which platforms refuse. A code fence that is open at a cut is closed there and
    opened again in the next part. Only a single character that is longer than `size` makes a part too long.
    """
    if size < 1:
        raise ValueError("A part must have room for at least one character.")
    if measure(text) <= size:
        return [text] if text.strip() else []
    cutter = _Cutter(text=text, size=size, measure=measure)
    parts: list[str] = []
    at, fence = 0, None
    while at < len(text):
        part = cutter.next_part(at, fence)
        if text[at : part.end].strip():
            parts.append(part.text)
        at, fence = part.end, part.fence
    return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fence:
    """A code fence that is open. `body` is where its first line of code starts."""

    marker: str
    info: str
    line: int
    body: int

    def closer(self, code: str) -> str:
        return self.marker if code.endswith("\n") else f"\n{self.marker}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    text: str
    end: int
    fence: _Fence | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cutter:
    text: str
    size: int
    measure: Measure

    def next_part(self, start: int, fence: _Fence | None) -> _Part:
        """Cut the part that starts at `start`, where `fence` is open."""
        opener = self._opener(fence)
        room = self.size - self.measure(opener)
        while room > 0:
            end = self._cut(start, room)
            part = self._close(start, end, opener, fence)
            excess = self.measure(part.text) - self.size
            if excess <= 0:
                return part
            room -= excess
        return self._bare_part(start, fence)

    def _opener(self, fence: _Fence | None) -> str:
        """Open `fence` again, without its info string where that would take most of the room."""
        if fence is None:
            return ""
        whole = f"{fence.marker}{fence.info}\n"
        return whole if self.measure(whole) <= self.size // 2 else f"{fence.marker}\n"

    def _bare_part(self, start: int, fence: _Fence | None) -> _Part:
        """Leave the fence open: there is no room for its markers."""
        end = self._cut(start, self.size)
        return _Part(text=self.text[start:end], end=end, fence=_scan(self.text, start, end, fence))

    def _close(self, start: int, end: int, opener: str, fence: _Fence | None) -> _Part:
        fence_at_end = _scan(self.text, start, end, fence)
        if fence_at_end is None or end == len(self.text):
            return _Part(text=opener + self.text[start:end], end=end, fence=fence_at_end)
        if start < fence_at_end.line and end <= fence_at_end.body:
            # Nothing of the code has its place here, so the whole fence moves to the next part.
            return _Part(text=opener + self.text[start : fence_at_end.line], end=fence_at_end.line, fence=None)
        body = self.text[start:end]
        return self._with_own_closer(start, end, opener, fence_at_end) or _Part(
            text=opener + body + fence_at_end.closer(body), end=end, fence=fence_at_end
        )

    def _with_own_closer(self, start: int, end: int, opener: str, fence: _Fence) -> _Part | None:
        """Take the closing line along when it comes next, lest the next part begin with an empty block of code."""
        line_end = self.text.find("\n", end) + 1 or len(self.text)
        if _scan(self.text, end, line_end, fence) is not None:
            return None
        whole = opener + self.text[start:line_end]
        return _Part(text=whole, end=line_end, fence=None) if self.measure(whole) <= self.size else None

    def _cut(self, start: int, room: int) -> int:
        """Find the best place to end a part that starts at `start`. It is always after `start`."""
        limit = self._limit(start, room)
        if limit == len(self.text):
            return limit
        for earliest in (start + (limit - start) // 2, start):
            for pattern in _BREAKS:
                if cut := self._last_break(pattern, earliest, limit):
                    return cut
        return last_border(self.text, start, limit)

    def _last_break(self, pattern: re.Pattern[str], earliest: int, limit: int) -> int | None:
        ends = (match.end() for match in pattern.finditer(self.text, earliest, limit))
        return max((end for end in ends if is_border(self.text, end)), default=None)

    def _limit(self, start: int, room: int) -> int:
        """Find the longest slice that fits, without measuring more than about twice what fits."""
        low, high = 1, room
        while start + high < len(self.text) and self._fits(start, high, room):
            low, high = high, high * 2
        high = min(high, len(self.text) - start)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._fits(start, middle, room) else (low, middle - 1)
        return start + low

    def _fits(self, start: int, length: int, room: int) -> bool:
        return self.measure(self.text[start : start + length]) <= room


def _scan(text: str, start: int, end: int, fence: _Fence | None) -> _Fence | None:
    """Say which fence is open at `end`, given the one that is open at `start`, which may be in the middle of a line."""
    for match in _FENCE_LINE.finditer(text, start, end):
        fence = _after_line(match, fence)
    return fence


def _after_line(line: re.Match[str], fence: _Fence | None) -> _Fence | None:
    marker, info = line[1], line[2].rstrip()
    if fence is None:
        is_code_span = marker.startswith("`") and "`" in info
        return None if is_code_span else _Fence(marker=marker, info=info, line=line.start(), body=line.end() + 1)
    is_closer = marker.startswith(fence.marker) and not info
    return None if is_closer else fence
