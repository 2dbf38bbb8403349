"""Pages: the parts of a document that are read at a time. Imported by the converter, so it imports nothing of ours."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

_PAGE_CHARS = 8_000
"""The length of a page where the document itself has none."""
_MAX_PAGES = 200
"""Of one answer. Pages without text take no room, but time."""
_CUT = "\n[This page is cut: it is longer than can be shown.]"


class Page(NamedTuple):
    text: str
    label: str = ""
    """The line above the text. Pages without one are joined seamlessly."""
    has_text: bool = True


class Selection(NamedTuple):
    text: str
    next_page: int
    """The first page that is not in the text, or 0."""
    has_text: bool


class NoSuchPage(Exception):
    """The document has fewer pages. The argument is their number."""


def divide(text: str) -> Iterator[Page]:
    """Divide a text into pages, at the ends of lines if possible."""
    start = 0
    while start < len(text):
        end = start + _PAGE_CHARS
        if end < len(text):
            end = max(text.rfind("\n", start, end) + 1, 0) or end
        yield Page(text[start:end])
        start = end


def select(pages: Iterable[Page], *, first: int, skips: bool, max_bytes: int) -> Selection:
    """Return the text from page `first` on, as far as it fits. Raises `NoSuchPage`.

    `skips` means that `pages` start with page 1, and not with `first`.
    """
    rest = iter(pages)
    if skips and (seen := sum(1 for _ in islice(rest, first - 1))) < first - 1:
        raise NoSuchPage(seen)
    parts: list[str] = []
    room, number, has_text = max_bytes, first, False
    for number, page in enumerate(rest, start=first):
        part = f"[{page.label}]\n{page.text}\n\n" if page.label else page.text
        size = len(part.encode(errors="replace"))
        if parts and (size > room or number - first == _MAX_PAGES):
            return Selection("".join(parts), number, has_text)
        if size > room:
            part = part.encode(errors="replace")[: max(room - len(_CUT), 0)].decode(errors="ignore") + _CUT
        parts.append(part)
        room -= size
        has_text = has_text or page.has_text
    if not parts and first > 1:
        raise NoSuchPage(number - 1)
    return Selection("".join(parts), 0, has_text)
