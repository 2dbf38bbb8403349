"""Recovery: finds all sessions at start, even after a crash, a full disk or changes by a person.

After a clean shutdown the index is trusted. Otherwise the size of each file is compared with the index, and a file
that differs is read back to its last checkpoint. The highest epoch tells which session of a scope is active. No clock
is needed.
"""

import os
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from time import monotonic

import msgspec
import structlog
from msgspec import Struct
from msgspec.structs import asdict

from gateway.private_files import FILE_MODE, OTHERS
from gateway.sessions import index
from gateway.sessions.entries import Checkpoint
from gateway.sessions.index import EncodedScope, Scope, newest_first
from gateway.sessions.keys import file_name, parse_key
from gateway.sessions.session import APART, advance, fold, with_identity
from gateway.sessions.state import SessionState
from gateway.sessions.storage import transcript
from gateway.sessions.storage.archive import folder_of
from gateway.sessions.storage.codec import NewerTranscript, UnreadableTranscript
from gateway.sessions.storage.disk import Disk
from gateway.sessions.storage.tail import EnoughForState
from gateway.sessions.storage.transcript import REBUILT, TranscriptTail, set_aside
from gateway.sessions.storage.transfer_files import IMPORT_PREFIX

PROGRESS_INTERVAL = 5.0

log: structlog.stdlib.BoundLogger = structlog.get_logger()


class RecoveryReport(Struct, frozen=True, kw_only=True):
    """The findings of a recovery. `lost` has the keys of sessions whose transcripts are missing or were set aside."""

    scopes: int
    sessions: int
    adopted: int = 0
    """Transcripts that the index did not list."""
    dropped: int = 0
    """Sessions of the index that have no transcript."""
    repaired: int = 0
    """Sessions whose transcript was read because its size differs from the index."""
    torn: int = 0
    corrupted: int = 0
    newer: int = 0
    opened: int = 0
    """Transcripts that other users had access to. They no longer have."""
    rebuilt: bool = False
    lost: tuple[str, ...] = ()

    def counts(self) -> dict[str, int | bool]:
        """Return the fields of a log line."""
        return {"lost": len(self.lost), **{name: value for name, value in asdict(self).items() if name != "lost"}}


class Recovered(Struct, frozen=True, kw_only=True):
    scopes: Mapping[str, EncodedScope]
    undeleted: frozenset[str]
    """Keys of deleted sessions whose files are still there."""
    is_index_outdated: bool
    """The index file does not say the same as `scopes`."""
    report: RecoveryReport


def recover(disk: Disk, now: datetime, deleted: frozenset[str] = frozenset()) -> Recovered:
    """Find every session. Damaged files are set aside, never deleted.

    `deleted` has the keys of sessions whose deletion is not finished.
    """
    index.set_aside_other_kinds(disk.index_path, now)
    # An unfinished deletion may have been committed after the index was marked clean.
    clean = None if deleted else index.read_clean(disk.index_path, disk.transcripts)
    if clean is not None:
        return Recovered(
            scopes=clean.encoded,
            undeleted=frozenset(clean.doomed),
            is_index_outdated=False,
            report=RecoveryReport(scopes=len(clean.encoded), sessions=clean.session_count),
        )
    disk.remove_clean_mark()
    counts: Counter[str] = Counter()
    listed = index.read(disk.index_path, now)
    known = listed or index.IndexContents(scopes={})
    unlisted, not_files = _transcript_sizes(disk.transcripts, counts)
    # Files of deleted sessions must not be adopted: the sessions would come back.
    undeleted = deleted | {key for key in known.doomed if unlisted.get(file_name(key)) is not None}
    for key in undeleted:
        unlisted.pop(file_name(key), None)
    sessions: dict[str, SessionState] = {}
    lost: set[str] = set()
    for scope in known.scopes.values():
        for key, state in scope.sessions.items():
            if key in undeleted:
                continue
            size = unlisted.pop(file_name(key), None)
            if file_name(key) in not_files:
                lost.add(key)
            elif size is None:
                counts["dropped"] += 1
                # A crash may have left an archived or empty session in the index. Any other one was lost.
                if state.messages and not disk.archive.path(key).exists():
                    lost.add(key)
                    log.warning("transcript_missing", session=key)
            elif size == state.size:
                # Transcripts only grow, so a file of the same size has not changed.
                sessions[key] = state
            elif read := _read_state(disk.path(key), counts, known=(key, state)):
                # A session keeps its id, even if its header was lost and had to be written again.
                sessions[key] = msgspec.structs.replace(read[1], id=state.id or read[1].id)
                counts["repaired"] += 1
            else:
                lost.add(key)
    logged_at = monotonic()
    for done, name in enumerate(unlisted):
        if monotonic() - logged_at > PROGRESS_INTERVAL:
            logged_at = monotonic()
            log.info("transcripts_read", done=done, total=len(unlisted))
        if read := _read_state(disk.transcripts / name, counts):
            sessions[read[0]] = read[1]
            counts["adopted"] += 1
    archived = _find_archived(disk, sessions, undeleted, known.scopes)
    scopes = group_by_scope(sessions, known.scopes, lost, archived, now)
    return Recovered(
        scopes={name: index.encode_scope(scope) for name, scope in scopes.items()},
        undeleted=undeleted,
        is_index_outdated=listed is None or scopes != known.scopes,
        report=RecoveryReport(
            scopes=len(scopes),
            sessions=len(sessions),
            rebuilt=listed is None,
            lost=tuple(sorted(lost)),
            **counts,
        ),
    )


def _transcript_sizes(directory: Path, counts: Counter[str]) -> tuple[dict[str, int], set[str]]:
    """Return the size of every transcript by file name, and the names of links, folders and pipes.

    Those are set aside. Other users lose their access to transcripts, and temporary files are removed.
    """
    sizes: dict[str, int] = {}
    not_files: set[str] = set()
    with os.scandir(directory) as found:
        files = list(found)  # Setting a file aside must not change what is listed.
    for file in files:
        is_file = file.is_file(follow_symlinks=False)
        if file.name.startswith(IMPORT_PREFIX) or file.name.endswith(REBUILT):
            if is_file:
                Path(file).unlink()
        elif file.name.endswith(".jsonl") and not is_file:
            set_aside(Path(file))
            not_files.add(file.name)
            counts["corrupted"] += 1
        elif file.name.endswith(".jsonl"):
            status = file.stat(follow_symlinks=False)
            sizes[file.name] = status.st_size
            if status.st_mode & OTHERS:
                try:
                    Path(file).chmod(FILE_MODE)
                    counts["opened"] += 1
                except OSError as error:
                    log.warning("file_open_to_others", file=file.name, reason=str(error))
    return sizes, not_files


_Found = tuple[str, SessionState]


def _read_state(path: Path, counts: Counter[str], *, known: _Found | None = None) -> _Found | None:
    """Read the key and the state of a transcript. If it cannot be read now, return the index's copy.

    A file that is not a transcript is set aside. Then this returns None.
    """
    try:
        tail = transcript.read(path, EnoughForState(lambda key: file_name(key) == path.name))
    except NewerTranscript as newer:
        counts["newer"] += 1
        log.warning("newer_transcript_skipped", file=path.name, reason=str(newer))
        if known is not None:
            return known
        # Nothing but the header is known. List the session anyway, so that its number is not used again.
        outline = newer.outline
        changed_at = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        return outline.key, SessionState(
            number=parse_key(outline.key)[1],
            agent=outline.agent,
            created_at=changed_at,
            updated_at=changed_at,
            last_accessed=changed_at,
            seq=1,
            epoch=outline.epoch,
            highest_number=outline.highest_number,
        )
    except UnreadableTranscript:
        counts["corrupted"] += 1
        set_aside(path)
        return None
    except OSError as error:
        log.warning("transcript_unreadable", file=path.name, reason=str(error))
        return known
    counts["torn"] += tail.is_torn
    return tail.key, state_from(tail)


def state_from(tail: TranscriptTail) -> SessionState:
    """Return the state of a session from a transcript that was read whole, or back to a checkpoint."""
    if tail.is_whole:
        return msgspec.structs.replace(fold(tail.entries), size=tail.size)
    at = max(at for at, entry in enumerate(tail.entries) if isinstance(entry, Checkpoint))
    checkpoint = tail.entries[at]
    assert isinstance(checkpoint, Checkpoint)  # noqa: S101 - `at` is the position of one.
    # A checkpoint that was written by an older version lacks the facts that only the header has.
    state = with_identity(checkpoint.key, reduce(advance, tail.entries[at:], checkpoint.state), tail.header)
    return msgspec.structs.replace(state, size=tail.size)


def group_by_scope(
    sessions: Mapping[str, SessionState],
    listed: Mapping[str, Scope],
    lost: set[str],
    archived: Mapping[str, list[int]],
    now: datetime,
) -> dict[str, Scope]:
    grouped: dict[str, dict[str, SessionState]] = {}
    for key, state in sessions.items():
        grouped.setdefault(parse_key(key)[0], {})[key] = state
    for name, scope in listed.items():
        if not scope.sessions or not scope.sessions.keys().isdisjoint(lost):
            # Keep the scope even if all its sessions are lost: people have seen its numbers.
            grouped.setdefault(name, {})
    for name in archived:
        grouped.setdefault(name, {})
    scopes: dict[str, Scope] = {}
    for name, found in grouped.items():
        before = listed.get(name)
        states = found.values()
        numbers = archived.get(name, [])
        # The session that was activated last is the active one. The index is trusted only if no transcript has a
        # later epoch. If the active session is lost, none is active, and the next message starts a new one.
        used = [item for item in found.items() if item[1].epoch != APART]
        latest = max(used, key=lambda item: item[1].epoch, default=None)
        active = latest[0] if latest else None
        if before is not None and (latest is None or latest[1].epoch <= before.epoch):
            if before.active_session_key is None or before.active_session_key in lost:
                active = None
            elif before.active_session_key in found:
                active = before.active_session_key
        scopes[name] = Scope(
            active_session_key=active,
            ordered_sessions=newest_first(found),
            updated_at=max((state.last_accessed for state in states), default=now),
            highest_number=max(
                [before.highest_number if before else 0, *numbers]
                + [max(state.highest_number, state.number) for state in states]
            ),
            epoch=max([before.epoch if before else 0] + [state.epoch for state in states]),
            sessions=found,
            archived=len(numbers),
        )
    return scopes


def _find_archived(
    disk: Disk, sessions: Mapping[str, SessionState], undeleted: frozenset[str], listed: Mapping[str, Scope]
) -> dict[str, list[int]]:
    """Return the numbers of the archived sessions of each scope.

    A crash while a session was moved to the archive, or back, leaves it in both places. Then its transcript is kept,
    because the session may have been used since it was restored.
    """
    present = {file_name(key): key for key in sessions}
    gone = {file_name(key) for key in undeleted}
    by_folder: dict[str, list[int]] = {}
    for name in disk.archive.names():
        if name.transcript in present:
            disk.archive.delete(present[name.transcript])
            log.info("archived_copy_deleted", session=present[name.transcript])
        elif name.transcript not in gone:
            by_folder.setdefault(name.folder, []).append(name.number)
    if not by_folder:
        return {}
    scopes = {folder_of(scope): scope for scope in {*listed, *(parse_key(key)[0] for key in sessions)}}
    archived: dict[str, list[int]] = {}
    for folder, numbers in by_folder.items():
        scope = scopes.get(folder)
        if scope is None and (found := disk.archive.any_in_folder(folder)) is not None:
            scope = parse_key(found.key)[0]
        if scope is not None:
            archived[scope] = numbers
    return archived
