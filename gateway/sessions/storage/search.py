"""Finding words in transcripts: newest first, within bounds of bytes and time, and never in the way of others."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from time import monotonic, sleep
from typing import Self

from gateway.sessions.entries import Assistant, Entry, User
from gateway.sessions.storage.codec import DamagedEntry, decode
from gateway.sessions.storage.transcript import lines_backwards
from gateway.text import excerpt

__all__ = ["Hit", "SearchDeadline", "SearchResult", "SearchedFile", "search"]

SNIPPET_WIDTH = 120
_BEFORE = 40

LINES_PER_SLICE = 64
"""Lines after which a search takes a breath: whoever else wants the interpreter would wait for 5 ms each time."""
SLICE_PAUSE = 0.00005


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One line in which all the words were found; `role` is `user` or `assistant`."""

    number: int
    title: str
    snippet: str
    at: datetime
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """`stopped_early` says that there may be more: enough was found, or the bounds of the search were reached."""

    hits: tuple[Hit, ...]
    stopped_early: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedFile:
    """One transcript to look into."""

    path: Path
    number: int
    title: str


class SearchDeadline:
    """Is over so many seconds after it was first asked for, or once whoever waits has left the `with`.

    A thread cannot be cancelled, and others may stand before it.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadline: float | None = None
        self._has_left = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_failure: object) -> None:
        self._has_left = True

    def is_over(self) -> bool:
        now = monotonic()
        if self._deadline is None:
            self._deadline = now + self._seconds
        return self._has_left or now > self._deadline


def search(
    files: Sequence[SearchedFile], words: Sequence[str], *, limit: int, max_bytes: int, is_over: Callable[[], bool]
) -> SearchResult:
    """Look for entries that hold all of `words`, ignoring case. `is_over` is asked often, and ends the search."""
    wanted = [word.casefold() for word in words if word]
    hits: list[Hit] = []
    if not wanted:
        return SearchResult(hits=(), stopped_early=False)
    for number, (file, line) in enumerate(_lines(files)):
        if number % LINES_PER_SLICE == 0:
            sleep(SLICE_PAUSE)
        max_bytes -= len(line)
        if max_bytes < 0 or is_over():
            return SearchResult(hits=tuple(hits), stopped_early=True)
        hit = _hit(file, line, wanted)
        if hit is None:
            continue
        if len(hits) == limit:
            return SearchResult(hits=tuple(hits), stopped_early=True)
        hits.append(hit)
    return SearchResult(hits=tuple(hits), stopped_early=False)


def _lines(files: Sequence[SearchedFile]) -> Iterator[tuple[SearchedFile, bytes]]:
    for file in files:
        try:
            yield from ((file, line) for line in lines_backwards(file.path))
        except OSError:
            continue  # It was deleted in the meantime, or cannot be read today: the others can.


def _hit(file: SearchedFile, line: bytes, wanted: Sequence[str]) -> Hit | None:
    entry = _spoken(line)
    if entry is None:
        return None
    folded = entry.content.casefold()
    if not all(word in folded for word in wanted):
        return None
    at = min(folded.find(word) for word in wanted)
    return Hit(
        number=file.number,
        title=file.title,
        snippet=_snippet(entry.content, at),
        at=entry.ts,
        role="user" if isinstance(entry, User) else "assistant",
    )


def _spoken(line: bytes) -> User | Assistant | None:
    try:
        entry: Entry = decode(line)
    except DamagedEntry:
        return None
    return entry if isinstance(entry, User | Assistant) else None


def _snippet(text: str, at: int) -> str:
    """Cut `text` around position `at`, which folding the case may have shifted a little."""
    start = max(0, at - _BEFORE)
    return ("…" if start else "") + excerpt(text[start : start + 4 * SNIPPET_WIDTH], SNIPPET_WIDTH)
