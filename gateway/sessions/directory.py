"""The session directory: finds a session by its id, and lists the sessions of all scopes by filters, newest first.

It is built from the index on first use, and follows the index from then on. A query takes the same time however many
sessions there are. Two take longer: the first one that combines these filters, and a search for words in titles.
"""

import asyncio
import builtins
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from heapq import merge
from itertools import product
from math import prod
from operator import contains
from time import monotonic

from msgspec import Struct

from config.types import PROGRAM_CHANNELS
from gateway.aio import WorkerThread
from gateway.sessions.index import Scope
from gateway.sessions.keys import packed_id
from gateway.sessions.session import SessionMeta, meta_of, with_identity
from gateway.sessions.sorted_rows import SortedRows, combined
from gateway.sessions.state import SessionState, SessionStatus
from gateway.sessions.storage.archive import ArchivedSession
from gateway.sessions.store import SessionStore

HEADERS_PER_STEP = 200
CHANGES_PER_FLUSH = 5000
"""Sessions that get their ids before a flush. Until then, their scopes take much more memory."""

_YEAR_ONE = datetime.min.replace(tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LATEST = (1 << 63) - 1
_CREATED = 8
"""Bytes of the time in a row."""

# The kinds of facets: what sessions can be filtered by. The facets of a session are its values, in this order.
_ALL = _STATUS, _REPO, _CHANNEL, _AGENT, _CREATED_BY = tuple(range(5))
_Kinds = tuple[int, ...]
_Facets = tuple[str, ...]

# Sessions that have some facets in common, by those facets.
_Groups = dict[_Facets, SortedRows]


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
    chat: str = ""
    """A part of the key, which names the person or the group, ignoring case."""
    only_programs: bool = False
    """Only sessions of the channels for programs, whatever `channels` says."""

    def accepts(self, session: SessionMeta) -> bool:
        """Return whether a session belongs to the list. For sessions that are not in the directory."""
        wanted = self.facets
        has_facets = _is_wanted(_pick(_facets(session), wanted), wanted.values())
        return has_facets and self.has_words(session.key, session.title)

    @property
    def searches(self) -> bool:
        """Whether every session has to be looked at, because words are searched."""
        return bool(self.words or self.chat)

    def has_words(self, key: str, title: str) -> bool:
        """Return whether a session has the words that are searched."""
        folded = title.casefold()
        return all(word.casefold() in folded for word in self.words) and self.chat.casefold() in key.casefold()

    @property
    def facets(self) -> dict[int, frozenset[str]]:
        """The values that are wanted, by kind. Kinds that may have any value are left out."""
        channels = self.channels
        if self.only_programs:
            channels = channels & PROGRAM_CHANNELS if channels else PROGRAM_CHANNELS
        wanted = {
            _STATUS: frozenset(status.value for status in self.statuses),
            _REPO: self.repos,
            _CHANNEL: channels,
            _AGENT: self.agents,
            _CREATED_BY: frozenset() if self.created_by is None else frozenset({self.created_by}),
        }
        return {kind: values for kind, values in wanted.items() if values or (kind == _CHANNEL and self.only_programs)}


class SessionPage(Struct, frozen=True, kw_only=True):
    """A part of a list. `total` counts the whole list."""

    sessions: list[SessionMeta]
    total: int


class SessionDirectory:
    """`reader` is the thread for long reads. A build or a search keeps the event loop for `step` seconds at a time."""

    def __init__(self, store: SessionStore, reader: WorkerThread, *, step: float = 0.002) -> None:
        self._store = store
        self._index = store.index
        self._reader = reader
        self._step = step
        # One row, or several while a session is moved to another scope.
        self._by_id: dict[bytes, bytes | set[bytes]] = {}
        # All sessions, by the kinds of facets that they are grouped by. The groups by all facets come first, and others
        # are made from them for the first filter that needs them: there are 32 at most.
        self._groups: dict[_Kinds, _Groups] = {}
        self._complete: set[_Kinds] = set()
        self._building = asyncio.Lock()
        # Scopes that the build has not read yet, and sessions that have no id in the index.
        self._unread: list[str] = []
        self._without_id: list[str] = []
        self._unflushed = 0

    @property
    def is_built(self) -> bool:
        return _ALL in self._complete and self._index.follower is self

    async def find(self, session_id: str) -> SessionMeta | None:
        """Return the session with this id, unless it is archived. Raises `HeldElsewhere` if another node owns it."""
        while True:
            await self._build()
            found = self._by_id.get(packed_id(session_id), set())
            metas = map(self._meta, sorted(found) if isinstance(found, set) else [found])
            meta = next((meta for meta in metas if meta is not None and meta.id == session_id), None)
            if meta is not None:
                self._require_scope(meta.scope)
                return meta
            additions = self._index.additions
            await self._require_here(session_id)
            if additions == self._index.additions:  # Otherwise this node has taken shards in the meantime.
                return None

    async def find_archived(self, session_id: str) -> ArchivedSession | None:
        """Return the archived session with this id. The first call reads a block of each archived file.

        Raises `HeldElsewhere` if another node owns it.
        """
        await self._require_here(session_id)
        await self._build()  # From then on, sessions are archived with their ids.
        found = await self._reader.submit(self._store.storage.archive.find_by_id, session_id)
        # A restored session may have left its copy behind.
        return found if found is not None and self._index.find(found.key) is None else None

    async def _require_here(self, session_id: str) -> None:
        """Raise `HeldElsewhere` if another node of a cluster owns the session with this id."""

    def _require_scope(self, scope: str) -> None:
        """Raise `HeldElsewhere` if another node of a cluster owns the scope of a session in the index."""

    async def list(self, wanted: SessionFilter, *, limit: int, offset: int = 0) -> SessionPage:
        """Return the sessions that match, by descending time of creation. Those of the same time are in order of keys.

        Without words in the filter, nothing changes while the list is made.
        """
        groups = await self._matching(wanted.facets)
        if wanted.searches:
            return await self._search(wanted, groups, limit=limit, offset=offset)
        rows = combined(groups, offset, offset + limit)
        metas = [meta for row in rows if (meta := self._meta(row)) is not None]
        return SessionPage(sessions=metas, total=sum(map(len, groups)))

    async def count(self, channel: str, status: SessionStatus) -> int:
        """Return how many sessions of a channel have that status."""
        wanted = SessionFilter(channels=frozenset({channel}), statuses=frozenset({status}))
        return sum(map(len, await self._matching(wanted.facets)))

    async def total(self, channel: str, status: SessionStatus) -> int:
        """Return the same as `count`, in a cluster for all nodes."""
        return await self.count(channel, status)

    async def active(self, channel: str) -> builtins.list[SessionMeta]:
        """Return all sessions of a channel that have the status `active`, the newest first."""
        wanted = SessionFilter(channels=frozenset({channel}), statuses=frozenset({SessionStatus.ACTIVE}))
        # In a cluster, those of this node.
        return (await SessionDirectory.list(self, wanted, limit=self._index.session_count)).sessions

    async def _matching(self, wanted: dict[int, frozenset[str]]) -> builtins.list[SortedRows]:
        """Return the groups of sessions with the wanted facets. A session is in one of them at most."""
        kinds = tuple(wanted)
        await self._build(kinds)
        groups = self._groups[kinds]
        if prod(map(len, wanted.values())) <= len(groups):
            return [rows for facets in product(*wanted.values()) if (rows := groups.get(facets)) is not None]
        return [rows for facets, rows in groups.items() if _is_wanted(facets, wanted.values())]

    async def _search(
        self, wanted: SessionFilter, groups: Sequence[SortedRows], *, limit: int, offset: int
    ) -> SessionPage:
        """List sessions by words in their titles, in steps. Looks at those that there are at its start."""
        facets = wanted.facets
        sessions: list[SessionMeta] = []
        total = 0
        deadline = monotonic() + self._step
        for row in merge(*[rows.between(0, len(rows)) for rows in groups]):
            if monotonic() > deadline:
                await asyncio.sleep(0)
                deadline = monotonic() + self._step
            key = _key_of(row)
            state = self._index.find(key)
            # It may have changed since the search has started.
            if state is None or not _is_wanted(_pick(_facets(state), facets), facets.values()):
                continue
            if wanted.has_words(key, state.title):
                if offset <= total < offset + limit:
                    sessions.append(meta_of(key, state))
                total += 1
        return SessionPage(sessions=sessions, total=total)

    def _meta(self, row: bytes) -> SessionMeta | None:
        key = _key_of(row)
        state = self._index.find(key)
        return None if state is None else meta_of(key, state)

    async def _build(self, kinds: _Kinds = _ALL) -> None:
        """Read the whole index, once, and group the sessions by facets of these kinds.

        All callers wait for the same build. If one is cancelled, the next one goes on.
        """
        # Sessions that change during the build are neither missed nor listed twice:
        # 1. The directory follows the index from before the first step.
        # 2. A change removes the old row, if it is there, and adds the new one.
        # 3. A step adds rows as they are then. A row that a change has added before stays the only one.
        if kinds in self._complete and self._index.follower is self:
            return
        async with self._building:
            while kinds not in self._complete or self._index.follower is not self:
                if self._index.follower is not self:
                    self._by_id, self._groups, self._complete = {}, {_ALL: {}}, set()
                    self._unread, self._without_id = self._index.names(), []
                    self._index.follower = self
                if _ALL in self._complete:
                    await self._group_by(kinds)
                elif self._without_id:
                    await self._read_ids(self._without_id[:HEADERS_PER_STEP])
                    del self._without_id[:HEADERS_PER_STEP]
                elif self._unread:
                    self._read_scopes()
                    await asyncio.sleep(0)
                else:
                    self._complete.add(_ALL)

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
        storage = self._store.storage
        # An index that has changed is not the one that was marked clean.
        await self._store.storage_thread.submit(storage.before_change)
        headers = await self._reader.submit(lambda: [storage.read_header(key) for key in keys])
        for key, header in zip(keys, headers, strict=True):
            state = self._index.find(key)
            if state is not None and not state.id:
                self._index.update(key, with_identity(key, state, header))
        self._unflushed += len(keys)
        if self._unflushed >= CHANGES_PER_FLUSH:
            self._unflushed = 0
            await self._store.flusher.flush()

    async def _group_by(self, kinds: _Kinds) -> None:
        every, groups = self._groups[_ALL], self._groups.setdefault(kinds, {})
        deadline = monotonic() + self._step
        for facets in [*every]:
            last = b""
            while facets in every and (found := every[facets].after(last)):
                rows = groups.setdefault(_pick(facets, kinds), SortedRows())
                for row in found:
                    rows.add(row)
                last = found[-1]
                if monotonic() > deadline:
                    await asyncio.sleep(0)
                    deadline = monotonic() + self._step
        self._complete.add(kinds)

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

    def _add(self, key: str, state: SessionState) -> None:
        row, facets = _row(key, state), _facets(state)
        for kinds, groups in self._groups.items():
            picked = _pick(facets, kinds)
            rows = groups.get(picked)
            if rows is None:
                rows = groups[picked] = SortedRows()
            rows.add(row)
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
        for kinds, groups in self._groups.items():
            picked = _pick(facets, kinds)
            if picked in groups:
                groups[picked].discard(row)
                if not groups[picked]:
                    del groups[picked]
        known = self._by_id.get(packed)
        if isinstance(known, set):
            known.discard(row)
        if not known or known == row:
            self._by_id.pop(packed, None)


def _row(key: str, state: SessionState) -> bytes:
    """Return bytes that sort by the time of creation, the newest first, and then by key."""
    created = (state.created_at - _YEAR_ONE) // _MICROSECOND
    return (_LATEST - created).to_bytes(_CREATED, "big") + key.encode("utf-8", "surrogatepass")


def _key_of(row: bytes) -> str:
    return row[_CREATED:].decode("utf-8", "surrogatepass")


def _facets(session: SessionState | SessionMeta) -> _Facets:
    return session.status.value, session.repo, session.channel, session.agent, session.created_by


def _place(state: SessionState) -> tuple[_Facets, datetime, str]:
    """Return all that the directory knows about a session besides its key."""
    return _facets(state), state.created_at, state.id


def _pick(facets: _Facets, kinds: Iterable[int]) -> _Facets:
    return facets if kinds is _ALL else tuple([facets[kind] for kind in kinds])


def _is_wanted(facets: _Facets, wanted: Iterable[frozenset[str]]) -> bool:
    return all(map(contains, wanted, facets))
