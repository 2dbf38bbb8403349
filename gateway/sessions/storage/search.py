"""Word search in transcripts: newest first, limited in bytes and time."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from time import monotonic, sleep
from typing import Self

from msgspec import Struct

from gateway.sessions.entries import Assistant, User
from gateway.sessions.storage.codec import DamagedEntry, decode
from gateway.sessions.storage.transcript import lines_backwards
from gateway.text import excerpt

SNIPPET_WIDTH = 120
# Characters of a snippet before the first word found.
SNIPPET_LEAD = 40

LINES_PER_SLICE = 64

# Seconds to sleep after each slice. Without it, the event loop would wait 5 ms for the interpreter each time.
SLICE_PAUSE = 0.00005


class Hit(Struct, frozen=True, kw_only=True):
    """A message that contains all words. `role` is `user` or `assistant`."""

    key: str
    number: int
    title: str
    snippet: str
    at: datetime
    role: str


class SearchResult(Struct, frozen=True, kw_only=True):
    """`stopped_early`: there may be more hits, because one of the limits was reached."""

    hits: tuple[Hit, ...]
    stopped_early: bool


class SearchedFile(Struct, frozen=True, kw_only=True):
    """The transcript of the session `key`."""

    path: Path
    key: str
    number: int
    title: str


class SearchDeadline:
    """A time limit that starts with the first check, since the search may have to wait for the thread.

    A thread cannot be cancelled. So leaving the `with` block ends the search, too.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadline: float | None = None
        self._is_abandoned = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_failure: object) -> None:
        self._is_abandoned = True

    def is_over(self) -> bool:
        now = monotonic()
        if self._deadline is None:
            self._deadline = now + self._seconds
        return self._is_abandoned or now > self._deadline


def search(
    files: Sequence[SearchedFile], words: Sequence[str], *, limit: int, max_bytes: int, deadline: SearchDeadline
) -> SearchResult:
    """Find the messages that contain all `words`, ignoring case."""
    wanted = [word.casefold() for word in words if word]
    hits: list[Hit] = []
    if not wanted:
        return SearchResult(hits=(), stopped_early=False)
    for number, (file, line) in enumerate(_lines(files)):
        if number % LINES_PER_SLICE == 0:
            sleep(SLICE_PAUSE)
        max_bytes -= len(line)
        if max_bytes < 0 or deadline.is_over():
            return SearchResult(hits=tuple(hits), stopped_early=True)
        try:
            entry = decode(line)
        except DamagedEntry:
            continue
        if not isinstance(entry, User | Assistant):
            continue
        folded = entry.content.casefold()
        if not all(word in folded for word in wanted):
            continue
        if len(hits) == limit:
            return SearchResult(hits=tuple(hits), stopped_early=True)
        # Folding the case may have moved the position a little, which does not matter for a snippet.
        start = max(0, min(folded.find(word) for word in wanted) - SNIPPET_LEAD)
        snippet = excerpt(entry.content[start : start + 4 * SNIPPET_WIDTH], SNIPPET_WIDTH)
        hits.append(
            Hit(
                key=file.key,
                number=file.number,
                title=file.title,
                snippet=("…" if start else "") + snippet,
                at=entry.ts,
                role="user" if isinstance(entry, User) else "assistant",
            )
        )
    return SearchResult(hits=tuple(hits), stopped_early=False)


def _lines(files: Sequence[SearchedFile]) -> Iterator[tuple[SearchedFile, bytes]]:
    for file in files:
        try:
            yield from ((file, line) for line in lines_backwards(file.path))
        except OSError:
            continue  # It was deleted in the meantime, or cannot be read. Search the others.
