"""The session directory: finds a session by its id, and lists the sessions of all scopes by filters, newest first.

It is built from the index on first use, and follows the index from then on. A query takes the same time however many
sessions there are, except a search for words in titles.
"""

import asyncio
import builtins
from bisect import bisect_left
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from heapq import merge
from time import monotonic
from typing import NamedTuple

from msgspec import Struct

from config.types import PROGRAM_CHANNELS
from gateway.aio import WorkerThread
from gateway.sessions.index import Scope
from gateway.sessions.keys import packed_id
from gateway.sessions.session import SessionMeta, meta_of, with_identity
from gateway.sessions.state import SessionState, SessionStatus
from gateway.sessions.storage.archive import ArchivedSession, read_with_id
from gateway.sessions.storage.transcript import read_header
from gateway.sessions.store import SessionStore

HEADERS_PER_STEP = 200
CHANGES_PER_FLUSH = 5000
"""Sessions that get their ids before a flush. Until then, their scopes take much more memory."""

MAX_BLOCK = 1024
"""Rows in one block of a bucket."""

_YEAR_ONE = datetime.min.replace(tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LATEST = (1 << 63) - 1
_CREATED = 8
"""Bytes of the time in a row."""


class SessionFilter(Struct, frozen=True, kw_only=True):
    """Which sessions to list. An empty set means all, and all conditions have to hold."""

    statuses: frozenset[SessionStatus] = frozenset()
    repos: frozenset[str] = frozenset()
    channels: frozenset[str] = frozenset()
    agents: frozenset[str] = frozenset()
    created_by: str | None = None
    """The id of the token that started the session."""
    words: tuple[str, ...] = ()
    """The title has all of them, ignoring case."""
    only_programs: bool = False
    """Only sessions of the channels for programs, whatever `channels` says."""

    def accepts(self, session: SessionMeta) -> bool:
        """Return whether a session belongs to the list. For sessions that are not in the directory."""
        facets = _Facets(session.status, session.repo, session.channel, session.agent, session.created_by)
        title = session.title.casefold()
        return _is_wanted(self, facets) and all(word.casefold() in title for word in self.words)


class SessionPage(Struct, frozen=True, kw_only=True):
    """A part of a list. `total` counts the whole list."""

    sessions: list[SessionMeta]
    total: int


class _Facets(NamedTuple):
    """The values that sessions are filtered by. Sessions with the same ones share a bucket."""

    status: SessionStatus
    repo: str
    channel: str
    agent: str
    created_by: str


class SessionDirectory:
    """`reader` is the thread for long reads. A build or a search keeps the event loop for `step` seconds at a time."""

    def __init__(self, store: SessionStore, reader: WorkerThread, *, step: float = 0.002) -> None:
        self._store = store
        self._index = store.index
        self._reader = reader
        self._step = step
        self._buckets: dict[_Facets, _Rows] = {}
        # One row, or several while a session is moved to another scope.
        self._by_id: dict[bytes, bytes | set[bytes]] = {}
        self._building = asyncio.Lock()
        self._reading_archive = asyncio.Lock()
        self._is_archive_read = False
        self._is_built = False
        # Scopes that the build has not read yet, and sessions that have no id in the index.
        self._unread: list[str] = []
        self._without_id: list[str] = []
        self._unflushed = 0

    async def find(self, session_id: str) -> SessionMeta | None:
        """Return the session with this id, unless it is archived."""
        await self._build()
        found = self._by_id.get(packed_id(session_id))
        if found is None:
            return None
        metas = map(self._meta, sorted(found) if isinstance(found, set) else [found])
        return next((meta for meta in metas if meta is not None and meta.id == session_id), None)

    async def find_archived(self, session_id: str) -> ArchivedSession | None:
        """Return the archived session with this id. The first call reads a block of each archived file."""
        await self._build()  # From then on, sessions are archived with their ids.
        archive = self._store.disk.archive
        packed = packed_id(session_id)
        async with self._reading_archive:
            for _ in range(2):
                if not self._is_archive_read:
                    names = await self._reader.submit(lambda: [*archive.names()])
                    for begin in range(0, len(names), HEADERS_PER_STEP):
                        await self._reader.submit(archive.read_ids, names[begin : begin + HEADERS_PER_STEP])
                    self._is_archive_read = True
                key = archive.keys_by_id.get(packed)
                if key is None:
                    return None
                found = await self._reader.submit(read_with_id, archive.path(key))
                if found is not None:
                    # A restored session may have left its copy behind.
                    is_right = found.state.id == session_id and self._index.find(key) is None
                    return found if is_right else None
                # It was restored or deleted. A move may have archived it under another key before.
                archive.keys_by_id.pop(packed, None)
                self._is_archive_read = False
        return None

    async def list(self, wanted: SessionFilter, *, limit: int, offset: int = 0) -> SessionPage:
        """Return the sessions that match, by descending time of creation. Those of the same time are in order of keys.

        Without `words` in the filter this is one moment: nothing changes between its start and its result.
        """
        await self._build()
        buckets = self._matching(wanted)
        if wanted.words:
            return await self._search(wanted, buckets, limit=limit, offset=offset)
        rows = _slice(buckets, offset, offset + limit)
        metas = [meta for row in rows if (meta := self._meta(row)) is not None]
        return SessionPage(sessions=metas, total=sum(map(len, buckets)))

    async def count(self, channel: str, status: SessionStatus) -> int:
        """Return how many sessions of a channel have that status."""
        await self._build()
        wanted = SessionFilter(channels=frozenset({channel}), statuses=frozenset({status}))
        return sum(map(len, self._matching(wanted)))

    async def active(self, channel: str) -> builtins.list[SessionMeta]:
        """Return all sessions of a channel that have the status `active`, the newest first."""
        wanted = SessionFilter(channels=frozenset({channel}), statuses=frozenset({SessionStatus.ACTIVE}))
        return (await self.list(wanted, limit=self._index.session_count)).sessions

    def scope_changed(self, before: Scope, after: Scope) -> None:
        """Follow a change of the index, during the build too."""
        for key in {**before.sessions, **after.sessions}:
            was, now = before.sessions.get(key), after.sessions.get(key)
            if was is now or (was is not None and now is not None and _place(was) == _place(now)):
                continue
            if was is not None:
                self._remove(key, was)
            if now is not None:
                self._add(key, now)

    async def _build(self) -> None:
        """Read the whole index, once. All callers wait for the same build. If one is cancelled, the next goes on."""
        # Sessions that change during the build are neither missed nor listed twice:
        # 1. The directory follows the index from before the first step.
        # 2. A change removes the old row, if it is there, and adds the new one.
        # 3. A step adds the current rows of a scope. A row that a change has added before stays the only one.
        if self._is_built and self._index.follower is self:
            return
        async with self._building:
            while not self._is_built or self._index.follower is not self:
                if self._index.follower is not self:
                    self._buckets, self._by_id = {}, {}
                    self._unread, self._without_id = self._index.names(), []
                    self._index.follower = self
                    self._is_built = False
                self._read_scopes()
                if self._without_id:
                    await self._read_ids(self._without_id[:HEADERS_PER_STEP])
                    del self._without_id[:HEADERS_PER_STEP]
                await asyncio.sleep(0)
                self._is_built = not self._unread and not self._without_id

    def _read_scopes(self) -> None:
        deadline = monotonic() + self._step
        while self._unread and len(self._without_id) < HEADERS_PER_STEP:
            for key, state in self._index.peek(self._unread.pop()).sessions.items():
                self._add(key, state)
                if not state.id:
                    self._without_id.append(key)
            if monotonic() > deadline:
                break

    async def _read_ids(self, keys: Sequence[str]) -> None:
        """Store the ids of sessions that an older version has stored without them. They are in the headers."""
        disk = self._store.disk
        # An index that has changed is not the one that was marked clean.
        await self._store.disk_thread.submit(disk.remove_clean_mark)
        headers = await self._reader.submit(lambda: [read_header(disk.path(key)) for key in keys])
        for key, header in zip(keys, headers, strict=True):
            state = self._index.find(key)
            if state is not None and not state.id:
                self._index.update(key, with_identity(key, state, header))
        self._unflushed += len(keys)
        if self._unflushed >= CHANGES_PER_FLUSH:
            self._unflushed = 0
            await self._store.flusher.flush()

    def _matching(self, wanted: SessionFilter) -> builtins.list["_Rows"]:
        return [rows for facets, rows in self._buckets.items() if _is_wanted(wanted, facets)]

    async def _search(
        self, wanted: SessionFilter, buckets: Sequence["_Rows"], *, limit: int, offset: int
    ) -> SessionPage:
        """List sessions by words in their titles, in steps. Looks at those that there are at its start."""
        words = [word.casefold() for word in wanted.words]
        sessions: list[SessionMeta] = []
        total = 0
        deadline = monotonic() + self._step
        for row in merge(*[rows.between(0, len(rows)) for rows in buckets]):
            if monotonic() > deadline:
                await asyncio.sleep(0)
                deadline = monotonic() + self._step
            key = _key_of(row)
            state = self._index.find(key)
            # It may have changed since the search has started.
            if state is None or not _is_wanted(wanted, _facets(state)):
                continue
            title = state.title.casefold()
            if all(word in title for word in words):
                if offset <= total < offset + limit:
                    sessions.append(meta_of(key, state))
                total += 1
        return SessionPage(sessions=sessions, total=total)

    def _meta(self, row: bytes) -> SessionMeta | None:
        key = _key_of(row)
        state = self._index.find(key)
        return None if state is None else meta_of(key, state)

    def _add(self, key: str, state: SessionState) -> None:
        row = _row(key, state)
        self._buckets.setdefault(_facets(state), _Rows()).add(row)
        if not state.id:
            return
        packed = packed_id(state.id)
        known = self._by_id.setdefault(packed, row)
        if isinstance(known, set):
            known.add(row)
        elif known != row:
            self._by_id[packed] = {known, row}

    def _remove(self, key: str, state: SessionState) -> None:
        row, facets, packed = _row(key, state), _facets(state), packed_id(state.id)
        rows = self._buckets.get(facets)
        if rows is not None:
            rows.discard(row)
            if not rows:
                del self._buckets[facets]
        known = self._by_id.get(packed)
        if isinstance(known, set):
            known.discard(row)
        if not known or known == row:
            self._by_id.pop(packed, None)


class _Rows:
    """Rows in order, in blocks, so that a change moves the rows of one block only."""

    def __init__(self) -> None:
        self._blocks: list[list[bytes]] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, at: int) -> bytes:
        return self.between(at, at + 1)[0]

    def between(self, begin: int, end: int) -> list[bytes]:
        """Return the rows from `begin` up to `end`, which is not included."""
        found: list[bytes] = []
        for block in self._blocks:
            if end <= 0:
                break
            found += block[max(begin, 0) : end]
            begin, end = begin - len(block), end - len(block)
        return found

    def rank(self, row: bytes) -> int:
        """Return how many rows come before `row`."""
        at = self._block_of(row)
        before = sum(map(len, self._blocks[:at]))
        return before + bisect_left(self._blocks[at], row) if at < len(self._blocks) else before

    def add(self, row: bytes) -> None:
        """Add a row, unless it is there already."""
        if not self._blocks:
            self._blocks.append([])
        # A row after all others belongs to the last block.
        number = min(self._block_of(row), len(self._blocks) - 1)
        block = self._blocks[number]
        at = bisect_left(block, row)
        if block[at : at + 1] == [row]:
            return
        block.insert(at, row)
        self._count += 1
        if len(block) > MAX_BLOCK:
            half = len(block) // 2
            self._blocks[number : number + 1] = [block[:half], block[half:]]

    def discard(self, row: bytes) -> None:
        """Remove a row, if it is there."""
        number = self._block_of(row)
        if number == len(self._blocks):
            return
        block = self._blocks[number]
        at = bisect_left(block, row)
        if block[at] != row:
            return
        del block[at]
        self._count -= 1
        if not block:
            del self._blocks[number]

    def _block_of(self, row: bytes) -> int:
        """Return the number of the first block that ends at or after `row`."""
        return bisect_left(self._blocks, row, key=_last)


def _last(block: list[bytes]) -> bytes:
    return block[-1] if block else b""


def _slice(buckets: Sequence[_Rows], begin: int, end: int) -> list[bytes]:
    """Return the rows from `begin` up to `end` of all buckets together, in order."""
    begins, ends = _shares(buckets, begin), _shares(buckets, end)
    return sorted(row for rows, *limits in zip(buckets, begins, ends, strict=True) for row in rows.between(*limits))


def _shares(buckets: Sequence[_Rows], count: int) -> list[int]:
    """Return how many rows of each bucket are among the first `count` of all buckets together."""
    low, high = [0] * len(buckets), [min(len(rows), count) for rows in buckets]
    count = min(count, sum(map(len, buckets)))
    # A binary search in all buckets at once. Each step halves the widest range, and often most others.
    while sum(high) > count:
        widest = max(range(len(buckets)), key=lambda at: high[at] - low[at])
        middle = (low[widest] + high[widest]) // 2
        pivot = buckets[widest][middle]
        ranks = [rows.rank(pivot) for rows in buckets]
        if sum(ranks) < count:  # The pivot and all rows before it are among the first.
            low = list(map(max, low, ranks))
            low[widest] = middle + 1
        else:
            high = list(map(min, high, ranks))
    return high


def _row(key: str, state: SessionState) -> bytes:
    """Return bytes that sort by the time of creation, the newest first, and then by key."""
    created = (state.created_at - _YEAR_ONE) // _MICROSECOND
    return (_LATEST - created).to_bytes(_CREATED, "big") + key.encode("utf-8", "surrogatepass")


def _key_of(row: bytes) -> str:
    return row[_CREATED:].decode("utf-8", "surrogatepass")


def _facets(state: SessionState) -> _Facets:
    return _Facets(state.status, state.repo, state.channel, state.agent, state.created_by)


def _place(state: SessionState) -> tuple[_Facets, datetime, str]:
    return _facets(state), state.created_at, state.id


def _is_wanted(wanted: SessionFilter, facets: _Facets) -> bool:
    return (
        (not wanted.statuses or facets.status in wanted.statuses)
        and (not wanted.repos or facets.repo in wanted.repos)
        and (not wanted.channels or facets.channel in wanted.channels)
        and (not wanted.agents or facets.agent in wanted.agents)
        and (wanted.created_by is None or facets.created_by == wanted.created_by)
        and (not wanted.only_programs or facets.channel in PROGRAM_CHANNELS)
    )
