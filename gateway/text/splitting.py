"""Splits a long text into messages that fit a platform's limit, between paragraphs, lines or words."""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from msgspec import Struct

Measure = Callable[[str], int]

_BREAKS = (
    re.compile(r"\n[ \t]*\n"),
    re.compile(r"\n"),
    re.compile(r"[.!?…][\"')\]*_”’]*[ \t]+|[。！？]"),  # noqa: RUF001 - CJK text uses full-width marks.
    re.compile(r"[ \t]+"),
)
"""Best first: paragraph, line or list item, sentence, word."""

_FENCE_LINE = re.compile(r"^[ \t]*(`{3,}|~{3,})([^\n]*)$", re.MULTILINE)

_ZERO_WIDTH_JOINER = "\u200d"
_ZERO_WIDTH_NON_JOINER = "\u200c"


def utf16_length(text: str) -> int:
    """Count as Telegram does: characters beyond U+FFFF count twice."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def split(text: str, size: int, measure: Measure = len) -> list[str]:
    """Split `text` into parts of at most `size`, as counted by `measure`.

    Only blank parts are dropped, which platforms refuse. If a code fence is open at a cut, it is closed there and
    opened again in the next part. Only a single character that is longer than `size` makes a part too long.
    """
    if size < 1:
        raise ValueError("A part must have room for at least one character.")
    if measure(text) <= size:
        return [text] if text.strip() else []
    splitter = _Splitter(text=text, size=size, measure=measure)
    parts: list[str] = []
    at, fence = 0, None
    while at < len(text):
        part = splitter.next_part(at, fence)
        if text[at : part.end].strip():
            parts.append(part.text)
        at, fence = part.end, part.fence
    return parts


def is_border(text: str, at: int) -> bool:
    """Return whether `text` may be cut before index `at` without tearing a visible character apart."""
    if at <= 0 or at >= len(text):
        return True
    before, after = text[at - 1], text[at]
    if before < "\u0300" and after < "\u0300":  # Nothing below this combines, and most text is here.
        return (before, after) != ("\r", "\n")
    extends_previous = (
        after in (_ZERO_WIDTH_JOINER, _ZERO_WIDTH_NON_JOINER)
        or "\U0001f3fb" <= after <= "\U0001f3ff"  # Skin tones.
        or "\U000e0020" <= after <= "\U000e007f"  # Tags, as in the flag of Scotland.
        or unicodedata.category(after) in ("Mn", "Mc", "Me")  # Combining marks.
    )
    is_surrogate_pair = "\ud800" <= before <= "\udbff" and "\udc00" <= after <= "\udfff"
    is_hangul_syllable = "\u1100" <= before <= "\u11ff" and "\u1160" <= after <= "\u11ff"
    if extends_previous or before == _ZERO_WIDTH_JOINER or is_surrogate_pair or is_hangul_syllable:
        return False
    # A flag is a pair of regional indicators, so an odd number of them before the cut is half a flag.
    first = at
    while _is_regional_indicator(after) and first > 0 and _is_regional_indicator(text[first - 1]):
        first -= 1
    return (at - first) % 2 == 0


def _is_regional_indicator(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def last_border(text: str, start: int, end: int) -> int:
    """Return the last border after `start` and up to `end`, or `end` itself if there is none."""
    return next((at for at in range(end, start, -1) if is_border(text, at)), end)


class _Fence(Struct, frozen=True, kw_only=True):
    """An open code fence. `line` is where its opening line starts, `body` where its code starts."""

    marker: str
    info: str
    line: int
    body: int


class _Part(Struct, frozen=True, kw_only=True):
    text: str
    end: int
    fence: _Fence | None
    """The fence that is open at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Splitter:
    text: str
    size: int
    measure: Measure

    def next_part(self, start: int, fence: _Fence | None) -> _Part:
        """Return the part that starts at `start`, where `fence` is open."""
        opener = ""
        if fence is not None:
            opener = f"{fence.marker}{fence.info}\n"
            if self.measure(opener) > self.size // 2:  # A long info string would take most of the room.
                opener = f"{fence.marker}\n"
        room = self.size - self.measure(opener)
        while room > 0:
            part = self._with_fences(start, self._best_cut(start, room), opener, fence)
            excess = self.measure(part.text) - self.size
            if excess <= 0:
                return part
            room -= excess
        # There is no room for fence markers, so the fence stays open.
        end = self._best_cut(start, self.size)
        return _Part(text=self.text[start:end], end=end, fence=_open_fence(self.text, start, end, fence))

    def _with_fences(self, start: int, end: int, opener: str, fence: _Fence | None) -> _Part:
        """Return the text from `start` to `end`, with the fence opened before it and closed after it."""
        body = self.text[start:end]
        open_at_end = _open_fence(self.text, start, end, fence)
        if open_at_end is None or end == len(self.text):
            return _Part(text=opener + body, end=end, fence=open_at_end)
        if start < open_at_end.line and end <= open_at_end.body:
            # The cut is within the fence's opening line, so the whole fence moves to the next part.
            return _Part(text=opener + self.text[start : open_at_end.line], end=open_at_end.line, fence=None)
        # If only the closing line is left, it is included. Else the next part would start with an empty code block.
        line_end = self.text.find("\n", end) + 1 or len(self.text)
        if _open_fence(self.text, end, line_end, open_at_end) is None:
            with_closing_line = opener + self.text[start:line_end]
            if self.measure(with_closing_line) <= self.size:
                return _Part(text=with_closing_line, end=line_end, fence=None)
        closer = open_at_end.marker if body.endswith("\n") else f"\n{open_at_end.marker}"
        return _Part(text=opener + body + closer, end=end, fence=open_at_end)

    def _best_cut(self, start: int, room: int) -> int:
        """Return the best place to end a part that starts at `start`. It is always after `start`."""

        def fits(length: int) -> bool:
            return self.measure(self.text[start : start + length]) <= room

        # Find the longest slice that fits, without measuring more than about twice its length.
        low, high = 1, room
        while start + high < len(self.text) and fits(high):
            low, high = high, high * 2
        high = min(high, len(self.text) - start)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if fits(middle) else (low, middle - 1)
        limit = start + low
        if limit == len(self.text):
            return limit
        # A break in the second half of the slice is better than a better kind of break in the first half.
        for earliest in (start + low // 2, start):
            for pattern in _BREAKS:
                ends = (match.end() for match in pattern.finditer(self.text, earliest, limit))
                if cut := max((end for end in ends if is_border(self.text, end)), default=None):
                    return cut
        return last_border(self.text, start, limit)


def _open_fence(text: str, start: int, end: int, fence: _Fence | None) -> _Fence | None:
    """Return the fence that is open at `end`, given the one that is open at `start`."""
    for line in _FENCE_LINE.finditer(text, start, end):
        marker, info = line[1], line[2].rstrip()
        if fence is None:
            is_code_span = marker.startswith("`") and "`" in info
            if not is_code_span:
                fence = _Fence(marker=marker, info=info, line=line.start(), body=line.end() + 1)
        elif marker.startswith(fence.marker) and not info:
            fence = None
    return fence


def first_parts(text: str, count: int, size: int, measure: Measure = len) -> str:
    """Return the beginning of `text`, up to the end of so many parts. A code fence that is open there is closed."""
    splitter = _Splitter(text=text, size=size, measure=measure)
    at, fence = 0, None
    for _ in range(count):
        part = splitter.next_part(at, fence)
        at, fence = part.end, part.fence
        if at == len(text):
            break
    return text[:at].rstrip() + (f"\n{fence.marker}" if fence is not None else "")


class GrowingText:
    """Cuts a text that grows at its end into the parts that `split` will make of it.

    Only the last part still changes. Every call gets the whole text so far.
    """

    def __init__(self, size: int, measure: Measure = len) -> None:
        self._size = size
        self._measure = measure
        self._at = 0
        self._fence: _Fence | None = None

    def finished_part(self, text: str) -> str | None:
        """Return the current part if more text cannot change it, else None."""
        # A cut depends only on text that would fit, and on the character behind it.
        while self._measure(text[self._at :]) > self._size:
            part = self._part(text)
            if text[self._at : part.end].strip():
                return part.text
            self._at, self._fence = part.end, part.fence
        return None

    def next_part(self, text: str) -> None:
        """Go on to the part behind the finished one."""
        part = self._part(text)
        self._at, self._fence = part.end, part.fence

    def unfinished_part(self, text: str) -> str:
        """Return the current part as far as it is known. It is never longer than a part may be."""
        if self._at == 0 and self._measure(text) <= self._size:
            return text
        return self._part(text).text if text[self._at :].strip() else ""

    def _part(self, text: str) -> _Part:
        return _Splitter(text=text, size=self._size, measure=self._measure).next_part(self._at, self._fence)
