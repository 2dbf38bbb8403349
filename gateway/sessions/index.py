"""`index.json`: which sessions each scope has and which one is active. A cache: the transcripts say all of it too."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import structlog

from gateway.sessions.entries import SessionState, UtcTime

__all__ = ["EMPTY", "INDEX_VERSION", "Scope", "assemble", "decode", "encode_scope", "newest_first", "read", "set_aside"]

log: structlog.stdlib.BoundLogger = structlog.get_logger()

INDEX_VERSION = 1


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


EMPTY = Scope(
    active_session_key=None,
    ordered_sessions=(),
    updated_at=datetime.min.replace(tzinfo=UTC),
    highest_number=0,
    epoch=0,
    sessions={},
)
"""A scope in which nothing has been said yet."""


class _Index(msgspec.Struct, frozen=True):
    version: int
    scopes: dict[str, Scope]


_decoder = msgspec.json.Decoder(_Index)
_encoder = msgspec.json.Encoder()


def read(path: Path, now: datetime) -> Mapping[str, Scope] | None:
    """Return the scopes, or None when there is no index that can be trusted; a bad one is set aside first."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return decode(data)
    except (ValueError, RecursionError) as trouble:
        set_aside(path, now, reason=str(trouble))
        return None


def decode(data: bytes) -> Mapping[str, Scope]:
    """Read a whole index; `ValueError` when it is none, or one of another version."""
    index = _decoder.decode(data)
    if index.version != INDEX_VERSION:
        raise ValueError(f"it has version {index.version}, this Gatehouse reads {INDEX_VERSION}")
    return index.scopes


def set_aside(path: Path, now: datetime, *, reason: str) -> None:
    target = path.with_name(f"{path.name}.corrupt-{now:%Y%m%dT%H%M%S.%fZ}")
    path.replace(target)
    log.warning("index_set_aside", file=str(target), reason=reason)


def newest_first(sessions: Mapping[str, SessionState]) -> tuple[str, ...]:
    return tuple(sorted(sessions, key=lambda key: sessions[key].number, reverse=True))


def encode_scope(name: str, scope: Scope) -> bytes:
    """Return one member of the object `scopes`. It is kept until the scope changes, so that a flush encodes little."""
    return _encoder.encode(name) + b":" + _encoder.encode(scope)


def assemble(members: Iterable[bytes]) -> bytes:
    """Put the members of `scopes` together to the whole index."""
    return b'{"version":%d,"scopes":{\n%s\n}}\n' % (INDEX_VERSION, b",\n".join(members))
