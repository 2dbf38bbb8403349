"""The directory of sessions in a cluster: each node lists the sessions of all nodes, as the database has them.

A session is listed from the commit on that creates it, at whichever node that was. To find one session, to count those
of this node and to look for idle ones, the index in memory is used, as without a cluster.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

import msgspec

from config.types import PROGRAM_CHANNELS
from gateway.aio import WorkerThread
from gateway.database.views import moment
from gateway.sessions.directory import SessionDirectory, SessionFilter, SessionPage
from gateway.sessions.session import SessionMeta, meta_of
from gateway.sessions.state import SessionState, SessionStatus
from gateway.sessions.storage.database import DatabaseStorage
from gateway.sessions.storage.row_operations import row_id
from gateway.sessions.store import SessionStore
from gateway.shards import Shards
from gateway.spool import SpoolUnavailable

T = TypeVar("T")

ROWS_PER_STEP = 2_000

_UNREADABLE = "The database can't be read at the moment. Try again later."
# The index of this expression gives the newest sessions without a sort of all.
_CREATED = moment("postgresql", "created_us")
_NEWEST_FIRST = f"ORDER BY {_CREATED} DESC, key"

_LATEST = 1 << 52
"""Microseconds since 1970, in the next century: later than any session."""

_decode_state = msgspec.json.Decoder(SessionState).decode


class _Titled(msgspec.Struct):
    """The part of a state that a search for words reads."""

    title: str = ""


_decode_title = msgspec.json.Decoder(_Titled).decode


class SharedDirectory(SessionDirectory):
    """`list` and `total` raise `SpoolUnavailable` if the database cannot be read."""

    def __init__(self, store: SessionStore, reader: WorkerThread, storage: DatabaseStorage, shards: Shards) -> None:
        super().__init__(store, reader)
        self.storage = storage
        self._shards = shards

    async def _require_here(self, session_id: str) -> None:
        query = partial(self.storage.query, "SELECT scope FROM session WHERE id = ?", (row_id(session_id),))
        for (scope,) in await self.submit(query):
            self._shards.require_loaded(scope)

    def _require_scope(self, scope: str) -> None:
        # The index forgets sessions a while after their shards were given back.
        self._shards.require_loaded(scope)

    async def list(self, wanted: SessionFilter, *, limit: int, offset: int = 0) -> SessionPage:
        if wanted.searches:
            return await self.submit(partial(self._search_titles, wanted, limit=limit, offset=offset))
        return await self.submit(partial(self._page, wanted, limit=limit, offset=offset))

    async def total(self, channel: str, status: SessionStatus) -> int:
        wanted = SessionFilter(channels=frozenset({channel}), statuses=frozenset({status}))
        return await self.submit(partial(self._count, wanted))

    async def submit(self, work: Callable[[], T]) -> T:
        try:
            return await self._reader.submit(work)
        except OSError as error:
            raise SpoolUnavailable(_UNREADABLE) from error

    def _count(self, wanted: SessionFilter) -> int:
        condition, values = _condition(wanted)
        ((count,),) = self.storage.query(f"SELECT count(*) FROM session WHERE {condition}", values)  # noqa: S608 - constants only
        return int(count)

    def _page(self, wanted: SessionFilter, *, limit: int, offset: int) -> SessionPage:
        condition, values = _condition(wanted)
        found = self.storage.query(
            f"SELECT key, state FROM session WHERE {condition} {_NEWEST_FIRST} LIMIT ? OFFSET ?",  # noqa: S608 - constants only
            (*values, limit, offset),
        )
        return SessionPage(sessions=_metas(found), total=self._count(wanted))

    def _search_titles(self, wanted: SessionFilter, *, limit: int, offset: int) -> SessionPage:
        """List sessions by words in their titles. They are compared here: no database folds case as Python does."""
        condition, values = _condition(wanted)
        matching: list[SessionMeta] = []
        total, last, key = 0, _LATEST, ""
        while found := self.storage.query(
            f"SELECT key, state, created_us FROM session WHERE {condition} "  # noqa: S608 - constants only
            f"AND {_CREATED} <= to_timestamp(?::float8 / 1000000) AND (created_us < ? OR created_us = ? AND key > ?) "
            f"{_NEWEST_FIRST} LIMIT ?",
            (*values, last, last, last, key, ROWS_PER_STEP),
        ):
            for each, state, _ in found:
                if wanted.has_words(each, _title(state)):
                    if offset <= total < offset + limit:
                        matching += _metas([(each, state)])
                    total += 1
            key, _, last = found[-1]
        return SessionPage(sessions=matching, total=total)


def _title(state: str) -> str:
    try:
        return _decode_title(state).title
    except msgspec.DecodeError:
        return ""


def _metas(rows: Iterable[tuple[str, str]]) -> list[SessionMeta]:
    """Return the sessions whose state can be read. The owners of the others repair them."""
    metas: list[SessionMeta] = []
    for key, state in rows:
        try:
            metas.append(meta_of(key, _decode_state(state)))
        except msgspec.DecodeError:
            continue
    return metas


def _condition(wanted: SessionFilter) -> tuple[str, list[Any]]:  # Any: the types of the columns.
    """Return the SQL for a filter without its words, and its values."""
    conditions, values = ["archived_us IS NULL"], list[Any]()
    for column, names in (("status", wanted.statuses), ("repo", wanted.repos), ("agent", wanted.agents)):
        if names:
            conditions.append(f"{column} = ANY(?)")
            values.append(sorted(names))
    # The others are in the state only.
    fields: list[tuple[str, frozenset[str]]] = []
    if wanted.only_programs:
        fields.append(("channel", PROGRAM_CHANNELS))
    if wanted.channels:
        fields.append(("channel", wanted.channels))
    if wanted.created_by is not None:
        fields.append(("created_by", frozenset({wanted.created_by})))
    for field, names in fields:
        conditions.append(f"({' OR '.join('position(?::text IN state) > 0' for _ in names)})")
        # The JSON has no spaces, and a quote inside of a text has a backslash before it.
        values += [f'"{field}":{msgspec.json.encode(name).decode()}' for name in sorted(names)]
    return " AND ".join(conditions), values
