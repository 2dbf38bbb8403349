"""The write-ahead log of the transcripts, as the sessions see it, and putting back what a crash kept from a file."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import structlog

from gateway.sessions.storage.codec import DamagedEntry, decode
from gateway.sessions.storage.disk import Disk
from gateway.sessions.storage.transcript import lines_backwards, read_to_end, save_damaged
from gateway.spool import OnCommitted, Operation

__all__ = ["Journal", "replay"]

log: structlog.stdlib.BoundLogger = structlog.get_logger()

JournalLines = Sequence[tuple[int, bytes]]
"""Entries by their seq, without a gap."""


class Journal(Protocol):
    """Where every entry is committed before it is written to its transcript, with whatever belongs to it."""

    async def commit(self, *operations: Operation, on_done: OnCommitted | None = None) -> None:
        """Return when they are durable. `on_done` is called once with the outcome, even if the caller was cancelled."""

    def unflushed_entries(self) -> AsyncIterator[tuple[str, list[tuple[int, bytes]]]]:
        """Yield what no flush has made durable yet, by session and seq."""

    async def drop_entries(self, upto: Mapping[str, int]) -> None:
        """Drop the entries of each session up to the given seq."""


def replay(disk: Disk, key: str, noted: JournalLines) -> int:
    """Append what the transcript lacks of `noted`; return how many entries that were.

    Where the file says something else than the journal, the journal is right; what the file said is kept aside.
    """
    first, _ = noted[0]
    path = disk.path(key)
    if not path.exists():
        if first != 1:
            log.warning("entries_without_session", session=key, count=len(noted))
            return 0
        disk.append(key, _joined(noted), is_new=True)
        return len(noted)
    end = _end_before(path, first)
    found = read_to_end(path, end)
    for number, (_, line) in enumerate(noted):
        if not found.startswith(line):
            _put_right(disk, key, end, found, noted[number:])
            return len(noted) - number
        found, end = found[len(line) :], end + len(line)
    return 0


def _put_right(disk: Disk, key: str, end: int, found: bytes, rest: JournalLines) -> None:
    """Have `rest` stand behind the first `end` bytes, in place of what was `found` there."""
    wanted = _joined(rest)
    if not found:
        disk.append(key, wanted)
        return
    if not wanted.startswith(found):
        save_damaged(disk.path(key), found)
    disk.replace_end(key, end, wanted)


def _end_before(path: Path, first: int) -> int:
    """Return where the last entry before `first` ends; damaged lines behind it do not count."""
    end = os.stat(path).st_size  # noqa: PTH116 - as the reader below does it
    for number, raw in enumerate(lines_backwards(path)):
        is_torn = number == 0  # Empty where the file ends on a newline, as it should.
        begin = end - len(raw) - (0 if is_torn else 1)
        if not is_torn and _seq(raw) < first:
            return end
        end = begin
    return 0


def _seq(raw: bytes) -> int:
    """Return the seq of an entry; of a damaged one, more than any."""
    try:
        return decode(raw).seq
    except DamagedEntry:
        return sys.maxsize


def _joined(noted: JournalLines) -> bytes:
    return b"".join(line for _, line in noted)
