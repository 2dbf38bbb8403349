"""Putting the sessions back together at start, from whatever a crash, a full disk or a curious person has left.

After an orderly end the index is believed as it is. Otherwise, and no clock is involved in that: a file whose size is
not the one that the index has noted is read again, back to its last checkpoint, and the highest epoch tells which
session of a scope is active.
"""

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from time import monotonic

import msgspec
import structlog

from gateway.private_files import FILE_MODE, OTHERS
from gateway.sessions import index
from gateway.sessions.entries import Checkpoint
from gateway.sessions.index import EncodedScope, Scope, newest_first
from gateway.sessions.keys import file_name, parse_key
from gateway.sessions.session import advance, fold
from gateway.sessions.state import SessionState
from gateway.sessions.storage import transcript
from gateway.sessions.storage.codec import HeaderOutline, NewerTranscript, UnreadableTranscript
from gateway.sessions.storage.disk import Disk
from gateway.sessions.storage.tail import EnoughForState
from gateway.sessions.storage.transcript import REBUILT, set_aside
from gateway.sessions.storage.transfer_files import IMPORT_PREFIX

__all__ = ["Recovered", "RecoveryReport", "recover", "state_from"]

_PROGRESS_INTERVAL = 5.0

log: structlog.stdlib.BoundLogger = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """What was found at start. `lost` are the keys of the sessions that could not be read and were set aside."""

    scopes: int
    sessions: int
    adopted: int = 0
    dropped: int = 0
    repaired: int = 0
    torn: int = 0
    corrupted: int = 0
    newer: int = 0
    opened: int = 0
    """Transcripts that others could read, and now cannot any more."""
    rebuilt: bool = False
    lost: tuple[str, ...] = ()

    def counts(self) -> dict[str, int | bool]:
        """Return it as fields of a log line."""
        return {"lost": len(self.lost), **{name: value for name, value in asdict(self).items() if name != "lost"}}


@dataclass(slots=True)
class _Found:
    """What has come to light so far."""

    sessions: dict[str, SessionState] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    adopted: int = 0
    dropped: int = 0
    repaired: int = 0
    torn: int = 0
    corrupted: int = 0
    newer: int = 0
    opened: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What to go on with: the members of the index, and whether the one on disk says anything else."""

    members: Mapping[str, EncodedScope]
    doomed: frozenset[str]
    is_news: bool
    report: RecoveryReport


def recover(disk: Disk, now: datetime) -> Recovered:
    """Return every session there is. What is damaged is kept aside, never deleted."""
    clean = index.read_clean(disk.index_path, disk.transcripts)
    disk.expect(is_marked_clean=clean is not None)
    if clean is None:
        return _compare(disk, now)
    return Recovered(
        members=clean.members,
        doomed=frozenset(clean.doomed),
        is_news=False,
        report=RecoveryReport(scopes=len(clean.members), sessions=clean.sessions),
    )


def _compare(disk: Disk, now: datetime) -> Recovered:
    """Hold the index against the transcripts."""
    listed = index.read(disk.index_path, now)
    known = listed or index.IndexContents(scopes={})
    found = _Found()
    sizes = _sizes(disk.transcripts, found)
    doomed = frozenset(key for key in known.doomed if sizes.pop(file_name(key), None) is not None)
    for scope in known.scopes.values():
        for key, state in scope.sessions.items():
            _revisit(disk, key, state, sizes.pop(file_name(key), None), found)
    for name in _with_progress(sizes):
        _adopt(disk.transcripts / name, found)
    scopes = _by_scope(found, known.scopes, now)
    return Recovered(
        members={name: index.encode_scope(scope) for name, scope in scopes.items()},
        doomed=doomed,
        is_news=listed is None or scopes != known.scopes,
        report=_report(scopes, found, rebuilt=listed is None),
    )


def _sizes(directory: Path, found: _Found) -> dict[str, int]:
    """Return the size of every transcript. What a killed daemon left half made is cleared away."""
    sizes: dict[str, int] = {}
    with os.scandir(directory) as files:
        for file in files:
            if file.name.startswith(IMPORT_PREFIX) or file.name.endswith(REBUILT):
                Path(file).unlink()
            elif file.name.endswith(".jsonl") and file.is_file():
                status = file.stat()
                sizes[file.name] = status.st_size
                found.opened += bool(status.st_mode & OTHERS and _close(Path(file)))
    return sizes


def _close(path: Path) -> bool:
    """Take away what others may do with a file; tell whether that worked."""
    try:
        path.chmod(FILE_MODE)
    except OSError as trouble:
        log.warning("file_open_to_others", file=path.name, reason=str(trouble))
        return False
    return True


def _with_progress(names: Collection[str]) -> Iterator[str]:
    """Yield `names`, and say now and then how far it has come."""
    said = monotonic()
    for done, name in enumerate(names):
        if monotonic() - said > _PROGRESS_INTERVAL:
            said = monotonic()
            log.info("transcripts_being_read", done=done, total=len(names))
        yield name


def _revisit(disk: Disk, key: str, state: SessionState, size: int | None, found: _Found) -> None:
    """Check a session that the index lists against its file."""
    if size is None:
        found.dropped += 1
    elif size == state.size:
        found.sessions[key] = state
    elif read := _read(disk.path(key), found, known=(key, state)):
        found.sessions[key] = read[1]
        found.repaired += 1
    else:
        found.lost.add(key)


def _adopt(path: Path, found: _Found) -> None:
    """Take in a file that the index does not list."""
    if read := _read(path, found):
        key, state = read
        found.sessions[key] = state
        found.adopted += 1


_Known = tuple[str, SessionState]


def _read(path: Path, found: _Found, *, known: _Known | None = None) -> _Known | None:
    """Read a file for its key and state; what the index knows has to do where it cannot be read today.

    Only what is no transcript is set aside, and gives None.
    """
    try:
        reading = transcript.read(path, EnoughForState(lambda key: file_name(key) == path.name))
    except NewerTranscript as newer:
        found.newer += 1
        log.warning("newer_transcript_left_alone", file=path.name, reason=str(newer))
        return known or (newer.outline.key, _guessed(newer.outline, path))
    except UnreadableTranscript:
        found.corrupted += 1
        set_aside(path)
        return None
    except OSError as trouble:
        log.warning("transcript_unreadable_now", file=path.name, reason=str(trouble))
        return known
    found.torn += reading.is_torn
    return reading.key, state_from(reading)


def state_from(reading: transcript.TranscriptTail) -> SessionState:
    """Return what a transcript adds up to that was read whole, or back to a checkpoint."""
    since = reading.entries
    if reading.is_whole:
        return msgspec.structs.replace(fold(since), size=reading.size)
    at = max(at for at, entry in enumerate(since) if isinstance(entry, Checkpoint))
    last = since[at]
    assert isinstance(last, Checkpoint)  # noqa: S101 - the line above has looked for one.
    return msgspec.structs.replace(reduce(advance, since[at:], last.state), size=reading.size)


def _guessed(outline: HeaderOutline, path: Path) -> SessionState:
    """Say what can be said of a session that only a newer version can read, so that its number is not given away."""
    _, number = parse_key(outline.key)
    changed = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    return SessionState(
        number=number,
        agent=outline.agent,
        created_at=changed,
        updated_at=changed,
        last_accessed=changed,
        seq=1,
        epoch=outline.epoch,
        highest_number=outline.highest_number,
    )


def _by_scope(found: _Found, listed: Mapping[str, Scope], now: datetime) -> dict[str, Scope]:
    grouped: dict[str, dict[str, SessionState]] = {}
    for key, state in found.sessions.items():
        grouped.setdefault(parse_key(key)[0], {})[key] = state
    for name, scope in listed.items():
        if not scope.sessions.keys().isdisjoint(found.lost):
            # Even when nothing is left of it, its numbers have been seen by people.
            grouped.setdefault(name, {})
    return {name: _scope(sessions, listed.get(name), found, now) for name, sessions in grouped.items()}


def _scope(sessions: dict[str, SessionState], listed: Scope | None, found: _Found, now: datetime) -> Scope:
    states = sessions.values()
    return Scope(
        active_session_key=_active(sessions, listed, found),
        ordered_sessions=newest_first(sessions),
        updated_at=max((state.last_accessed for state in states), default=now),
        highest_number=max(
            listed.highest_number if listed else 0,
            max((max(state.highest_number, state.number) for state in states), default=0),
        ),
        epoch=max(listed.epoch if listed else 0, max((state.epoch for state in states), default=0)),
        sessions=sessions,
    )


def _active(sessions: Mapping[str, SessionState], listed: Scope | None, found: _Found) -> str | None:
    """Tell which session is active: the one last activated, but none when that one was lost to damage.

    The index is believed only where no transcript knows of a later activation.
    """
    latest = max(sessions, key=lambda key: sessions[key].epoch, default=None)
    if listed is None or (latest is not None and sessions[latest].epoch > listed.epoch):
        return latest
    active = listed.active_session_key
    if active is None or active in found.lost:
        return None
    return active if active in sessions else latest


def _report(scopes: Mapping[str, Scope], found: _Found, *, rebuilt: bool) -> RecoveryReport:
    return RecoveryReport(
        scopes=len(scopes),
        sessions=len(found.sessions),
        adopted=found.adopted,
        dropped=found.dropped,
        repaired=found.repaired,
        torn=found.torn,
        corrupted=found.corrupted,
        newer=found.newer,
        opened=found.opened,
        rebuilt=rebuilt,
        lost=tuple(sorted(found.lost)),
    )
