"""The ends of sessions: those in use are at hand, others are read when they are asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import msgspec
import structlog

from gateway.conversation import Message
from gateway.errors import Refused
from gateway.sessions import fold, recovery
from gateway.sessions.books import Books
from gateway.sessions.disk import Disk
from gateway.sessions.entries import Entry
from gateway.sessions.hot import HotSessions
from gateway.sessions.identity import Newer, Unreadable
from gateway.sessions.names import file_name, parse_key
from gateway.sessions.spoken import Spoken, lines
from gateway.sessions.state import SessionState
from gateway.sessions.tail import ForHistory, ForLines, ForState, Sufficiency
from gateway.sessions.transcript import Reading
from gateway.sessions.worker import Worker

__all__ = ["Ends", "too_new"]

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

    reading: Reading
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

    async def lines(self, key: str, limit: int, messages: int) -> list[Spoken]:
        entries: Sequence[Entry] = await self.load(key, messages)
        if not self._hot.is_whole(key) and not _is_enough(ForLines(limit), entries):
            work = partial(self._disk.read, key, ForLines(limit), max_bytes=_LINES_BYTES)
            entries = (await self._refusing(key, self._thread.submit(work))).entries
        return lines(entries, limit)

    async def _read(self, key: str, messages: int) -> list[Entry]:
        while (loading := self._loading.get(key)) is not None and loading.messages < messages:
            await self._refusing(key, asyncio.shield(loading.reading))
        if loading is None:
            state = self._books.state(key)
            work = partial(_find, self._disk, key, ForHistory(messages, state), state.size)
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
        except Unreadable as trouble:
            raise self.gone(key, "could not be read and was set aside") from trouble
        except Newer as trouble:
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
                found = fold.advance(found, entry)
            state = msgspec.structs.replace(found, size=found.size + loading.since_size)
        highest = max((entry.seq for entry in loading.entries), default=0)
        if found is not None or highest > state.seq:
            self._books.update(key, msgspec.structs.replace(state, seq=max(highest, state.seq)))


def _find(disk: Disk, key: str, enough: Sufficiency, expected: int) -> _Found:
    """Read the end of a session; when the file has not the size that we `expected`, add it up anew."""
    reading = disk.read(key, enough)
    size, waiting = disk.snapshot(key)
    if size + len(waiting) == expected:
        return _Found(reading, None)
    name = file_name(key)
    state = recovery.summed_up(disk.read(key, ForState(lambda other: file_name(other) == name)))
    return _Found(reading, msgspec.structs.replace(state, size=size + len(waiting)))


def _is_enough(enough: Sufficiency, entries: Sequence[Entry]) -> bool:
    for entry in reversed(entries):
        enough.add(entry)
    return enough.is_enough


def too_new(key: str, trouble: Newer) -> Refused:
    _, number = parse_key(key)
    return Refused(f"Session {number} cannot be used: {trouble}. Update Gatehouse, or start another with /new.")
