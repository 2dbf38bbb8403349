"""Word search in transcripts: newest first, limited in bytes and time."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import accumulate
from time import monotonic, sleep
from typing import Self

import msgspec
from msgspec import Raw, Struct

from gateway.sessions.entries import Assistant, User
from gateway.sessions.storage.codec import DamagedEntry, decode
from gateway.text import excerpt

SNIPPET_WIDTH = 120
# Characters of a snippet before the first word found.
SNIPPET_LEAD = 40

LINES_PER_SLICE = 64

# Seconds to sleep after each slice. Without it, the event loop would wait 5 ms for the interpreter each time.
SLICE_PAUSE = 0.00005

MAX_MATCHES = 1_000
"""Messages that one query of an index finds. If there are more, the sessions are searched one by one."""
MAX_TRIGRAMS = 8
"""Trigrams of a word that are looked up. The rest of the word is compared with the few messages that have these."""
MAX_TRIGRAMS_OF_EACH = 5
"""If several words are looked up together: each trigram is a list to follow, and few messages have all of them."""
ROWS_PER_STEP = 32
SAMPLED_PLACES = 32
MESSAGES_PER_PLACE = 16
"""The messages in a row that a sample has of each place."""

SEARCHED_TYPES = ("user", "assistant")
"""The types of the entries that are searched."""


def fold(text: str) -> str:
    """Return a text as it is compared: without case, and without NUL characters, which databases cannot have."""
    return text.casefold().replace("\0", "\ufffd")


class Hit(Struct, frozen=True, kw_only=True):
    """A message that contains all words. `role` is `user` or `assistant`."""

    key: str
    number: int
    title: str
    snippet: str
    at: datetime
    role: str
    is_archived: bool = False
    seq: int = 0
    turn: str | None = None
    found: tuple[str, ...] = ()
    """The words that it contains, of those that were counted."""


class SearchResult(Struct, frozen=True, kw_only=True):
    """`stopped_early`: there may be more hits, because one of the limits was reached."""

    hits: tuple[Hit, ...]
    stopped_early: bool


class SearchedSession(Struct, frozen=True, kw_only=True):
    """A session and its lines, the last one first."""

    key: str
    number: int
    title: str
    lines: Iterator[bytes]


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


class _Message(Struct):
    type: str
    content: Raw = Raw()


_decode_message = msgspec.json.Decoder(_Message).decode


def searched_text(line: bytes) -> str | None:
    """Return the folded text of a line that is searched."""
    try:
        message = _decode_message(line)
    except (ValueError, RecursionError):
        return None
    return folded_content(message.type, message.content)


def folded_content(kind: str, content: Raw) -> str | None:
    """Return the folded text of an entry, by its type and its field `content`. None: it is not searched."""
    if kind not in SEARCHED_TYPES or not content:
        return None
    text = msgspec.json.decode(content)
    return fold(text) if isinstance(text, str) and text else None


def trigrams(word: str) -> list[str]:
    """Return the trigrams of a folded word. One that is shorter has none."""
    return list(dict.fromkeys(word[start : start + 3] for start in range(len(word) - 2)))


def lookup(words: Sequence[str], rare: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the folded words that an index looks up, and those that are compared with what it finds."""
    folded = {word: fold(word) for word in words if word}
    looked_up = [text for word, text in folded.items() if word in rare and trigrams(text)] or list(folded.values())
    return looked_up, [text for text in folded.values() if text not in looked_up]


def match_all(words: Sequence[str]) -> str:
    """Return the query of FTS5 for messages with trigrams of all words. Empty: the words are too short to have any."""
    found: dict[str, None] = {}
    most = MAX_TRIGRAMS if len(words) == 1 else MAX_TRIGRAMS_OF_EACH
    for word in words:
        grams = trigrams(word)
        step = max(1.0, (len(grams) - 1) / (most - 1))
        found |= dict.fromkeys(grams[round(number * step)] for number in range(min(len(grams), most)))
    return " AND ".join('"' + trigram.replace('"', '""') + '"' for trigram in found)


def sampled_places(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield places that are spread evenly over things of these sizes: the index of a thing, and a place in it."""
    ends = list(accumulate(sizes))
    total = ends[-1] if ends else 0
    for place in range(0, total, max(1, total // SAMPLED_PLACES)):
        index = bisect_right(ends, place)
        yield index, place - (ends[index] - sizes[index])


def search(
    sessions: Iterable[SearchedSession],
    words: Sequence[str],
    *,
    counted: Sequence[str] = (),
    limit: int,
    width: int = SNIPPET_WIDTH,
    max_bytes: int,
    deadline: SearchDeadline,
) -> SearchResult:
    """Find the messages that contain all `words`, ignoring case. Each hit says which of the `counted` it contains."""
    wanted = [fold(word) for word in words if word]
    hits: list[Hit] = []
    if not wanted:
        return SearchResult(hits=(), stopped_early=False)
    for number, (session, line) in enumerate(read_lines(sessions)):
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
        folded = fold(entry.content)
        if not all(word in folded for word in wanted):
            continue
        if len(hits) == limit:
            return SearchResult(hits=tuple(hits), stopped_early=True)
        # Folding the case may have moved the position a little, which does not matter for a snippet.
        start = max(0, min(folded.find(word) for word in wanted) - SNIPPET_LEAD)
        snippet = excerpt(entry.content[start : start + 4 * width], width)
        hits.append(
            Hit(
                key=session.key,
                number=session.number,
                title=session.title,
                snippet=("…" if start else "") + snippet,
                at=entry.ts,
                role="user" if isinstance(entry, User) else "assistant",
                seq=entry.seq,
                turn=entry.turn,
                found=tuple(word for word in counted if fold(word) in folded),
            )
        )
    return SearchResult(hits=tuple(hits), stopped_early=False)


def read_lines(sessions: Iterable[SearchedSession]) -> Iterator[tuple[SearchedSession, bytes]]:
    """Yield the lines of the sessions that can be read, and an empty one before those of each session."""
    for session in sessions:
        yield session, b""  # No entry, but the deadline is checked even if an index finds nothing in many sessions.
        try:
            yield from ((session, line) for line in session.lines)
        except OSError:
            continue  # It was deleted in the meantime, or cannot be read. Search the others.
