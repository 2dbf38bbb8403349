"""What an import will do: which conversations become which sessions, where the memory goes, and what is left out."""

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice

from config import Settings
from gateway.admin.archive import Archive
from gateway.contract import PeerKind
from gateway.errors import Refused
from gateway.importing.destination import Destination, find_destinations
from gateway.importing.transcript import session_id
from gateway.importing.values import (
    TERMINAL,
    Conversation,
    ForeignGateway,
    ImportedToolUse,
    LeftOut,
    MemoryFile,
    unreadable,
)
from gateway.memory.statement import Statement
from gateway.memory.store import MAX_STATEMENTS, MAX_TEXT, ImportedMemory
from gateway.routing import DEFAULT_AGENT, is_reachable
from gateway.sessions import entries
from gateway.sessions.keys import session_key
from gateway.sessions.storage.codec import DamagedEntry, decode

AT_ONCE = 100
"""Conversations that are parsed in a thread before the progress is shown."""
_STATEMENTS_AT_ONCE = 200

_UNKNOWN_TIME = datetime.fromtimestamp(0, UTC)

Progress = Callable[[str, int], None]
"""Called with what is done now, and how many of it are done."""


@dataclass(slots=True, kw_only=True)
class PlannedSession:
    """A conversation, and the session that it becomes. `is_known`: it was imported before."""

    id: str
    source: str
    key: str = ""
    destination: Destination
    created: datetime
    updated: datetime
    messages: int
    tool_calls: int
    title: str
    name: str
    left_out: dict[str, int]
    is_known: bool = False
    is_reachable: bool = True
    """Whether a message can get to its scope, by our settings."""
    number: int = 0
    epoch: int = 0
    activates: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMemory:
    scope: str
    file: str
    memory: ImportedMemory


@dataclass(slots=True, kw_only=True)
class Plan:
    sessions: list[PlannedSession] = field(default_factory=list)
    memory: list[PlannedMemory] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)

    @property
    def new(self) -> list[PlannedSession]:
        return [each for each in self.sessions if not each.is_known]

    @property
    def is_damaged(self) -> bool:
        return any(each.is_damaged for each in self.left_out)


@dataclass(slots=True, kw_only=True)
class _Scope:
    """What a scope has already."""

    ids: set[str] = field(default_factory=set)
    highest_number: int = 0
    epoch: int = 0
    active_since: datetime | None = None
    """The time of the last message in its active session."""


async def make_plan(
    gateway: ForeignGateway,
    archive: Archive,
    settings: Settings,
    *,
    user: str,
    scope: str = "",
    memory_scope: str = "",
    progress: Progress,
) -> Plan:
    """Read everything once, and say what to do with it. Nothing is written.

    All conversations go to `scope`, and the memory to `memory_scope`, if they are given. `user` is the user of this
    machine.
    """
    here = await _sessions_here(archive)
    plan = Plan(left_out=[*gateway.left_out])
    seen: dict[str, str] = {}
    async for found in read(gateway, progress):
        if isinstance(found, LeftOut):
            plan.left_out.append(found)
            continue
        what = found.source or found.key
        try:
            destination = _destination(settings, found, scope, user, here)
        except Refused as error:
            plan.left_out.append(LeftOut(what=what, why=str(error)))
            continue
        if not found.messages:
            plan.left_out.append(LeftOut(what=what, why="it contains no messages"))
            continue
        id_ = session_id(found)
        if id_ in seen:
            plan.left_out.append(LeftOut(what=what, why=f"it is the same conversation as {seen[id_]}"))
            continue
        seen[id_] = what
        plan.sessions.append(
            PlannedSession(
                id=id_,
                source=what,
                destination=destination,
                created=found.created,
                updated=found.updated,
                messages=found.messages,
                tool_calls=sum(isinstance(step, ImportedToolUse) for step in found.steps),
                title=found.title,
                name=found.name,
                left_out=dict(found.left_out),
                is_reachable=is_reachable(settings, destination.scope),
                is_known=any(id_ in each.ids for each in here.values()) if scope else _is_known(here, id_),
            )
        )
    _number(plan, here)
    _place_memory(plan, gateway, settings, user, memory_scope)
    return plan


async def read(gateway: ForeignGateway, progress: Progress) -> AsyncIterator[Conversation | LeftOut]:
    """Yield all conversations. They are parsed in a thread. Raises `UnknownFormat`."""
    iterator: Iterator[Conversation | LeftOut] = await asyncio.to_thread(lambda: iter(gateway.conversations()))

    def parse() -> list[Conversation | LeftOut]:
        try:
            return list(islice(iterator, AT_ONCE))
        except OSError as error:  # A folder may not be searched, for example.
            raise unreadable(error, gateway.folder) from error

    done = 0
    while found := await asyncio.to_thread(parse):
        for each in found:
            yield each
        done += len(found)
        progress("read", done)


async def _sessions_here(archive: Archive) -> dict[str, _Scope]:
    """Return the scopes with sessions, also with archived ones."""
    scopes: dict[str, _Scope] = {}
    for are_archived in (False, True):
        async with aclosing(archive.sessions(are_archived=are_archived)) as sessions:
            async for listed in sessions:
                meta = listed.meta
                scope = scopes.setdefault(meta.scope, _Scope())
                scope.ids.add(meta.id or await _stored_id(archive, meta.key))
                scope.highest_number = max(scope.highest_number, listed.highest_number, meta.number)
                scope.epoch = max(scope.epoch, listed.epoch)
                if listed.is_active:
                    scope.active_since = meta.updated_at
    return scopes


async def _stored_id(archive: Archive, key: str) -> str:
    """Return the id in the header of a session that an older version has stored."""
    async with aclosing(archive.export(key)) as blocks:
        first_line = (await anext(blocks, b"")).split(b"\n")[0]
    with suppress(DamagedEntry):
        header = decode(first_line)
        if isinstance(header, entries.Header):
            return header.id
    return ""


def _is_known(here: dict[str, _Scope], id_: str) -> bool:
    """Return whether a session is here. A person may have moved it to another scope since its import."""
    return any(id_ in scope.ids for scope in here.values())


def _destination(
    settings: Settings, conversation: Conversation, scope: str, user: str, here: dict[str, _Scope]
) -> Destination:
    if scope:
        named = scope.split(":")[1]
        return Destination(scope=scope, agent=named if named in settings.agents else DEFAULT_AGENT, address=None)
    choices = find_destinations(settings, conversation, user)
    # Nothing may say whether its chat is a group. Sessions of the same chat that are here decide that.
    used = [each for each in choices if each.scope in here]
    return (used or choices)[0]


def _number(plan: Plan, here: dict[str, _Scope]) -> None:
    """Give the new sessions of each scope numbers by age. The newest becomes active if no active one is newer."""
    scopes: dict[str, list[PlannedSession]] = {}
    for session in sorted(plan.new, key=lambda each: (each.created, each.updated)):
        scopes.setdefault(session.destination.scope, []).append(session)
    for name, sessions in scopes.items():
        scope = here.get(name, _Scope())
        newest = max(sessions, key=lambda each: each.updated)
        newest.activates = scope.active_since is None or scope.active_since < newest.updated
        for step, session in enumerate(sessions, start=1):
            session.number = scope.highest_number + step
            session.key = session_key(name, session.number)
            # By their epochs, the gateway knows which sessions were used last.
            session.epoch = scope.epoch + step if newest.activates else 0
        newest.epoch = scope.epoch + len(sessions) + 1 if newest.activates else 0


def _place_memory(plan: Plan, gateway: ForeignGateway, settings: Settings, user: str, memory_scope: str) -> None:
    """Find the scope for each memory file. Here each scope has its own memory, and elsewhere all chats share one."""
    people = {
        each.destination.scope: each.destination.address
        for each in plan.sessions
        if each.destination.address is None or each.destination.address.kind is PeerKind.DIRECT
    }
    beyond = [scope for scope, address in people.items() if address is None or address.channel != TERMINAL]
    for file in gateway.memory:
        scope = memory_scope
        if not scope and file.place is not None:
            conversation = Conversation(maker=gateway.maker, key="", id="", created=_UNKNOWN_TIME, place=file.place)
            with suppress(Refused):
                choices = find_destinations(settings, conversation, user)
                known = {each.destination.scope for each in plan.sessions}
                scope = next((each.scope for each in choices if each.scope in known), choices[0].scope)
        elif not scope:
            owners = beyond or [*people]
            scope = owners[0] if len(owners) == 1 else ""
            if not scope:
                who = f"it was for all of its {len(owners)} people" if owners else "nobody has talked to it alone"
                why = f"{who}, and here each scope has a memory of its own; choose one with --memory-scope"
                plan.left_out.append(LeftOut(what=file.name, why=why))
        if scope:
            plan.memory += _planned_memory(gateway.maker, scope, file)


def _planned_memory(maker: str, scope: str, file: MemoryFile) -> Iterator[PlannedMemory]:
    for start in range(0, min(len(file.statements), MAX_STATEMENTS), _STATEMENTS_AT_ONCE):
        texts: Sequence[str] = file.statements[start : start + _STATEMENTS_AT_ONCE]
        digest = hashlib.blake2b("\0".join((maker, *texts)).encode("utf-8", "surrogatepass"), digest_size=12)
        yield PlannedMemory(
            scope=scope,
            file=file.name,
            memory=ImportedMemory(
                name=f"imported-from-{maker}",
                mark=f"{maker}-{digest.hexdigest()}",
                statements=tuple(Statement(text=text[:MAX_TEXT], noted=file.noted) for text in texts),
            ),
        )


def reasons(left_out: Sequence[LeftOut]) -> list[tuple[str, int, str]]:
    """Return the reasons with how often each occurs, and an example, the most frequent first."""
    counts = Counter(each.why for each in left_out)
    examples = {each.why: each.what for each in reversed(left_out)}
    return [(why, number, examples[why]) for why, number in counts.most_common()]
