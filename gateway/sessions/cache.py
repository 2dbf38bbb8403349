"""Cache of sessions: recently used ones keep their last entries and their history in memory.

Other sessions are loaded on demand. Only the end of a transcript is read: as much as the history for the model needs.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import msgspec
import structlog

from gateway.aio import WorkerThread
from gateway.conversation import Message, UserMessage
from gateway.errors import Refused
from gateway.sessions import entries as e
from gateway.sessions import recovery, session
from gateway.sessions.entries import Entry
from gateway.sessions.history import (
    VisibleLine,
    current_summary,
    effective_entries,
    is_conversation,
    shorten_messages,
    split_history,
    summary_message,
    to_messages,
    visible_lines,
    window,
)
from gateway.sessions.index import SessionIndex
from gateway.sessions.keys import file_name, parse_key
from gateway.sessions.state import SessionState
from gateway.sessions.storage.codec import NewerTranscript, UnreadableTranscript
from gateway.sessions.storage.disk import Disk
from gateway.sessions.storage.tail import EnoughForHistory, EnoughForLines, EnoughForState
from gateway.sessions.storage.transcript import TranscriptTail

log: structlog.stdlib.BoundLogger = structlog.get_logger()

# Messages that a history may have beyond its window before the oldest are cut off.
EXTRA_MESSAGES = 64

# Entries that may be appended to a cached tail, and as many as it had, before loading a shorter one is cheaper.
EXTRA_ENTRIES = 1024

# Entries of a short session.
SHORT_SESSION = 32

# Bytes that are read at most to show a person the last lines.
MAX_LINES_BYTES = 8 * 1024 * 1024

_CHANGES = (e.Clear, e.Undo, e.Summary)

_T = TypeVar("_T")


class HistoryCache:
    """The history of one session for the model, extended with each turn instead of computed again.

    `split` returns the same as `split_history`. Use it with the growing entries of one session.
    """

    def __init__(self) -> None:
        # The size of the window that the lists below were computed for; -1: they were not.
        self._size = -1
        # The summary as a message, if there is one.
        self._summary: list[Message] = []
        # From before the part that the summary covers.
        self._older: list[Message] = []
        self._newer: list[Message] = []
        # How many entries the messages cover.
        self._upto = 0
        # The first message of the turn that was asked for last.
        self._question: Message | None = None

    def split(
        self, entries: Sequence[Entry], max_messages: int, *, turn: str | None = None, max_chars: int | None = None
    ) -> tuple[list[Message], list[Message]]:
        newest = turn or (entries[-1].turn if entries else None)
        border = None
        if newest is not None:
            border = next((at for at in range(self._upto, len(entries)) if entries[at].turn == newest), None)
        current = [] if border is None else entries[border:]
        # The messages before a turn stay the same only if the turn starts with a question, no other turn has messages
        # after that, and no entry changes the meaning of earlier ones. Otherwise compute everything.
        if (
            border is None
            or not isinstance(entries[border], e.User)
            or any(entry.turn != newest and is_conversation(entry) for entry in current)
            or any(map(_changes_history, current))
        ):
            return split_history(entries, max_messages, turn=turn, max_chars=max_chars)
        self._advance(entries, border, max_messages)
        messages = to_messages(current)
        self._question = messages[0] if messages else None
        newer = self._newer if turn is not None else [*self._newer, *messages]
        if self._summary:
            older = window(self._older, max_messages - 1 - len(newer))
            newer = window(newer, max_messages - 1)
            before = [*shorten_messages(older, max_chars), *self._summary, *shorten_messages(newer, max_chars)]
        else:
            before = shorten_messages(window(newer, max_messages), max_chars)
        return before, messages if turn is not None else []

    def _advance(self, entries: Sequence[Entry], border: int, size: int) -> None:
        """Compute the messages of all entries before `border`."""
        added = entries[self._upto : border]
        if self._size != size or any(map(_changes_history, added)):
            before = entries[:border]
            summary = current_summary(before)
            if summary is None:
                self._summary, self._older = [], []
                self._newer = to_messages(effective_entries(before, enough=size))
            else:
                effective = effective_entries(before)
                self._summary = [summary_message(summary)]
                self._older = to_messages(entry for entry in effective if entry.seq < summary.from_seq)
                self._newer = to_messages(entry for entry in effective if entry.seq > summary.covers)
            self._size = size
        elif added:
            messages = to_messages(added)
            if self._question is not None and messages[:1] == [self._question]:
                messages[0] = self._question  # The same object: its tokens have been counted.
            self._newer += messages
        self._upto = border
        if len(self._newer) > size + EXTRA_MESSAGES:
            # No window reaches further back than the first question within the newest `size` messages.
            newest = range(len(self._newer) - size, len(self._newer))
            self._older = []
            del self._newer[: next((at for at in newest if isinstance(self._newer[at], UserMessage)), 0)]


def _changes_history(entry: Entry) -> bool:
    """Return True if an entry changes the meaning of entries before it."""
    return isinstance(entry, _CHANGES) or (isinstance(entry, e.Checkpoint) and entry.summary is not None)


@dataclass(slots=True)
class _CachedSession:
    entries: list[Entry]
    size: int
    messages: int | None
    """How many messages of history the entries suffice for; None: they are the whole session."""
    max_entries: int
    history: HistoryCache = field(default_factory=HistoryCache)


@dataclass(slots=True)
class _Load:
    """A session that is being read, and the entries that were appended since the read was submitted."""

    messages: int
    reading: asyncio.Future[tuple[TranscriptTail, SessionState | None]]
    appended: list[Entry] = field(default_factory=list)
    appended_size: int = 0
    entries: list[Entry] = field(default_factory=list)


class SessionCache:
    """The last entries of recently used sessions. The least recently used go first, by number and by bytes.

    While sessions are short, four times as many are kept, so that many new sessions at once need no reading.
    """

    def __init__(
        self,
        index: SessionIndex,
        disk: Disk,
        disk_thread: WorkerThread,
        *,
        max_sessions: int = 256,
        max_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        self._index = index
        self._disk = disk
        self._disk_thread = disk_thread
        self._max_sessions = max_sessions
        self._max_bytes = max_bytes
        self._sessions: OrderedDict[str, _CachedSession] = OrderedDict()
        self._bytes = 0
        self._entry_count = 0
        self._loads: dict[str, _Load] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, key: str, messages: int = 0) -> list[Entry] | None:
        """Return the cached entries of a session if they suffice for so many messages of history."""
        cached = self._sessions.get(key)
        if cached is None or (cached.messages is not None and cached.messages < messages):
            return None
        self._sessions.move_to_end(key)
        return cached.entries

    def put(self, key: str, entries: list[Entry], size: int, *, messages: int | None = None) -> None:
        """Cache the last entries of a session, which take `size` bytes in its transcript."""
        self.drop(key)
        self._sessions[key] = _CachedSession(entries, size, messages, 2 * len(entries) + EXTRA_ENTRIES)
        self._bytes += size
        self._entry_count += len(entries)
        self._evict()

    def extend(self, key: str, entries: Sequence[Entry], size: int) -> None:
        """Add entries that were appended to a session, if it is cached or being loaded."""
        if (load := self._loads.get(key)) is not None:
            load.appended.extend(entries)
            load.appended_size += size
        cached = self._sessions.get(key)
        if cached is None:
            return
        cached.entries.extend(entries)
        cached.size += size
        self._bytes += size
        self._entry_count += len(entries)
        self._sessions.move_to_end(key)
        # After an undo or a summary the history may need entries from further back than the tail has.
        is_too_short = cached.messages is not None and any(isinstance(entry, e.Undo | e.Summary) for entry in entries)
        if is_too_short or len(cached.entries) > cached.max_entries:
            self.drop(key)
        self._evict()

    def drop(self, key: str) -> None:
        cached = self._sessions.pop(key, None)
        if cached is not None:
            self._bytes -= cached.size
            self._entry_count -= len(cached.entries)

    def drop_lost(self, key: str, problem: str) -> Refused:
        """Drop a session whose file cannot be used from cache and index. Return the error to raise."""
        _, number = parse_key(key)
        self._index.remove(key)
        self.drop(key)
        log.error("session_lost", session=key, reason=problem)
        return Refused(f"The transcript of session {number} {problem}. Your next message starts a new session.")

    def _evict(self) -> None:
        while self._sessions and (
            self._bytes > self._max_bytes
            or len(self._sessions) > 4 * self._max_sessions
            or (len(self._sessions) > self._max_sessions and self._entry_count > SHORT_SESSION * self._max_sessions)
        ):
            self.drop(next(iter(self._sessions)))

    async def load(self, key: str, messages: int) -> list[Entry]:
        """Return the last entries of a session: at least its last turn and `messages` messages before it.

        Later appends are added to the returned list. Raises `Refused` if the session does not exist or cannot be read.
        """
        entries = self.get(key, messages)
        if entries is not None:
            return entries
        # One read of a session at a time. A read that is already running is shared if it fetches enough.
        self._index.require(key)
        while (load := self._loads.get(key)) is not None and load.messages < messages:
            await self._wait_for(key, asyncio.shield(load.reading))
        if load is None:
            state = self._index.require(key)
            reading = self._disk_thread.submit(_read_tail, self._disk, key, messages, state)
            load = self._loads[key] = _Load(messages, reading)
            reading.add_done_callback(partial(self._loaded, key, load))
        # Shielded: other callers may wait for the same read.
        await self._wait_for(key, asyncio.shield(load.reading))
        self._index.require(key)  # It may have been deleted during the read.
        return load.entries

    def _loaded(
        self, key: str, load: _Load, reading: asyncio.Future[tuple[TranscriptTail, SessionState | None]]
    ) -> None:
        """Cache a session that was read. Runs before any waiter."""
        del self._loads[key]
        state = self._index.find(key)
        if reading.cancelled() or reading.exception() or state is None:
            return
        tail, changed = reading.result()
        # The disk thread works in order: exactly the entries appended since the submit are missing in the tail.
        load.entries = [*tail.entries, *load.appended]
        if changed is not None:
            # Another program has changed the file. Its content is right, but a seq must not be used twice.
            for entry in load.appended:
                changed = session.advance(changed, entry)
            state = msgspec.structs.replace(changed, size=changed.size + load.appended_size)
        highest = max((entry.seq for entry in load.entries), default=0)
        if changed is not None or highest > state.seq:
            self._index.update(key, msgspec.structs.replace(state, seq=max(highest, state.seq)))
        messages = None if tail.is_whole else load.messages
        self.put(key, load.entries, tail.taken + load.appended_size, messages=messages)

    async def _wait_for(self, key: str, reading: asyncio.Future[_T]) -> _T:
        """Wait for a read. Raises `Refused` with a sentence for the user if it fails."""
        try:
            return await reading
        except FileNotFoundError as error:
            raise self.drop_lost(key, "is missing from the disk") from error
        except UnreadableTranscript as error:
            raise self.drop_lost(key, "couldn't be read and was set aside") from error
        except NewerTranscript as error:
            raise refuse_newer_session(key, error) from error
        except OSError as error:
            raise Refused(
                f"I can't read this session from the disk ({error.strerror}). Try again, or start over with /new."
            ) from error

    async def split_history(
        self, key: str, messages: int, *, turn: str | None = None, max_chars: int | None = None
    ) -> tuple[list[Message], list[Message]]:
        """Return the history for the model as two parts: the messages before `turn`, and those of `turn`."""
        entries = await self.load(key, messages)
        # The session may have been evicted since. Then nothing can be kept for the next turn.
        cached = self._sessions.get(key)
        history = HistoryCache() if cached is None else cached.history
        return history.split(entries, messages, turn=turn, max_chars=max_chars)

    async def visible_lines(self, key: str, limit: int, messages: int) -> list[VisibleLine]:
        """Return the last `limit` lines that a person sees, oldest first."""
        entries = await self.load(key, messages)
        cached = self._sessions.get(key)
        if cached is None or cached.messages is not None:
            enough = EnoughForLines(limit)
            for entry in reversed(entries):
                enough.add(entry)
            if not enough.is_enough:
                # This read goes past the cache: a person looks back once, and the model never needs as much.
                read = partial(self._disk.read, key, EnoughForLines(limit), max_bytes=MAX_LINES_BYTES)
                entries = (await self._wait_for(key, self._disk_thread.submit(read))).entries
        return visible_lines(entries, limit)


def _read_tail(
    disk: Disk, key: str, messages: int, expected: SessionState
) -> tuple[TranscriptTail, SessionState | None]:
    """Read the end of a session. If its file does not have the expected size, return the state it contains, too."""
    tail = disk.read(key, EnoughForHistory(messages, expected))
    size, waiting = disk.snapshot(key)
    size += len(waiting)
    if size == expected.size:
        return tail, None
    name = file_name(key)
    state = recovery.state_from(disk.read(key, EnoughForState(lambda other: file_name(other) == name)))
    return tail, msgspec.structs.replace(state, size=size)


def refuse_newer_session(key: str, error: NewerTranscript) -> Refused:
    _, number = parse_key(key)
    return Refused(f"Session {number} can't be used: {error}. Update Gatehouse, or start a new session with /new.")
