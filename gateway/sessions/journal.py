"""The write-ahead log of the transcripts, as the sessions see it, and putting back what a crash kept from a file."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from gateway.sessions import transcript
from gateway.sessions.disk import Disk
from gateway.sessions.entries import Damaged, decode
from gateway.spool import Operation

__all__ = ["Journal", "catch_up"]

log: structlog.stdlib.BoundLogger = structlog.get_logger()

Noted = Sequence[tuple[int, bytes]]
"""Entries by their seq, without a gap."""


class Journal(Protocol):
    """Where every entry is committed before it is written to its transcript, with whatever belongs to it."""

    async def commit(self, *operations: Operation) -> None: ...

    def noted(self) -> AsyncIterator[tuple[str, list[tuple[int, bytes]]]]:
        """Yield what no flush has made durable yet, by session and seq."""

    async def forget(self, upto: Mapping[str, int]) -> None:
        """Drop the entries of each session up to the given seq."""


def catch_up(disk: Disk, key: str, noted: Noted) -> int:
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
    known = {line.seq: line for line in _lines_since(path, first)}
    missing = [(seq, line) for seq, line in noted if seq not in known or known[seq].data != line]
    if not missing:
        return 0
    start, _ = missing[0]
    wrong = [line for line in known.values() if line.seq >= start]
    if not wrong:
        disk.append(key, _joined(missing))
        return len(missing)
    rest = [(seq, line) for seq, line in noted if seq >= start]
    transcript.keep_aside(path, b"".join(line.data for line in sorted(wrong, key=lambda line: line.at)))
    transcript.rebuild(path, min(line.at for line in wrong), _joined(rest), disk.fsync)
    return len(rest)


@dataclass(frozen=True, slots=True)
class _Line:
    seq: int
    at: int
    """Where in the file it begins."""
    data: bytes


def _lines_since(path: Path, first: int) -> list[_Line]:
    """Return the whole lines from the entry `first` on; damaged ones are passed over."""
    end = os.stat(path).st_size  # noqa: PTH116 - as the reader below does it
    lines: list[_Line] = []
    for number, raw in enumerate(transcript.lines_backwards(path)):
        is_torn = number == 0
        at = end - len(raw) - (0 if is_torn else 1)
        end = at
        if is_torn:
            continue  # Empty where the file ends on a newline, as it should.
        try:
            seq = decode(raw).seq
        except Damaged:
            continue
        if seq < first:
            break
        lines.append(_Line(seq, at, raw + b"\n"))
    return lines


def _joined(noted: Noted) -> bytes:
    return b"".join(line for _, line in noted)
