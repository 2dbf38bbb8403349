"""Looking over the files of a sessions folder: what does not agree is told, and nothing is changed."""

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from gateway.private_files import OTHERS
from gateway.sessions import index
from gateway.sessions.entries import FORMAT, Header, Unknown
from gateway.sessions.keys import file_name
from gateway.sessions.storage.codec import DamagedEntry, decode
from gateway.sessions.storage.transcript import lines_forwards

__all__ = ["Problem", "VerifyReport", "verify"]

_LISTED = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """`kind` is a constant word; `where` a file's name or a session key; `detail` a sentence for the operator."""

    kind: str
    where: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What was looked at, and the first thousand `problems`; `problem_count` has them all."""

    scopes: int
    transcripts: int
    entries: int
    unknown_entries: int
    problem_count: int
    problems: tuple[Problem, ...]

    @property
    def is_sound(self) -> bool:
        return self.problem_count == 0


@dataclass(slots=True)
class _Tally:
    scopes: int = 0
    transcripts: int = 0
    entries: int = 0
    unknown: int = 0
    count: int = 0
    problems: list[Problem] = field(default_factory=list)

    def note(self, kind: str, where: str, detail: str) -> None:
        self.count += 1
        if len(self.problems) < _LISTED:
            self.problems.append(Problem(kind=kind, where=where, detail=detail))

    def report(self) -> VerifyReport:
        return VerifyReport(
            scopes=self.scopes,
            transcripts=self.transcripts,
            entries=self.entries,
            unknown_entries=self.unknown,
            problem_count=self.count,
            problems=tuple(self.problems),
        )


def verify(index_path: Path, transcripts: Path) -> VerifyReport:
    """Compare the index with the transcripts, and read each of them whole."""
    tally = _Tally()
    with os.scandir(transcripts) as entries:
        files = sorted(entry.name for entry in entries if entry.is_file(follow_symlinks=False))
    listed = _listed(index_path, tally, is_needed=any(name.endswith(".jsonl") for name in files))
    for path in (index_path.parent, transcripts, index_path):
        _check_mode(path, tally)
    for name in files:
        _check_file(transcripts / name, listed, tally)
    for name, (key, _) in listed.items():
        if name not in files:
            tally.note("missing_transcript", key, f"The index lists it, but there is no file {name}.")
    return tally.report()


def _listed(path: Path, tally: _Tally, *, is_needed: bool) -> dict[str, tuple[str, int]]:
    """Return what the index lists: key and size by file name. Where there are no transcripts, none is needed."""
    try:
        scopes = index.decode(path.read_bytes()).scopes
    except FileNotFoundError:
        if is_needed:
            tally.note("no_index", path.name, "There is no index. The next start builds it anew.")
        return {}
    except (OSError, ValueError, RecursionError) as trouble:
        tally.note("bad_index", path.name, f"The index cannot be read ({trouble}). The next start builds it anew.")
        return {}
    tally.scopes = len(scopes)
    return {file_name(key): (key, state.size) for scope in scopes.values() for key, state in scope.sessions.items()}


def _check_mode(path: Path, tally: _Tally) -> None:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return
    if mode & OTHERS:
        tally.note("open_to_others", path.name, f"Its mode is {mode:o}; other users of this machine can get at it.")


def _check_file(path: Path, listed: dict[str, tuple[str, int]], tally: _Tally) -> None:
    _check_mode(path, tally)
    if not path.name.endswith(".jsonl"):
        if ".corrupt" in path.name:
            tally.note("set_aside", path.name, "It was damaged and is kept for a person to look at.")
        return
    tally.transcripts += 1
    try:
        size = path.stat().st_size
        _check_lines(path, tally)
    except OSError as trouble:
        tally.note("unreadable", path.name, f"It cannot be read: {trouble.strerror}.")
        return
    if path.name not in listed:
        tally.note("orphan", path.name, "The index does not list it. The next start adopts it.")
    elif listed[path.name][1] != size:
        tally.note(
            "stale_index", listed[path.name][0], f"The index has its size as {listed[path.name][1]}, not {size}."
        )


def _check_lines(path: Path, tally: _Tally) -> None:
    last, number = 0, 0
    names_itself = False
    for number, line in enumerate(lines_forwards(path), 1):
        if number == 1 and (newer := _newer(line)):
            tally.note("newer_version", path.name, f"It has format {newer}; this Gatehouse reads {FORMAT}.")
            return
        try:
            entry = decode(line.removesuffix(b"\n"))
        except DamagedEntry as damage:
            tally.note("damaged_line", path.name, f"Line {number} is no entry: {damage}.")
            continue
        tally.entries += 1
        tally.unknown += isinstance(entry, Unknown)
        names_itself |= file_name(getattr(entry, "key", "")) == path.name
        if number > 1 and last and entry.seq != last + 1:
            tally.note("seq_gap", path.name, f"Line {number} has seq {entry.seq} after {last}.")
        last = max(last, entry.seq)
        if number == 1 and not isinstance(entry, Header):
            tally.note("no_header", path.name, "The first line is no header.")
        if not line.endswith(b"\n"):
            tally.note("torn_line", path.name, "The last line does not end.")
    if not names_itself:
        tally.note("not_a_transcript", path.name, "It does not say which session it holds.")


class _Version(msgspec.Struct):
    version: int


def _newer(line: bytes) -> int | None:
    try:
        version = msgspec.json.decode(line, type=_Version).version
    except (ValueError, RecursionError):
        return None
    return version if version > FORMAT else None
