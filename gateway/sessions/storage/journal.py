"""The journal: the write-ahead log of the transcripts, and its replay after a crash. The spool implements it."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Protocol

import structlog

from gateway.private_files import NotAFile, opened, require_file
from gateway.sessions.keys import parse_key
from gateway.sessions.storage.codec import DamagedEntry, decode, encode, header_for
from gateway.sessions.storage.disk import Disk
from gateway.sessions.storage.transcript import (
    lines_backwards,
    read_to_end,
    save_damaged,
    set_aside,
    starts_with_header,
)
from gateway.spool import OnCommitted, Operation

log: structlog.stdlib.BoundLogger = structlog.get_logger()

# The seq and the line of consecutive entries.
JournalLines = Sequence[tuple[int, bytes]]


class Journal(Protocol):
    """Commits every entry, and the operations that belong to it, before its transcript is written."""

    async def commit(
        self, *operations: Operation, scope: str | None = None, on_done: OnCommitted | None = None
    ) -> None:
        """Return when they are durable. `on_done` is called once with the outcome, even if the caller was cancelled.

        Raises `HeldElsewhere` if this is a node of a cluster and does not own `scope`.
        """

    def unflushed_entries(self) -> AsyncIterator[tuple[str, list[tuple[int, bytes]]]]:
        """Yield the entries that were not dropped yet, by session and seq."""

    async def drop_entries(self, upto: Mapping[str, int]) -> None:
        """Drop the entries of each session up to the given seq: they are durable in their transcripts."""

    async def deletions(self) -> list[str]:
        """Return the keys of deleted sessions whose deletion is not finished."""

    async def purge(self, sessions: Collection[str]) -> list[str]:
        """Remove the last copies of the text of deleted sessions. Return the keys of those that have none left."""


def replay(disk: Disk, key: str, lines: JournalLines) -> int:
    """Append the `lines` that the transcript lacks, and return how many they were.

    Where the transcript differs from the journal, the journal is right; the differing bytes go to `<name>.corrupt`.
    If the transcript is gone, it is written again with the entries that the journal has.
    """
    first, _ = lines[0]
    path = disk.path(key)
    header = b""
    if first != 1:
        made = header_for(key, created=decode(lines[0][1]).ts, epoch=0, highest_number=parse_key(key)[1])
        header = encode(made)
    try:
        require_file(path)
    except NotAFile:
        set_aside(path)
    if not path.exists():
        if header:
            log.error("transcript_incomplete", session=key, restored=len(lines), first_seq=first)
        disk.append(key, header + b"".join(line for _, line in lines), is_new=True)
        return len(lines)
    end = path.stat().st_size
    # Find where the last entry before `first` ends. Damaged lines count as later ones, so they are replaced.
    for number, raw in enumerate(lines_backwards(path)):
        is_torn = number == 0  # The text after the last newline: empty, unless the last line is torn.
        if not is_torn:
            try:
                seq = decode(raw).seq
            except DamagedEntry:
                seq = sys.maxsize
            if seq < first:
                break
        end -= len(raw) + (0 if is_torn else 1)
    else:
        end = 0
    found = read_to_end(path, end)
    for number, (_, line) in enumerate(lines):
        if found.startswith(line):
            found, end = found[len(line) :], end + len(line)
            continue
        wanted = b"".join(line for _, line in lines[number:])
        if end == 0:  # No entry before these is left.
            wanted = header + wanted
        with opened(path) as descriptor:
            can_append = not found and starts_with_header(path, descriptor)
        if can_append:
            disk.append(key, wanted)
        else:
            if not wanted.startswith(found):
                save_damaged(path, found)
            disk.replace_end(key, end, wanted)
        return len(lines) - number
    return 0
