"""The ends of sessions: those in use are at hand, others are read when they are asked for."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import msgspec
import structlog

from gateway.conversation import Message, UserMessage
from gateway.errors import Refused
from gateway.sessions import entries as e
from gateway.sessions import history, recovery, session
from gateway.sessions.entries import Entry, Summary, Undo
from gateway.sessions.history import VisibleLine, current_summary, effective_entries, is_conversation, visible_lines
from gateway.sessions.index import Books
from gateway.sessions.keys import file_name, parse_key
from gateway.sessions.state import SessionState
from gateway.sessions.storage.codec import NewerTranscript, UnreadableTranscript
from gateway.sessions.storage.disk import Disk
from gateway.sessions.storage.tail import EnoughForHistory, EnoughForLines, EnoughForState, StopCondition
from gateway.sessions.storage.threads import Worker
from gateway.sessions.storage.transcript import TranscriptTail

_REACH_BACK = (e.Clear, e.Undo, e.Summary)

_SLACK = 64
"""Messages beyond the window that are kept before the oldest are cut off."""


@dataclass(slots=True)
class _Told:
    """What the model may be told of a session before a turn: in front the summary, where one stands for some of it."""

    head: list[Message]
    older: list[Message]
    """From before what the summary stands for."""
    newer: list[Message]

    def window(self, size: int, max_chars: int | None, then: Sequence[Message] = ()) -> list[Message]:
        newer = [*self.newer, *then] if then else self.newer
        if not self.head:
            return history.shorten_messages(history.window(newer, size), max_chars)
        older = history.window(self.older, size - 1 - len(newer))
        newer = history.window(newer, size - 1)
        return [*history.shorten_messages(older, max_chars), *self.head, *history.shorten_messages(newer, max_chars)]

    def cut(self, size: int) -> None:
        """Forget what no window of that size reaches any more."""
        if len(self.newer) <= size + _SLACK:
            return
        oldest = len(self.newer) - size
        asked = (at for at in range(oldest, len(self.newer)) if isinstance(self.newer[at], UserMessage))
        self.older = []
        del self.newer[: next(asked, 0)]


class HistoryCache:
    """The messages of one session before its current turn. Entries are only added, and turns follow one another.

    `divided` returns what `messages.divided` would; where something reaches back in the current turn, it asks that.
    """

    def __init__(self) -> None:
        self._told: _Told | None = None
        self._upto = 0
        self._size = 0
        self._asked: Message | None = None
        """What the turn began with that was asked for last."""

    def divided(
        self, entries: Sequence[Entry], max_messages: int, *, turn: str | None = None, max_chars: int | None = None
    ) -> tuple[list[Message], list[Message]]:
        newest = turn or (entries[-1].turn if entries else None)
        border = self._border(entries, newest)
        if border is None:
            return history.split_history(entries, max_messages, turn=turn, max_chars=max_chars)
        told = self._reach(entries, border, max_messages)
        current = history.to_messages(entries[border:])
        self._asked = current[0] if current else None
        if turn is None:
            return told.window(max_messages, max_chars, current), []
        return told.window(max_messages, max_chars), current

    def _border(self, entries: Sequence[Entry], turn: str | None) -> int | None:
        """Return where `turn` begins, if it does so with a question and everything before it is closed."""
        if turn is None:
            return None
        border = next((at for at in range(self._upto, len(entries)) if entries[at].turn == turn), None)
        if border is None or not isinstance(entries[border], e.User):
            return None
        current = entries[border:]
        is_plain = all(entry.turn == turn or not is_conversation(entry) for entry in current)
        return border if is_plain and not any(map(_remembering_reaches_back, current)) else None

    def _reach(self, entries: Sequence[Entry], border: int, size: int) -> _Told:
        """Have the messages of all entries before `border`."""
        added = entries[self._upto : border]
        if self._told is None or self._size != size or any(map(_remembering_reaches_back, added)):
            self._told, self._size = _told(entries[:border], size), size
        elif added:
            self._told.newer += self._recognised(history.to_messages(added))
        self._upto = border
        self._told.cut(size)
        return self._told

    def _recognised(self, added: list[Message]) -> list[Message]:
        """Put the message that was shown before in the place of one that says the same: it has been measured."""
        return [self._asked, *added[1:]] if self._asked is not None and added[:1] == [self._asked] else added


def _told(entries: Sequence[Entry], size: int) -> _Told:
    summary = current_summary(entries)
    if summary is None:
        return _Told([], [], history.to_messages(effective_entries(entries, enough=size)))
    counting = effective_entries(entries)
    older = history.to_messages(entry for entry in counting if entry.seq < summary.from_seq)
    newer = history.to_messages(entry for entry in counting if entry.seq > summary.covers)
    return _Told([history.summary_message(summary)], older, newer)


def _remembering_reaches_back(entry: Entry) -> bool:
    """Tell whether it changes what entries before it stand for."""
    return isinstance(entry, _REACH_BACK) or (isinstance(entry, e.Checkpoint) and entry.summary is not None)


_GROWTH = 1024
"""Entries that may be added to a tail, and as many again as it had, before it is worth reading a shorter one."""

_SHORT = 32
"""Entries that a short session has."""


@dataclass(slots=True)
class _Hot:
    entries: list[Entry]
    size: int
    messages: int | None
    """For how many messages of history it is enough; None: it is the whole session."""
    max_entries: int
    remembered: HistoryCache = field(default_factory=HistoryCache)


class HotSessions:
    """Entries by session key; the least recently used go first, by count and by bytes of transcript.

    While sessions are short, four times as many are kept: a rush of new ones is answered without reading any.
    """

    def __init__(self, *, max_sessions: int = 256, max_bytes: int = 64 * 1024 * 1024) -> None:
        self._max_sessions = max_sessions
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries = 0
        self._sessions: OrderedDict[str, _Hot] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, key: str, messages: int = 0) -> list[Entry] | None:
        """Return the end of a session, if it is held and enough for so many messages."""
        hot = self._sessions.get(key)
        if hot is None or (hot.messages is not None and hot.messages < messages):
            return None
        self._sessions.move_to_end(key)
        return hot.entries

    def remembered(self, key: str) -> HistoryCache:
        """Return what is remembered of the history of a session; of one that is not held, nothing."""
        hot = self._sessions.get(key)
        return HistoryCache() if hot is None else hot.remembered

    def is_whole(self, key: str) -> bool:
        return key in self._sessions and self._sessions[key].messages is None

    def put(self, key: str, entries: list[Entry], size: int, *, messages: int | None = None) -> None:
        self.drop(key)
        self._sessions[key] = _Hot(entries, size, messages, 2 * len(entries) + _GROWTH)
        self._bytes += size
        self._entries += len(entries)
        self._cool()

    def extend(self, key: str, entries: Sequence[Entry], size: int) -> None:
        """Add what was appended to a session, if it is held at all."""
        hot = self._sessions.get(key)
        if hot is None:
            return
        hot.entries.extend(entries)
        hot.size += size
        self._bytes += size
        self._entries += len(entries)
        self._sessions.move_to_end(key)
        if len(hot.entries) > hot.max_entries or _reaches_back(hot, entries):
            self.drop(key)
        self._cool()

    def drop(self, key: str) -> None:
        hot = self._sessions.pop(key, None)
        if hot is not None:
            self._bytes -= hot.size
            self._entries -= len(hot.entries)

    def _cool(self) -> None:
        while self._sessions and (self._are_too_many() or self._bytes > self._max_bytes):
            self.drop(next(iter(self._sessions)))

    def _are_too_many(self) -> bool:
        if len(self._sessions) <= self._max_sessions:
            return False
        return self._entries > _SHORT * self._max_sessions or len(self._sessions) > 4 * self._max_sessions


def _reaches_back(hot: _Hot, entries: Sequence[Entry]) -> bool:
    """Tell whether earlier entries may be needed now: where a turn does not count, another before it does."""
    return hot.messages is not None and any(isinstance(entry, Undo | Summary) for entry in entries)


log: structlog.stdlib.BoundLogger = structlog.get_logger()

_LINES_BYTES = 8 * 1024 * 1024
"""How far back a person may look at once."""

_T = TypeVar("_T")


@dataclass(slots=True)
class _Loading:
    """A session that is being read, and what was appended to it since the reading was asked for."""

    messages: int
    reading: asyncio.Future[_Found]
    since: list[Entry] = field(default_factory=list)
    since_size: int = 0
    entries: list[Entry] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Found:
    """What was read, and what it adds up to, if that is not what we thought: somebody else has changed the file."""

    reading: TranscriptTail
    state: SessionState | None


class Ends:
    def __init__(self, books: Books, disk: Disk, thread: Worker) -> None:
        self._books = books
        self._disk = disk
        self._thread = thread
        self._hot = HotSessions()
        self._loading: dict[str, _Loading] = {}

    def begin(self, key: str, entries: list[Entry], size: int) -> None:
        """Take in a new session."""
        self._hot.put(key, entries, size)

    def extend(self, key: str, entries: Sequence[Entry], size: int) -> None:
        """Take in what was appended to a session."""
        self._hot.extend(key, entries, size)
        if key in self._loading:
            self._loading[key].since.extend(entries)
            self._loading[key].since_size += size

    def at_hand(self, key: str) -> list[Entry] | None:
        """Return the end of a session if it need not be read."""
        return self._hot.get(key)

    def forget(self, key: str) -> None:
        """Take a session out of memory and index; its number is not given to another."""
        self._books.forget(key)
        self._hot.drop(key)

    def gone(self, key: str, what: str) -> Refused:
        """Forget a session whose file is of no use, as recovery would."""
        _, number = parse_key(key)
        self.forget(key)
        log.error("session_gone", session=key, reason=what)
        return Refused(f"The record of session {number} {what}. Your next message starts a new session.")

    async def load(self, key: str, messages: int) -> tuple[Entry, ...]:
        """Return the end of a session: at least its last turn and `messages` messages before it."""
        return tuple(await self.reach(key, messages))

    async def divided(
        self, key: str, messages: int, *, turn: str | None = None, max_chars: int | None = None
    ) -> tuple[list[Message], list[Message]]:
        """Return what the model is to see of a session, before the turn and of it; see `messages.divided`."""
        entries = await self.reach(key, messages)
        return self._hot.remembered(key).divided(entries, messages, turn=turn, max_chars=max_chars)

    async def reach(self, key: str, messages: int) -> list[Entry]:
        """Have the end of a session in memory, as `load`; what is returned goes on growing."""
        entries = self._hot.get(key, messages)
        if entries is not None:
            return entries
        self._books.state(key)
        return await self._read(key, messages)

    async def lines(self, key: str, limit: int, messages: int) -> list[VisibleLine]:
        entries: Sequence[Entry] = await self.load(key, messages)
        if not self._hot.is_whole(key) and not _is_enough(EnoughForLines(limit), entries):
            work = partial(self._disk.read, key, EnoughForLines(limit), max_bytes=_LINES_BYTES)
            entries = (await self._refusing(key, self._thread.submit(work))).entries
        return visible_lines(entries, limit)

    async def _read(self, key: str, messages: int) -> list[Entry]:
        while (loading := self._loading.get(key)) is not None and loading.messages < messages:
            await self._refusing(key, asyncio.shield(loading.reading))
        if loading is None:
            state = self._books.state(key)
            work = partial(_find, self._disk, key, EnoughForHistory(messages, state), state.size)
            loading = self._loading[key] = _Loading(messages, self._thread.submit(work))
            loading.reading.add_done_callback(partial(self._loaded, key, loading))
        await self._refusing(key, asyncio.shield(loading.reading))
        self._books.state(key)
        return loading.entries

    async def _refusing(self, key: str, reading: asyncio.Future[_T]) -> _T:
        """Wait for a reading; `Refused` with a sentence when it fails."""
        try:
            return await reading
        except FileNotFoundError as trouble:
            raise self.gone(key, "is gone from the disk") from trouble
        except UnreadableTranscript as trouble:
            raise self.gone(key, "could not be read and was set aside") from trouble
        except NewerTranscript as trouble:
            raise too_new(key, trouble) from trouble
        except OSError as trouble:
            raise Refused(
                f"The disk could not be read ({trouble.strerror}). Try again, or start over with /new."
            ) from trouble

    def _loaded(self, key: str, loading: _Loading, reading: asyncio.Future[_Found]) -> None:
        """Keep what was read. The disk thread works in order, so just what was appended `since` is not in it."""
        del self._loading[key]
        state = self._books.find(key)
        if reading.cancelled() or reading.exception() or state is None:
            return
        found = reading.result().reading
        loading.entries = [*found.entries, *loading.since]
        self._correct(key, state, loading, reading.result().state)
        messages = None if found.is_whole else loading.messages
        self._hot.put(key, loading.entries, found.taken + loading.since_size, messages=messages)

    def _correct(self, key: str, state: SessionState, loading: _Loading, found: SessionState | None) -> None:
        """Believe the file where it says anything else than we thought, but never give out a seq twice."""
        if found is not None:
            for entry in loading.since:
                found = session.advance(found, entry)
            state = msgspec.structs.replace(found, size=found.size + loading.since_size)
        highest = max((entry.seq for entry in loading.entries), default=0)
        if found is not None or highest > state.seq:
            self._books.update(key, msgspec.structs.replace(state, seq=max(highest, state.seq)))


def _find(disk: Disk, key: str, enough: StopCondition, expected: int) -> _Found:
    """Read the end of a session; when the file has not the size that we `expected`, add it up anew."""
    reading = disk.read(key, enough)
    size, waiting = disk.snapshot(key)
    if size + len(waiting) == expected:
        return _Found(reading, None)
    name = file_name(key)
    state = recovery.state_from(disk.read(key, EnoughForState(lambda other: file_name(other) == name)))
    return _Found(reading, msgspec.structs.replace(state, size=size + len(waiting)))


def _is_enough(enough: StopCondition, entries: Sequence[Entry]) -> bool:
    for entry in reversed(entries):
        enough.add(entry)
    return enough.is_enough


def too_new(key: str, trouble: NewerTranscript) -> Refused:
    _, number = parse_key(key)
    return Refused(f"Session {number} cannot be used: {trouble}. Update Gatehouse, or start another with /new.")
