"""`SessionManager`: the one owner of the session files, their numbers and their order."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import msgspec
import structlog

from config import SessionSettings
from gateway.contract import Address
from gateway.dialogue import Message
from gateway.errors import CannotStart, Refused
from gateway.sessions import entries as e
from gateway.sessions import fold, index, recovery
from gateway.sessions.disk import Disk
from gateway.sessions.entries import Entry, SessionState, SessionStatus
from gateway.sessions.fold import Spoken
from gateway.sessions.hot import HotSessions
from gateway.sessions.index import Scope
from gateway.sessions.meta import Session, SessionMeta, meta_of
from gateway.sessions.names import parse_key, session_key
from gateway.sessions.recovery import RecoveryReport
from gateway.sessions.transcript import Newer, Reading, Unreadable

__all__ = ["SessionManager"]

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_WAITING_LIMIT = 64 * 1024 * 1024
"""Bytes that may wait for a disk that refuses them; beyond that appends are refused."""

_REOPENED = (SessionStatus.COMPLETED, SessionStatus.CANCELLED)

_T = TypeVar("_T")


@dataclass(slots=True)
class _Loading:
    """A session that is being read, and what was appended to it since the reading was asked for."""

    reading: asyncio.Future[Reading]
    since: list[Entry] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)


class SessionManager:
    """Use it in this order: `open`, `recover`, anything else, `close`.

    All state in memory is changed on the event loop, without a pause between looking and changing; all disk work is
    done by one thread, in the order in which it was asked for. Nobody else writes these files or allots `seq`.
    """

    def __init__(self, disk: Disk, settings: SessionSettings, clock: Callable[[], datetime]) -> None:
        self._disk = disk
        self._settings = settings
        self._clock = clock
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sessions")
        self._scopes: dict[str, Scope] = {}
        self._members: dict[str, bytes] = {}
        self._changed: set[str] = set()
        self._index_is_behind = False
        self._is_recovered = False
        self._hot = HotSessions()
        self._loading: dict[str, _Loading] = {}

    @classmethod
    async def open(cls, directory: Path, settings: SessionSettings, clock: Callable[[], datetime]) -> SessionManager:
        """Make the folders. `CannotStart` when they cannot be used."""
        manager = cls(Disk(directory), settings, clock)
        try:
            await manager._on_disk(manager._disk.prepare)
        except OSError as trouble:
            manager._thread.shutdown(wait=False)
            raise CannotStart(
                f"The folder {directory} cannot be used for sessions ({trouble.strerror}). "
                "Give it to the user that runs Gatehouse, or set gateway.data_dir to another place."
            ) from trouble
        return manager

    async def close(self) -> None:
        """Flush, and end the disk thread. Nothing may be called afterwards."""
        await self.flush()
        await asyncio.to_thread(self._thread.shutdown)

    @property
    def trouble(self) -> str | None:
        """What keeps sessions from being written, as a sentence for the operator; None when all is well."""
        return self._disk.trouble

    async def recover(self) -> RecoveryReport:
        """Find out which sessions there are. Has to be done once, before anything else.

        The seam for the write-ahead spool: entries that it holds and a transcript lacks are appended here, before the
        scopes are put together.
        """
        recovered = await self._on_disk(recovery.recover, self._disk, self._clock())
        self._scopes, self._members = recovered.scopes, recovered.members
        self._index_is_behind = recovered.is_news
        self._is_recovered = True
        log.info("sessions_recovered", **recovered.report.counts())
        return recovered.report

    def active(self, scope: str) -> SessionMeta | None:
        """Return the scope's active session, whatever its status; creates nothing."""
        found = self._scopes.get(scope, index.EMPTY)
        key = found.active_session_key
        return None if key is None else meta_of(key, found.sessions[key])

    def list(self, scope: str) -> builtins.list[SessionMeta]:
        """Return the scope's sessions, newest first."""
        found = self._scopes.get(scope, index.EMPTY)
        return [meta_of(key, found.sessions[key]) for key in found.ordered_sessions]

    async def resolve_active(self, scope: str, *, agent: str, origin: Address) -> SessionMeta:
        """Return the session that a message to `scope` belongs to; a new one where there is none that is open."""
        active = self.active(scope)
        if active is not None and active.status is SessionStatus.ACTIVE:
            return active
        return await self.start_new(scope, agent=agent, origin=origin)

    async def start_new(self, scope: str, *, agent: str, origin: Address, title: str | None = None) -> SessionMeta:
        """Start a session and make it the active one."""
        self._insist_on_recovery()
        self._insist_on_room()
        found = self._scopes.get(scope, index.EMPTY)
        key = session_key(scope, found.highest_number + 1)
        begun = self._opening(key, found.epoch + 1, agent, origin)
        if title and title.strip():
            begun.append(e.Title(value=title))
        sealed, data = self._seal(begun, after=0)
        state = msgspec.structs.replace(fold.fold(sealed), size=len(data))
        self._update(key, state, is_active=True)
        self._hot.put(key, sealed, len(data))
        await self._persist(key, data, is_new=True)
        return meta_of(key, state)

    async def resume(self, scope: str, number: int) -> SessionMeta:
        """Make session `number` the active one; `Refused` when the scope has none of that number.

        A completed or cancelled one is opened again. One in error can be read, and the next message starts another.
        """
        key = session_key(scope, number)
        if number < 1 or key not in self._sessions(scope):
            raise Refused(f"There is no session {number} here. /session list shows what there is.")
        await self.load(key)
        state = self._state(key)
        steps: builtins.list[Entry] = []
        if state.status in _REOPENED:
            steps.append(e.Status(value=SessionStatus.ACTIVE, by="resume"))
        found = self._scopes[scope]
        if found.active_session_key != key:
            steps.append(e.Activated(key=key, epoch=found.epoch + 1, highest_number=found.highest_number))
        if steps:
            _, data = self._take(key, steps, is_active=True)
            await self._persist(key, data)
        return meta_of(key, self._state(key))

    async def load(self, key: str) -> Session:
        """Return a session with its entries. `Refused` when it is not there or cannot be read."""
        self._state(key)
        entries = self._hot.get(key)
        if entries is None:
            entries = await self._read(key)
        return Session(key=key, meta=meta_of(key, self._state(key)), entries=tuple(entries))

    async def history(self, key: str, *, turn: str | None = None) -> builtins.list[Message]:
        """Return what the model is to see of a session, the whole of `turn` included."""
        session = await self.load(key)
        chosen = self._settings
        limit = min(chosen.max_messages, chosen.context_messages or chosen.max_messages)
        return fold.history(session.entries, limit, turn=turn, max_chars=chosen.context_chars)

    async def lines(self, key: str, limit: int) -> builtins.list[Spoken]:
        """Return the last `limit` lines that a person sees of a session, oldest first."""
        session = await self.load(key)
        return fold.lines(session.entries, limit)

    async def append(self, key: str, entries: Sequence[Entry]) -> builtins.list[Entry]:
        """Add entries to a session; return them with their `seq` and `ts`.

        Their order is that of the calls. When the disk refuses them they are kept, and tried again with the next
        append or flush; `trouble` says so. Once this was called, being cancelled does not take them back.
        """
        sealed, data = self._take(key, entries)
        if sealed:
            await self._persist(key, data)
        return sealed

    def _take(
        self, key: str, entries: Sequence[Entry], *, is_active: bool = False
    ) -> tuple[builtins.list[Entry], bytes]:
        """Take entries into memory; return them as they are now, and what is to be written."""
        state = self._state(key)
        self._insist_on_room()
        sealed, data = self._seal(entries, after=state.seq)
        for entry in sealed:
            state = fold.advance(state, entry)
        self._update(key, msgspec.structs.replace(state, size=state.size + len(data)), is_active=is_active)
        self._hot.extend(key, sealed, len(data))
        if key in self._loading:
            self._loading[key].since.extend(sealed)
        return sealed, data

    async def flush(self) -> None:
        """Make everything durable, and write the index if it has changed.

        Failure is logged, told by `trouble`, and mended by a later flush.
        """
        if not self._is_recovered:
            return
        for name in self._changed:
            self._members[name] = index.encode_scope(name, self._scopes[name])
        self._index_is_behind |= bool(self._changed)
        self._changed.clear()
        members = builtins.list(self._members.values()) if self._index_is_behind else None
        self._index_is_behind = not await self._on_disk(self._disk.flush, members)

    async def _persist(self, key: str, data: bytes, *, is_new: bool = False) -> None:
        """Write through to the transcript. The seam for the write-ahead spool: it commits `data` here, before this."""
        try:
            await self._on_disk(partial(self._disk.append, key, data, is_new=is_new))
        except FileNotFoundError as trouble:
            raise self._gone(key, "is gone from the disk") from trouble
        except Newer as trouble:
            raise _too_new(key, trouble) from trouble

    async def _read(self, key: str) -> builtins.list[Entry]:
        loading = self._loading.get(key)
        if loading is None:
            loading = self._loading[key] = _Loading(self._submit(self._disk.read, key))
            loading.reading.add_done_callback(partial(self._loaded, key, loading))
        try:
            await asyncio.shield(loading.reading)
        except FileNotFoundError as trouble:
            raise self._gone(key, "is gone from the disk") from trouble
        except Unreadable as trouble:
            raise self._gone(key, "could not be read and was set aside") from trouble
        except Newer as trouble:
            raise _too_new(key, trouble) from trouble
        except OSError as trouble:
            raise Refused(
                f"The disk could not be read ({trouble.strerror}). Try again, or start over with /new."
            ) from trouble
        return loading.entries

    def _loaded(self, key: str, loading: _Loading, reading: asyncio.Future[Reading]) -> None:
        """Keep what was read. The disk thread works in order, so just what was appended `since` is not in it."""
        del self._loading[key]
        state = self._sessions(parse_key(key)[0]).get(key)
        if reading.cancelled() or reading.exception() or state is None:
            return
        loading.entries = [*reading.result().entries, *loading.since]
        highest = max(entry.seq for entry in loading.entries)
        if highest > state.seq:
            self._update(key, msgspec.structs.replace(state, seq=highest))
        self._hot.put(key, loading.entries, state.size)

    def _opening(self, key: str, epoch: int, agent: str, origin: Address) -> builtins.list[Entry]:
        """Return the first entries of a session that becomes the active one of its scope."""
        scope, number = parse_key(key)
        header = e.Header(
            version=e.FORMAT,
            id=str(uuid4()),
            key=key,
            scope=scope,
            number=number,
            created=self._clock(),
            agent=agent,
            origin=_origin(origin),
            epoch=epoch,
            highest_number=number,
        )
        return [header, e.Activated(key=key, epoch=epoch, highest_number=number)]

    def _seal(self, entries: Sequence[Entry], *, after: int) -> tuple[builtins.list[Entry], bytes]:
        now = self._clock()
        pairs = [e.seal(entry, seq=seq, now=now) for seq, entry in enumerate(entries, after + 1)]
        return [entry for entry, _ in pairs], b"".join(line for _, line in pairs)

    def _update(self, key: str, state: SessionState, *, is_active: bool = False) -> None:
        """Put what is now known of a session in place of what was known before."""
        name, _ = parse_key(key)
        scope = self._scopes.get(name, index.EMPTY).with_session(key, state)
        self._scopes[name] = scope.pointing_to(key) if is_active else scope
        self._changed.add(name)

    def _gone(self, key: str, what: str) -> Refused:
        """Forget a session whose file is of no use, as recovery would; its number is not given to another."""
        name, number = parse_key(key)
        self._scopes[name] = self._scopes[name].without(key)
        self._changed.add(name)
        self._hot.drop(key)
        log.error("session_gone", session=key, reason=what)
        return Refused(f"The record of session {number} {what}. Your next message starts a new session.")

    def _sessions(self, scope: str) -> dict[str, SessionState]:
        return self._scopes.get(scope, index.EMPTY).sessions

    def _state(self, key: str) -> SessionState:
        state = self._sessions(parse_key(key)[0]).get(key)
        if state is None:
            raise Refused("That session does not exist any more. /session list shows what there is.")
        return state

    def _insist_on_recovery(self) -> None:
        if not self._is_recovered:
            raise RuntimeError("recover() has to come first: without it, numbers in use would be given away again")

    def _insist_on_room(self) -> None:
        if self._disk.waiting > _WAITING_LIMIT:
            raise Refused("The disk has not taken anything for too long, so nothing more can be accepted just now.")

    def _submit(self, work: Callable[..., _T], *arguments: object) -> asyncio.Future[_T]:
        return asyncio.get_running_loop().run_in_executor(self._thread, partial(work, *arguments))

    async def _on_disk(self, work: Callable[..., _T], *arguments: object) -> _T:
        """Do `work` in the disk thread. It is done even when the one who waits for it is cancelled."""
        return await asyncio.shield(self._submit(work, *arguments))


def _origin(address: Address) -> e.Origin:
    return e.Origin(
        channel=address.channel,
        account=address.account,
        chat_id=address.peer,
        kind=address.kind.value,
        thread=address.thread,
    )


def _too_new(key: str, trouble: Newer) -> Refused:
    _, number = parse_key(key)
    return Refused(f"Session {number} cannot be used: {trouble}. Update Gatehouse, or start another with /new.")
