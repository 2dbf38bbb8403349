"""The session index: which sessions each scope has and which one is active, in memory and in `index.json`.

The file is a cache: the transcripts contain everything that it says, so a lost or damaged one is rebuilt from them.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Protocol

import msgspec
import structlog
from msgspec import Struct

from config.files import Fsync, atomic_writer, fsync_directory, write_atomically
from gateway.bounded import BoundedDict
from gateway.errors import Refused
from gateway.private_files import NotAFile, read_private, require_file
from gateway.sessions.keys import parse_key
from gateway.sessions.state import SessionState, UtcTime

log: structlog.stdlib.BoundLogger = structlog.get_logger()

INDEX_VERSION = 1
SCOPES_PER_WRITE = 500
MAX_DECODED_SCOPES = 4096


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """The sessions of one scope, newest first. The order is that of their numbers, so it needs no clock."""

    active_session_key: str | None
    ordered_sessions: tuple[str, ...]
    updated_at: UtcTime
    highest_number: int
    epoch: int
    sessions: dict[str, SessionState]
    archived: int = 0
    """How many sessions of the scope are in the archive. Their numbers stay in use."""

    def with_session(self, key: str, state: SessionState, *, is_active: bool = False) -> "Scope":
        """Return a copy with a new session, or with the new state of an existing one."""
        sessions = {**self.sessions, key: state}
        return msgspec.structs.replace(
            self,
            sessions=sessions,
            ordered_sessions=self.ordered_sessions if key in self.sessions else newest_first(sessions),
            active_session_key=key if is_active else self.active_session_key,
            updated_at=state.last_accessed,
            highest_number=max(self.highest_number, state.highest_number),
            epoch=max(self.epoch, state.epoch),
        )

    def without(self, key: str) -> "Scope":
        """Return a copy without a session. If it was the active one, the copy has no active session."""
        return msgspec.structs.replace(
            self,
            sessions={other: state for other, state in self.sessions.items() if other != key},
            ordered_sessions=tuple(other for other in self.ordered_sessions if other != key),
            active_session_key=None if self.active_session_key == key else self.active_session_key,
        )


EMPTY_SCOPE = Scope(
    active_session_key=None,
    ordered_sessions=(),
    updated_at=datetime.min.replace(tzinfo=UTC),
    highest_number=0,
    epoch=0,
    sessions={},
)

# A scope as JSON, as it is in the file.
EncodedScope = bytes | msgspec.Raw


class IndexSnapshot(Struct, frozen=True, kw_only=True):
    """The index at one moment, for writing it: `encoded` with the `changed` scopes and without the `dropped` ones."""

    encoded: Mapping[str, EncodedScope]
    changed: Mapping[str, Scope]
    dropped: frozenset[str]


class IndexFollower(Protocol):
    """Follows the changes of the index. Called on the event loop in the middle of a change, so it must not raise."""

    def scope_changed(self, before: Scope, after: Scope) -> None: ...


class SessionIndex:
    """The scopes and the states of their sessions, in memory. Use it from the event loop only.

    Scopes stay encoded until they are used, and change by being replaced. `index[name]` of an unknown scope is an empty
    scope.
    """

    def __init__(self, encoded: Mapping[str, EncodedScope] | None = None, session_count: int = 0) -> None:
        self.load(encoded or {}, session_count)

    def load(self, encoded: Mapping[str, EncodedScope], session_count: int) -> None:
        """Start from what recovery has found."""
        self.follower: IndexFollower | None = None
        """Is told about changes until the next `load` or `add`, which may change many sessions."""
        self.session_count = session_count
        self.additions = 0
        """How often `add` was called."""
        # Tens of thousands of scopes are common, and few are used at a time. JSON takes much less memory than objects.
        self._encoded = dict(encoded)
        self._decoded = BoundedDict[str, Scope](MAX_DECODED_SCOPES)
        # Scopes that differ from `_encoded`.
        self._changed: dict[str, Scope] = {}
        self._dropped: set[str] = set()

    def add(self, encoded: Mapping[str, EncodedScope], session_count: int) -> None:
        """Add scopes that a node of a cluster has taken over."""
        self.forget(name for name in encoded if name in self._encoded or name in self._changed)
        self._encoded.update(encoded)
        self.session_count += session_count
        self.follower = None
        self.additions += 1

    def forget(self, names: Iterable[str]) -> list[str]:
        """Drop scopes from memory that another node of the cluster owns now. Return the keys of their sessions."""
        keys: list[str] = []
        for name in names:
            scope = self.peek(name)
            if self.follower is not None:
                self.follower.scope_changed(scope, EMPTY_SCOPE)
            self.session_count -= len(scope.sessions)
            keys += scope.sessions
            for scopes in (self._changed, self._decoded, self._encoded):
                scopes.pop(name, None)
            self._dropped.discard(name)
        return keys

    def __iter__(self) -> Iterator[str]:
        return iter([name for name in {**self._encoded, **self._changed} if name not in self._dropped])

    def __len__(self) -> int:
        # Dropped scopes leave `_encoded` only when the next snapshot is settled.
        new = sum(name not in self._encoded for name in self._changed)
        return len(self._encoded) + new - len(self._dropped & self._encoded.keys())

    def __getitem__(self, name: str) -> Scope:
        scope = self._changed.get(name) or self._decoded.get(name)
        if scope is not None:
            return scope
        encoded = self._encoded.get(name)
        if encoded is None or name in self._dropped:
            return EMPTY_SCOPE
        scope = self._decoded[name] = _scope_decoder.decode(encoded)
        return scope

    def peek(self, name: str) -> Scope:
        """Return a scope without keeping it decoded. For readers of the whole index."""
        scope = self._changed.get(name) or self._decoded.get(name)
        if scope is not None:
            return scope
        encoded = self._encoded.get(name)
        return EMPTY_SCOPE if encoded is None or name in self._dropped else _scope_decoder.decode(encoded)

    def names(self) -> list[str]:
        """Return the names of all scopes, quicker than `__iter__`. Some are there twice, and dropped ones too."""
        return [*self._encoded, *self._changed]

    def __setitem__(self, name: str, scope: Scope) -> None:
        before = self[name]
        self.session_count += len(scope.sessions) - len(before.sessions)
        # `_changed` keeps the scope until a flush has written it, so it must not be dropped with the decoded ones.
        self._changed[name] = scope
        self._decoded.pop(name, None)
        self._dropped.discard(name)
        if self.follower is not None:
            self.follower.scope_changed(before, scope)

    def find(self, key: str) -> SessionState | None:
        """Return the state of a session, or None if it does not exist."""
        return self[parse_key(key)[0]].sessions.get(key)

    def require(self, key: str) -> SessionState:
        """Return the state of a session. Raises `Refused` if it does not exist."""
        state = self[parse_key(key)[0]].sessions.get(key)
        if state is None:
            raise Refused("That session no longer exists. /session list shows your sessions.")
        return state

    def update(self, key: str, state: SessionState, *, is_active: bool = False) -> None:
        """Add a session, or replace its state. With `is_active` it becomes the active one of its scope."""
        name, _ = parse_key(key)
        self[name] = self[name].with_session(key, state, is_active=is_active)

    def remove(self, key: str) -> None:
        """Remove a session. Its number is not used again."""
        name, _ = parse_key(key)
        self[name] = self[name].without(key)

    def count_archived(self, name: str, change: int) -> None:
        """Add to the number of archived sessions of a scope."""
        scope = self[name]
        self[name] = msgspec.structs.replace(scope, archived=max(0, scope.archived + change))

    def drop_scope(self, name: str) -> None:
        """Remove a scope that has no sessions left. Its numbers start again at 1."""
        if self.follower is not None:
            self.follower.scope_changed(self.peek(name), EMPTY_SCOPE)
        self._changed.pop(name, None)
        self._decoded.pop(name, None)
        self._dropped.add(name)

    @property
    def is_changed(self) -> bool:
        """True if a scope has changed since the last `settle`."""
        return bool(self._changed or self._dropped)

    def snapshot(self) -> IndexSnapshot:
        """Return the content to write. Its `encoded` scopes do not change until `settle` is called."""
        return IndexSnapshot(encoded=self._encoded, changed=dict(self._changed), dropped=frozenset(self._dropped))

    def settle(self, snapshot: IndexSnapshot, encoded: Mapping[str, EncodedScope]) -> None:
        """Keep the JSON that the changed scopes of `snapshot` were encoded to.

        Scopes may have changed while the snapshot was being written. A scope that was dropped since stays dropped, and
        one that changed again stays changed.
        """
        for name in snapshot.dropped & self._dropped:
            self._encoded.pop(name, None)
        self._dropped -= snapshot.dropped
        for name, scope in snapshot.changed.items():
            if name in self._changed:
                self._encoded[name] = encoded[name]
                # Scopes are replaced, never mutated. The same object means that nothing has changed since.
                if self._changed[name] is scope:
                    del self._changed[name]
                    self._decoded[name] = scope


class _IndexFile(msgspec.Struct, frozen=True):
    version: int
    scopes: dict[str, Scope]
    doomed: tuple[str, ...] = ()


class RawIndex(msgspec.Struct, frozen=True):
    """The content of `index.json` with its scopes still encoded."""

    scopes: dict[str, msgspec.Raw]
    doomed: tuple[str, ...] = ()
    version: int = INDEX_VERSION


class _CleanMark(msgspec.Struct, frozen=True):
    """The content of `index.clean`: the digest of the index, and the time of the folder of transcripts."""

    digest: str
    folder_changed: int
    sessions: int


class IndexContents(Struct, frozen=True, kw_only=True):
    """The decoded content of `index.json`."""

    scopes: Mapping[str, Scope]
    doomed: tuple[str, ...] = ()
    """Keys of deleted sessions whose files could not be deleted yet."""


class CleanIndex(Struct, frozen=True, kw_only=True):
    """An index that was marked clean. Its scopes need no check, so they stay encoded."""

    encoded: Mapping[str, EncodedScope]
    doomed: tuple[str, ...]
    session_count: int


_decoder = msgspec.json.Decoder(_IndexFile)
_raw_decoder = msgspec.json.Decoder(RawIndex)
_scope_decoder = msgspec.json.Decoder(Scope)
_encoder = msgspec.json.Encoder()


def read(path: Path, now: datetime) -> IndexContents | None:
    """Return the content of the index, or None if there is no usable one. A damaged one is renamed first."""
    try:
        data = read_private(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        log.warning("index_unreadable", file=str(path), reason=str(error))
        return None
    try:
        return decode(data)
    except (ValueError, RecursionError) as error:
        set_aside(path, now, reason=str(error))
        return None


def decode(data: bytes) -> IndexContents:
    """Decode a whole index. Raises `ValueError` if it is damaged or has another version."""
    index = _decoder.decode(data)
    if index.version != INDEX_VERSION:
        raise ValueError(f"it has version {index.version}, this Gatehouse reads {INDEX_VERSION}")
    return IndexContents(scopes=index.scopes, doomed=index.doomed)


def decode_raw(data: bytes) -> RawIndex:
    """Decode an index, but not its scopes. Raises `ValueError` if it is damaged or has another version."""
    raw = _raw_decoder.decode(data)
    if raw.version != INDEX_VERSION:
        raise ValueError(f"it has version {raw.version}, this Gatehouse reads {INDEX_VERSION}")
    return raw


def decode_scope(encoded: EncodedScope) -> Scope:
    return _scope_decoder.decode(encoded)


def set_aside(path: Path, now: datetime, *, reason: str) -> None:
    """Rename an index that cannot be used, and keep it for a person to look at."""
    target = path.with_name(f"{path.name}.corrupt-{now:%Y%m%dT%H%M%S.%fZ}")
    path.replace(target)
    log.warning("index_set_aside", file=str(target), reason=reason)


def set_aside_other_kinds(path: Path, now: datetime) -> None:
    """Rename a folder, a link or a pipe in the place of the index or of its clean mark."""
    for each in (path, path.with_suffix(".clean")):
        try:
            require_file(each)
        except NotAFile as error:
            set_aside(each, now, reason=str(error.strerror))


def newest_first(sessions: Mapping[str, SessionState]) -> tuple[str, ...]:
    return tuple(sorted(sessions, key=lambda key: sessions[key].number, reverse=True))


def encode_scope(scope: Scope) -> bytes:
    return _encoder.encode(scope)


def write(path: Path, scopes: Iterable[tuple[str, EncodedScope]], doomed: Collection[str], fsync: Fsync) -> None:
    """Replace the index atomically."""
    with atomic_writer(path, fsync) as file:
        file.write(b'{"version":%d,"doomed":%s,"scopes":{' % (INDEX_VERSION, _encoder.encode(sorted(doomed))))
        separator = b"\n"
        items = iter(scopes)
        # In pieces: one large join would hold the interpreter, and with it the event loop, for too long.
        while piece := list(islice(items, SCOPES_PER_WRITE)):
            lines = [b"%s:%s" % (_encoder.encode(name), bytes(scope)) for name, scope in piece]
            file.write(separator + b",\n".join(lines))
            separator = b",\n"
        file.write(b"\n}}\n")
    fsync_directory(path.parent, fsync)


def mark_clean(path: Path, transcripts: Path, session_count: int) -> None:
    """Write the clean mark: the next start may trust the index without reading a transcript."""
    # The folder's time comes first: a change after this line makes the mark invalid, which is the safe side.
    changed = transcripts.stat().st_mtime_ns
    clean = _CleanMark(digest=_digest(read_private(path)), folder_changed=changed, sessions=session_count)
    write_atomically(path.with_suffix(".clean"), _encoder.encode(clean))


def remove_clean_mark(path: Path) -> None:
    """Remove the clean mark, durably. Call this before the first transcript is changed."""
    try:
        path.with_suffix(".clean").unlink()
    except FileNotFoundError:
        return
    fsync_directory(path.parent)


def read_clean(path: Path, transcripts: Path) -> CleanIndex | None:
    """Return the index if it is marked clean, and neither it nor the folder of transcripts has changed since."""
    try:
        clean = msgspec.json.decode(read_private(path.with_suffix(".clean")), type=_CleanMark)
        data = read_private(path)
    except (OSError, ValueError, RecursionError):
        return None
    # The time of a folder changes when a file in it is created, renamed or deleted, for example by a person. A file
    # that was changed in place is noticed by its size when it is loaded.
    if _digest(data) != clean.digest or transcripts.stat().st_mtime_ns != clean.folder_changed:
        return None
    index = _raw_decoder.decode(data)
    return CleanIndex(encoded=index.scopes, doomed=index.doomed, session_count=clean.sessions)


def _digest(data: bytes) -> str:
    return blake2b(data).hexdigest()
