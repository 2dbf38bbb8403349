"""Making everything durable, in a thread of its own: a slow fsync must keep nobody from writing."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import structlog

from config.files import fsync_directory
from gateway.sessions import index, transcript
from gateway.sessions.disk import Disk
from gateway.sessions.index import Member, Scope

__all__ = ["Flushed", "InDiskThread", "Listing", "flush", "mark_clean", "sync_heir"]

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_T = TypeVar("_T")


class InDiskThread(Protocol):
    """Has a short piece of work done by the thread that owns the files, and waits for it."""

    def __call__(self, work: Callable[[], _T], /) -> _T: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Flushed:
    """`encoded` has the scopes that had changed, as they are now in the index, if that `is_written`."""

    encoded: Mapping[str, Member]
    is_written: bool
    trouble: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What the index is to say: `members` with what has `changed`, and without what was `dropped`."""

    members: Mapping[str, Member]
    changed: Mapping[str, Scope]
    dropped: frozenset[str]
    doomed: frozenset[str]


def flush(disk: Disk, in_disk_thread: InDiskThread, listing: Listing | None) -> Flushed:
    """Make the transcripts durable, then write the index, unless there is nothing to say."""
    before = disk.trouble
    failed = _sync(in_disk_thread(disk.begin_sync), disk)
    names = in_disk_thread(partial(disk.end_sync, failed))
    _sync_names(disk, in_disk_thread, names)
    encoded = {} if listing is None else {name: index.encode_scope(scope) for name, scope in listing.changed.items()}
    is_written = listing is not None and _write_index(disk, in_disk_thread, listing, encoded)
    if before and not disk.trouble:
        log.info("flush_recovered")
    return Flushed(encoded=encoded, is_written=is_written, trouble=disk.trouble)


def mark_clean(disk: Disk, sessions: int) -> None:
    """Let the next start believe the index without a look at the transcripts. Only after a flush that worked."""
    if disk.is_marked_clean or disk.trouble:
        return
    try:
        index.mark_clean(disk.index_path, disk.transcripts, sessions)
    except OSError as trouble:
        log.warning("clean_end_not_noted", reason=str(trouble))


def sync_heir(disk: Disk, heir: str) -> None:
    """Make durable what a session knows of another that is about to be deleted; the next flush tells of trouble."""
    try:
        transcript.sync(disk.path(heir), disk.fsync)
    except OSError as trouble:
        log.warning("number_not_passed_on", session=heir, reason=str(trouble))


def _sync(paths: Mapping[str, Path], disk: Disk) -> dict[str, OSError]:
    failed: dict[str, OSError] = {}
    for key, path in paths.items():
        try:
            transcript.sync(path, disk.fsync)
        except FileNotFoundError:
            continue  # It was deleted meanwhile, or has vanished: whoever wants it next finds out.
        except OSError as trouble:
            failed[key] = trouble
    return failed


def _sync_names(disk: Disk, in_disk_thread: InDiskThread, names: frozenset[str]) -> None:
    if not names:
        return
    try:
        fsync_directory(disk.transcripts, disk.fsync)
    except OSError as trouble:
        in_disk_thread(partial(disk.distrust, names, trouble))


def _write_index(disk: Disk, in_disk_thread: InDiskThread, listing: Listing, encoded: Mapping[str, Member]) -> bool:
    try:
        index.write(disk.index_path, _listed(listing, encoded), listing.doomed, disk.fsync)
    except OSError as trouble:
        in_disk_thread(partial(disk.flush_failed, trouble, disk.index_path))
        return False
    return True


def _listed(listing: Listing, encoded: Mapping[str, Member]) -> Iterator[tuple[str, Member]]:
    """Yield what the index is to list, one by one: copying it all at once would keep other threads waiting."""
    for name, member in listing.members.items():
        if name not in encoded and name not in listing.dropped:
            yield name, member
    yield from encoded.items()
