"""The queue of what is to be done with the memory: sessions to archive, and changes of the memory files.

All of it are facts of the spool, committed together with what has caused them. So no crash comes between, and in a
cluster the next owner of a shard finds them.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import groupby
from pathlib import Path
from time import time_ns
from typing import Annotated, Protocol
from uuid import uuid4

import msgspec
import structlog
from msgspec import Meta, Struct

from config import SessionSettings
from config.types import PROGRAM_CHANNELS
from gateway.errors import HeldElsewhere, Refused
from gateway.memory.store import MemoryStore
from gateway.routing import channel_of
from gateway.sessions import Leaving, SessionMeta
from gateway.sessions.keys import parse_key
from gateway.spool import Operation, ReplaceFact, SetFact, Spool
from gateway.spool.spool import retry_while_unavailable

log: structlog.stdlib.BoundLogger = structlog.get_logger()

WAITING_FACTS = "archiving/"
"""The prefix of the facts about sessions that wait to be archived, by their keys."""
OUTLINED_FACTS = "outlined/"
"""The prefix of the facts about sessions of which the memory has an outline only, because there was no model."""
CHANGE_FACTS = "memory-changes/"
"""The prefix of the facts with changes that are committed, and not made in the memory files yet."""
_PAGE = 200
"""Facts that are read at a time."""


class Waiting(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A session that waits to be archived into memory."""

    queued: int
    """When it was queued, in nanoseconds. A session that is queued once more has another value."""
    failures: int = 0
    retry_at: Annotated[datetime, Meta(tz=True)] | None = None


class ForgetSession(Struct, frozen=True, kw_only=True, tag="forget_session"):
    """Remove what only this session has said. Files before the day `since` are about others of its number."""

    scope: str
    session: int
    id: str = ""
    since: str = ""


class ForgetStatement(Struct, frozen=True, kw_only=True, tag="forget"):
    scope: str
    number: int


class EditStatement(Struct, frozen=True, kw_only=True, tag="edit"):
    scope: str
    number: int
    text: str


MemoryChange = ForgetSession | ForgetStatement | EditStatement
_CHANGE = msgspec.json.Decoder(MemoryChange)


def change_operation(change: MemoryChange) -> SetFact:
    """Return the operation that commits a change. Changes of a scope are made in the order of their operations."""
    name = f"{CHANGE_FACTS}{change.scope}\t{time_ns():020}-{uuid4().hex}"  # No scope contains a tab.
    return SetFact(name=name, value=msgspec.json.encode(change).decode())


def waiting_operation(key: str) -> SetFact:
    """Return the operation that queues a session."""
    value = msgspec.json.encode(Waiting(queued=time_ns())).decode()
    return SetFact(name=f"{WAITING_FACTS}{key}", value=value)


def leaving_operations(
    settings: Callable[[], SessionSettings], key: str, meta: SessionMeta | None, why: str
) -> Sequence[Operation]:
    """Return what to commit when a session leaves: it is queued, or after its deletion forgotten.

    Sessions of programs have a scope of their own, so nothing would ever read their memory.
    """
    scope, number = parse_key(key)
    if why == Leaving.MOVED or channel_of(scope) in PROGRAM_CHANNELS:
        return ()
    if why == Leaving.DELETED:
        # Its first statements may be in the file of the day before: that day ends by the time zone of the settings.
        since = f"{meta.created_at.astimezone(UTC) - timedelta(days=1):%Y-%m-%d}" if meta is not None else ""
        change = ForgetSession(scope=scope, session=number, id=meta.id if meta is not None else "", since=since)
        forgotten = (SetFact(name=f"{prefix}{key}", value=None) for prefix in (WAITING_FACTS, OUTLINED_FACTS))
        return (*forgotten, change_operation(change))
    if not settings().archive_to_memory or meta is None or not meta.messages:
        return ()
    return (waiting_operation(key),)


async def moving_operations(spool: Spool, key: str, to: str) -> list[Operation]:
    """Return what to commit when a session gets the key `to`: if it waits, it goes on waiting."""
    names = [f"{prefix}{key}" for prefix in (WAITING_FACTS, OUTLINED_FACTS)]
    found = [name for name in names if name in await spool.facts(name)]
    operations: list[Operation] = [SetFact(name=name, value=None) for name in found]
    return [*operations, waiting_operation(to)] if found else []


class MemoryQueue:
    """Reads the queue. `changed` is set when it may have grown."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self.changed = asyncio.Event()

    async def note_leaving(self, _meta: SessionMeta, _why: Leaving) -> None:
        """Take note that a session leaves. The fact about it may be committed after this."""
        self.changed.set()

    async def read(self, prefix: str) -> AsyncGenerator[tuple[str, str], None]:
        """Yield the names without `prefix`, and the values, of the facts whose scope this node owns, in order."""
        after = prefix
        while page := await self._spool.facts_after(prefix, after, limit=_PAGE):
            for name, value in page.items():
                rest = name.removeprefix(prefix)
                scope = rest.partition("\t")[0].partition("#")[0]
                if self._spool.shards is None or self._spool.shards.serves(scope):
                    yield rest, value
            after = next(reversed(page))
            if len(page) < _PAGE:
                return

    async def length(self, prefix: str) -> int:
        """Return how many facts with a prefix there are, in a cluster those of all nodes."""
        return await self._spool.count_facts(prefix)

    async def replace(self, key: str, old: str, new: Waiting | None, *also: Operation, prefix: str) -> None:
        """Change a waiting session, or remove it, unless it was queued once more since. `also` is committed with it."""
        value = None if new is None else msgspec.json.encode(new).decode()
        change = ReplaceFact(name=f"{prefix}{key}", old=old, value=value)
        commit = partial(self._spool.commit, change, *also, scope=parse_key(key)[0])
        await retry_while_unavailable(commit)


class ScopeMemory(Protocol):
    """The memory files of a scope, as turns use them. In a cluster, they follow the scope."""

    async def fetch_memory(self, scope: str) -> Path:
        """Return the folder with the memory of a scope, as it is now."""

    async def memory_may_have_changed(self, scope: str) -> None:
        """Let turns read the memory of a scope again."""


class MemoryChanges:
    """Makes the changes that are committed. A crash before that leaves them for the next start."""

    def __init__(self, spool: Spool, queue: MemoryQueue, memory: ScopeMemory) -> None:
        self._spool = spool
        self._queue = queue
        self._memory = memory
        self.lock = asyncio.Lock()
        """Held while memory files are changed, so that nothing is added about a session after it was forgotten."""

    async def commit(self, scope: str, operations: Sequence[Operation]) -> None:
        """Commit operations with changes of a scope, and make these changes."""
        await self._spool.commit(*operations, scope=scope)
        await self.apply(scope)

    async def apply(self, scope: str) -> bool:
        """Make the changes of a scope. Returns False if the disk refuses: then they are made later."""
        prefix = f"{CHANGE_FACTS}{scope}\t"
        async with self.lock:
            facts = await retry_while_unavailable(partial(self._spool.facts, prefix))
            if not facts:
                return True
            try:
                folder = await self._memory.fetch_memory(scope)
                await asyncio.to_thread(_apply, MemoryStore(folder), facts)
                await self._memory.memory_may_have_changed(scope)
                done = (SetFact(name=name, value=None) for name in facts)
                await retry_while_unavailable(partial(self._spool.commit, *done, scope=scope))
            except HeldElsewhere:  # The next owner makes them.
                return True
            except (OSError, Refused) as error:
                log.warning("memory_change_failed", scope=scope, reason=str(error))
                return False
            return True

    async def apply_all(self) -> bool:
        """Make all changes of the scopes that this node owns. Returns False if some of them failed."""
        names = [name async for name, _ in self._queue.read(CHANGE_FACTS)]
        scopes = [scope for scope, _ in groupby(name.partition("\t")[0] for name in names)]
        results = [await self.apply(scope) for scope in scopes]
        return all(results)


def _apply(store: MemoryStore, facts: Mapping[str, str]) -> None:
    """Make changes in their order. One that was made before a crash changes nothing."""
    for name in sorted(facts):
        try:
            change = _CHANGE.decode(facts[name])
        except msgspec.MsgspecError:  # A newer version has written it.
            log.warning("memory_change_unreadable", fact=name)
            continue
        match change:
            case ForgetSession():
                store.forget_session(change.session, change.id, since=change.since)
            case ForgetStatement() if _has(store, change.number):
                store.forget(change.number)
            case ForgetStatement():
                store.forget_copies(change.number)
            case EditStatement() if _has(store, change.number):
                store.edit(change.number, change.text)


def _has(store: MemoryStore, number: int) -> bool:
    return any(statement.number == number for statement in store.read().statements)
