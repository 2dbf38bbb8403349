"""`index.json`: which sessions each scope has and which one is active. A cache: the transcripts say all of it too."""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from itertools import islice
from pathlib import Path

import msgspec
import structlog

from config.files import Fsync, atomic_writer, fsync_directory, write_atomically
from gateway.errors import Refused
from gateway.sessions.keys import parse_key
from gateway.sessions.state import SessionState, UtcTime

log: structlog.stdlib.BoundLogger = structlog.get_logger()

INDEX_VERSION = 1
_PIECE = 500
"""Scopes that are written at once."""


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """The sessions of one scope. Newest first means: by number, which needs no clock."""

    active_session_key: str | None
    ordered_sessions: tuple[str, ...]
    updated_at: UtcTime
    highest_number: int
    epoch: int
    sessions: dict[str, SessionState]

    def with_session(self, key: str, state: SessionState) -> "Scope":
        """Add a session, or put what is now known of it in place of what was known before."""
        sessions = {**self.sessions, key: state}
        return msgspec.structs.replace(
            self,
            sessions=sessions,
            ordered_sessions=self.ordered_sessions if key in self.sessions else newest_first(sessions),
            updated_at=state.last_accessed,
            highest_number=max(self.highest_number, state.highest_number),
            epoch=max(self.epoch, state.epoch),
        )

    def without(self, key: str) -> "Scope":
        """Leave out a session that is gone. When it was the active one, none is."""
        return msgspec.structs.replace(
            self,
            sessions={other: state for other, state in self.sessions.items() if other != key},
            ordered_sessions=tuple(other for other in self.ordered_sessions if other != key),
            active_session_key=None if self.active_session_key == key else self.active_session_key,
        )

    def pointing_to(self, key: str) -> "Scope":
        return msgspec.structs.replace(self, active_session_key=key)


EMPTY_SCOPE = Scope(
    active_session_key=None,
    ordered_sessions=(),
    updated_at=datetime.min.replace(tzinfo=UTC),
    highest_number=0,
    epoch=0,
    sessions={},
)
"""A scope in which nothing has been said yet."""


EncodedScope = bytes | msgspec.Raw
"""A scope as it stands in the index."""


class _Index(msgspec.Struct, frozen=True):
    version: int
    scopes: dict[str, Scope]
    doomed: tuple[str, ...] = ()


class _RawIndex(msgspec.Struct, frozen=True):
    scopes: dict[str, msgspec.Raw]
    doomed: tuple[str, ...] = ()


class _Clean(msgspec.Struct, frozen=True):
    """Says that an index tells all that the transcripts tell: the index by its digest, their folder by its time."""

    digest: str
    folder_changed: int
    sessions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexContents:
    """What an index says. `doomed` are the keys of deleted sessions whose files the disk would not let go."""

    scopes: Mapping[str, Scope]
    doomed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanIndex:
    """The same, not decoded yet: every byte is as we have written it."""

    members: Mapping[str, EncodedScope]
    doomed: tuple[str, ...]
    sessions: int
    """How many there are, to spare counting them."""


_decoder = msgspec.json.Decoder(_Index)
_raw_decoder = msgspec.json.Decoder(_RawIndex)
_scope_decoder = msgspec.json.Decoder(Scope)
_encoder = msgspec.json.Encoder()


def read(path: Path, now: datetime) -> IndexContents | None:
    """Return the scopes, or None when there is no index that can be trusted; a bad one is set aside first."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except IsADirectoryError as trouble:  # No index could be put in its place.
        set_aside(path, now, reason=str(trouble.strerror))
        return None
    except OSError as trouble:
        log.warning("index_unreadable", file=str(path), reason=str(trouble))
        return None
    try:
        return decode(data)
    except (ValueError, RecursionError) as trouble:
        set_aside(path, now, reason=str(trouble))
        return None


def decode(data: bytes) -> IndexContents:
    """Read a whole index; `ValueError` when it is none, or one of another version."""
    index = _decoder.decode(data)
    if index.version != INDEX_VERSION:
        raise ValueError(f"it has version {index.version}, this Gatehouse reads {INDEX_VERSION}")
    return IndexContents(scopes=index.scopes, doomed=index.doomed)


def decode_scope(member: EncodedScope) -> Scope:
    return _scope_decoder.decode(member)


def set_aside(path: Path, now: datetime, *, reason: str) -> None:
    target = path.with_name(f"{path.name}.corrupt-{now:%Y%m%dT%H%M%S.%fZ}")
    path.replace(target)
    log.warning("index_set_aside", file=str(target), reason=reason)


def newest_first(sessions: Mapping[str, SessionState]) -> tuple[str, ...]:
    return tuple(sorted(sessions, key=lambda key: sessions[key].number, reverse=True))


def encode_scope(scope: Scope) -> bytes:
    return _encoder.encode(scope)


def write(path: Path, members: Iterable[tuple[str, EncodedScope]], doomed: Collection[str], fsync: Fsync) -> None:
    """Put an index in place of the old one, atomically.

    It is put together piece by piece: one big join would keep every other thread waiting.
    """
    with atomic_writer(path, fsync) as file:
        file.writelines(_pieces(members, doomed))
    fsync_directory(path.parent, fsync)


def _pieces(members: Iterable[tuple[str, EncodedScope]], doomed: Collection[str]) -> Iterator[bytes]:
    yield b'{"version":%d,"doomed":%s,"scopes":{' % (INDEX_VERSION, _encoder.encode(sorted(doomed)))
    items = iter(members)
    comma = b"\n"
    while piece := list(islice(items, _PIECE)):
        yield comma + b",\n".join([b"%s:%s" % (_encoder.encode(name), bytes(member)) for name, member in piece])
        comma = b",\n"
    yield b"\n}}\n"


def mark_clean(path: Path, transcripts: Path, sessions: int) -> None:
    """Note, once everything is written, that a start may believe the index without a look at the transcripts."""
    changed = transcripts.stat().st_mtime_ns
    clean = _Clean(digest=_digest(path.read_bytes()), folder_changed=changed, sessions=sessions)
    write_atomically(_mark(path), _encoder.encode(clean))


def unmark(path: Path) -> None:
    """Take that back, durably, before the first transcript is changed."""
    try:
        _mark(path).unlink()
    except FileNotFoundError:
        return
    fsync_directory(path.parent)


def read_clean(path: Path, transcripts: Path) -> CleanIndex | None:
    """Return what the index says if it was marked clean, and neither it nor the folder has changed since."""
    try:
        clean = msgspec.json.decode(_mark(path).read_bytes(), type=_Clean)
        data = path.read_bytes()
    except (OSError, ValueError, RecursionError):
        return None
    if _digest(data) != clean.digest or transcripts.stat().st_mtime_ns != clean.folder_changed:
        return None
    index = _raw_decoder.decode(data)
    return CleanIndex(members=index.scopes, doomed=index.doomed, sessions=clean.sessions)


def _mark(path: Path) -> Path:
    return path.with_suffix(".clean")


def _digest(data: bytes) -> str:
    return blake2b(data).hexdigest()


_DECODED_LIMIT = 4096


class Scopes:
    """Looks like a dictionary in which every scope is, if need be an empty one."""

    def __init__(self, members: Mapping[str, EncodedScope], sessions: int) -> None:
        self.sessions = sessions
        """How many sessions all scopes have."""
        self._members = dict(members)
        self._decoded: OrderedDict[str, Scope] = OrderedDict()
        self._changed: dict[str, Scope] = {}
        self._dropped: set[str] = set()

    def __iter__(self) -> Iterator[str]:
        return iter([name for name in {**self._members, **self._changed} if name not in self._dropped])

    def __len__(self) -> int:
        new = sum(name not in self._members for name in self._changed)
        return len(self._members) + new - len(self._dropped & self._members.keys())

    def __getitem__(self, name: str) -> Scope:
        scope = self._changed.get(name) or self._decoded.get(name)
        if scope is not None:
            return scope
        member = self._members.get(name)
        if member is None or name in self._dropped:
            return EMPTY_SCOPE
        return self._remember(name, decode_scope(member))

    def __setitem__(self, name: str, scope: Scope) -> None:
        self.sessions += len(scope.sessions) - len(self[name].sessions)
        self._changed[name] = scope
        self._decoded.pop(name, None)
        self._dropped.discard(name)

    @property
    def is_changed(self) -> bool:
        return bool(self._changed or self._dropped)

    def dropped(self) -> frozenset[str]:
        """Return the names that are to be left out of the index."""
        return frozenset(self._dropped)

    def changed(self) -> dict[str, Scope]:
        """Return what has to be encoded before `members` are all that there is; `settle` tells when it was."""
        return dict(self._changed)

    def members(self) -> Mapping[str, EncodedScope]:
        """Return all scopes as they were encoded last; nothing changes in it until `settle` is called."""
        return self._members

    def drop(self, name: str) -> None:
        """Forget a scope that has no sessions left."""
        self._changed.pop(name, None)
        self._decoded.pop(name, None)
        self._dropped.add(name)

    def settle(self, encoded: Mapping[str, EncodedScope], scopes: Mapping[str, Scope], dropped: frozenset[str]) -> None:
        """Keep what `scopes` were encoded to, but for those that have been dropped meanwhile.

        One that has changed again counts as changed.
        """
        for name in dropped & self._dropped:
            self._members.pop(name, None)
        self._dropped -= dropped
        for name, scope in scopes.items():
            if name in self._changed:
                self._members[name] = encoded[name]
                if self._changed[name] is scope:
                    del self._changed[name]
                    self._remember(name, scope)

    def _remember(self, name: str, scope: Scope) -> Scope:
        self._decoded[name] = scope
        if len(self._decoded) > _DECODED_LIMIT:
            self._decoded.popitem(last=False)
        return scope


class Books:
    def __init__(self) -> None:
        self.scopes = Scopes({}, 0)

    def sessions(self, scope: str) -> dict[str, SessionState]:
        return self.scopes[scope].sessions

    def find(self, key: str) -> SessionState | None:
        return self.scopes[parse_key(key)[0]].sessions.get(key)

    def state(self, key: str) -> SessionState:
        state = self.find(key)
        if state is None:
            raise Refused("That session does not exist any more. /session list shows what there is.")
        return state

    def update(self, key: str, state: SessionState, *, is_active: bool = False) -> None:
        """Put what is now known of a session in place of what was known before."""
        name, _ = parse_key(key)
        scope = self.scopes[name].with_session(key, state)
        self.scopes[name] = scope.pointing_to(key) if is_active else scope

    def forget(self, key: str) -> None:
        """Take a session out; its number is not given to another."""
        name, _ = parse_key(key)
        self.scopes[name] = self.scopes[name].without(key)

    def drop_scope(self, name: str) -> None:
        """Forget a scope without sessions, and its numbers with it."""
        self.scopes.drop(name)
