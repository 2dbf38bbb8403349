"""Cache of sessions: recently used ones keep their last entries and their history in memory.

Other sessions are loaded on demand. Only the end of a transcript is read: as much as the history for the model needs.
"""

from __future__ import annotations

import asyncio
import errno
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import TypeVar

import msgspec
import structlog
from msgspec import Struct, field

from gateway.aio import WorkerThread
from gateway.bounded import BoundedDict
from gateway.conversation import Message, UserMessage
from gateway.errors import Refused, RefusedForNow, SessionDamaged
from gateway.sessions import entries as e
from gateway.sessions import session
from gateway.sessions.entries import Entry
from gateway.sessions.feed import SessionFeed
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
from gateway.sessions.keys import parse_key
from gateway.sessions.state import SessionState, SessionStatus
from gateway.sessions.storage.codec import NewerTranscript, UnreadableTranscript, encode
from gateway.sessions.storage.disk import LOST
from gateway.sessions.storage.interface import SessionStorage
from gateway.sessions.storage.rebuild import rebuilt_entries
from gateway.sessions.storage.tail import EnoughForLines
from gateway.sessions.storage.transcript import TranscriptTail
from gateway.text.plain import count

log: structlog.stdlib.BoundLogger = structlog.get_logger()

# Messages that a history may have beyond its window before the oldest are cut off.
EXTRA_MESSAGES = 64

# Entries that may be appended to a cached tail, and as many as it had, before loading a shorter one is cheaper.
EXTRA_ENTRIES = 1024

# Entries of a short session.
SHORT_SESSION = 32

# Bytes that are read at most to show a person the last lines.
MAX_LINES_BYTES = 8 * 1024 * 1024

MAX_NOTICES = 1000

# Errors that say nothing about the file.
_TEMPORARY = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN})

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


class _CachedSession(Struct):
    entries: list[Entry]
    size: int
    messages: int | None
    """How many messages of history the entries suffice for; None: they are the whole session."""
    max_entries: int
    history: HistoryCache = field(default_factory=HistoryCache)


class _Load(Struct):
    """A session that is being read, and the entries that were appended since the read was submitted."""

    messages: int
    reading: asyncio.Future[tuple[TranscriptTail, SessionState | None]]
    done: asyncio.Future[None]
    """Is done when the session is cached, or could not be read: a moment later than `reading`."""
    appended: list[Entry] = field(default_factory=list)
    appended_size: int = 0
    entries: list[Entry] = field(default_factory=list)


class SessionCache:
    """The last entries of recently used sessions. The least recently used go first, by number and by bytes.

    While sessions are short, four times as many are kept, so that many new sessions at once need no reading. Each
    session that is followed makes room for one more: a client is connected to it, and will use it.
    """

    def __init__(
        self,
        index: SessionIndex,
        storage: SessionStorage,
        storage_thread: WorkerThread,
        clock: Callable[[], datetime],
        feed: SessionFeed,
        *,
        max_sessions: int = 256,
        max_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        self._index = index
        self._storage = storage
        self._storage_thread = storage_thread
        self._clock = clock
        self._feed = feed
        self._max_sessions = max_sessions
        self._max_bytes = max_bytes
        self._sessions: OrderedDict[str, _CachedSession] = OrderedDict()
        self._bytes = 0
        self._entry_count = 0
        self._loads: dict[str, _Load] = {}
        self._rebuilding: set[str] = set()
        # Sessions whose transcripts cannot be used, each with a sentence that says why.
        self.damaged: dict[str, str] = {}
        # Sentences that the next reply of a session begins with.
        self.notices = BoundedDict[str, str](MAX_NOTICES)

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, key: str, messages: int = 0) -> list[Entry] | None:
        """Return the cached entries of a session if they suffice for so many messages of history."""
        cached = self._sessions.get(key)
        if cached is None or (cached.messages is not None and cached.messages < messages):
            return None
        self._sessions.move_to_end(key)
        return cached.entries

    def entries_since(self, key: str, seq: int) -> list[Entry] | None:
        """Return the entries after `seq` if they are all cached."""
        cached = self._sessions.get(key)
        if cached is None or not cached.entries:
            return None
        if cached.messages is not None and cached.entries[0].seq > seq + 1:
            return None
        return cached.entries[bisect_right(cached.entries, seq, key=attrgetter("seq")) :]

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

    def refuse_lost(self, key: str, error: BaseException) -> Refused:
        """Return the error to raise for a session whose transcript cannot be read or written.

        Unless the cause is temporary, the session gets the status `error`. It takes no more entries until it can be
        loaded again, for example because the operator has repaired its file.
        """
        _, number = parse_key(key)
        match error:
            case FileNotFoundError():
                problem = f"The transcript of session {number} is missing from the disk."
            case UnreadableTranscript():
                problem = f"The transcript of session {number} is damaged and was set aside."
            case NewerTranscript():
                problem = f"Session {number} can't be used: {error}."
            case OSError() if error.errno in _TEMPORARY:
                return RefusedForNow(f"I can't read session {number} right now ({error.strerror}). Please try again.")
            case OSError():
                problem = f"I can't read session {number} from the disk ({error.strerror})."
            case _:
                problem = f"I can't read session {number} from the disk."
        state = self._index.find(key)
        if state is not None and key not in self.damaged:
            self._index.update(key, msgspec.structs.replace(state, status=SessionStatus.ERROR))
            log.error("session_damaged", session=key, reason=str(error))
        self.drop(key)
        return SessionDamaged(self.damaged.setdefault(key, problem))

    def require_sound(self, key: str) -> None:
        """Raise `SessionDamaged` if the transcript of a session cannot be used."""
        if key in self.damaged:
            raise SessionDamaged(self.damaged[key])

    def rebuild(self, key: str) -> bool:
        """Write the transcript of a session once more from the cached entries. Return False if none are cached.

        Nothing is awaited, so the file gets all entries up to now, and later ones are appended to it.
        """
        state, cached = self._index.find(key), self._sessions.get(key)
        if state is None or cached is None:
            return False
        entries, lost = rebuilt_entries(key, cached.entries, state, self._clock())
        data = b"".join(map(encode, entries))
        self._index.update(key, msgspec.structs.replace(state, size=len(data), messages=state.messages - lost))
        if lost:
            cached.entries[:0] = entries[: len(entries) - len(cached.entries)]
            self.notices[key] = f"Its transcript was removed from the disk. {count(lost, 'older message')} are lost."
        cached.messages = None
        self._rebuilding.add(key)
        self._storage_thread.submit(self._storage.recreate, key, data).add_done_callback(
            partial(self._rebuilt, key, lost)
        )
        return True

    def restore_lost(self, key: str, error: BaseException) -> Refused | None:
        """Write a transcript once more whose use has failed with `error`. Return the refusal if that is impossible."""
        if not isinstance(error, LOST) or self._index.find(key) is None:
            log.error("transcript_not_written", session=key, reason=str(error))
            return None
        # Lines that were handed to the disk before the file is written again fail too, and are in that file.
        if key in self._rebuilding or (not isinstance(error, NewerTranscript) and self.rebuild(key)):
            return None
        return self.refuse_lost(key, error)

    def _rebuilt(self, key: str, lost: int, done: asyncio.Future[None]) -> None:
        self._rebuilding.discard(key)
        if done.cancelled():
            return
        if (error := done.exception()) is not None:
            self.refuse_lost(key, error)
        else:
            log.error("transcript_restored", session=key, lost_messages=lost)

    def _evict(self) -> None:
        max_sessions = self._max_sessions + self._feed.session_count
        while self._sessions and (
            self._bytes > self._max_bytes
            or len(self._sessions) > 4 * max_sessions
            or (len(self._sessions) > max_sessions and self._entry_count > SHORT_SESSION * max_sessions)
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
            await asyncio.shield(load.done)
            await self._wait_for(key, load.reading)
        if load is None:
            state = self._index.require(key)
            reading = self._storage_thread.submit(self._storage.read_tail, key, messages, state)
            load = self._loads[key] = _Load(messages, reading, asyncio.get_running_loop().create_future())
            reading.add_done_callback(partial(self._loaded, key, load))
        # Shielded: other callers may wait for the same read.
        await asyncio.shield(load.done)
        try:
            load.reading.result()
        except (*LOST, OSError) as error:
            self._index.require(key)  # It may have been deleted during the read.
            refusal = self.restore_lost(key, error) if isinstance(error, LOST) else self.refuse_lost(key, error)
            if refusal is not None:
                raise refusal from error
            return self._sessions[key].entries  # A shorter history than requested is cached, and the rest is lost.
        self._index.require(key)
        return load.entries

    def _loaded(
        self, key: str, load: _Load, reading: asyncio.Future[tuple[TranscriptTail, SessionState | None]]
    ) -> None:
        """Cache a session that was read. Runs before any waiter."""
        del self._loads[key]
        load.done.set_result(None)
        state = self._index.find(key)
        if reading.cancelled() or reading.exception() or state is None:
            return
        tail, changed = reading.result()
        # The entries that were appended since the submit are missing in the tail. A database has some of them already:
        # those that were committed before the read, but not yet put into memory.
        last = tail.entries[-1].seq if tail.entries else 0
        load.entries = [*tail.entries, *(entry for entry in load.appended if entry.seq > last)]
        if changed is not None:
            # Another program has changed the file. Its content is right, but a seq must not be used twice.
            for entry in load.appended:
                changed = session.advance(changed, entry)
            size = changed.size + load.appended_size
            state = msgspec.structs.replace(changed, size=size, id=state.id or changed.id)
        self.damaged.pop(key, None)
        highest = max((entry.seq for entry in load.entries), default=0)
        if changed is not None or highest > state.seq:
            self._index.update(key, msgspec.structs.replace(state, seq=max(highest, state.seq)))
        messages = None if tail.is_whole else load.messages
        self.put(key, load.entries, tail.taken + load.appended_size, messages=messages)

    async def _wait_for(self, key: str, reading: asyncio.Future[_T]) -> _T:
        """Wait for a read. Raises `Refused` with a sentence for the user if it fails."""
        try:
            return await reading
        except (*LOST, OSError) as error:
            raise self.refuse_lost(key, error) from error

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
                read = partial(self._storage.read, key, EnoughForLines(limit), max_bytes=MAX_LINES_BYTES)
                entries = (await self._wait_for(key, self._storage_thread.submit(read))).entries
        return visible_lines(entries, limit)
