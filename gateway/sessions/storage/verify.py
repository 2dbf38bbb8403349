"""Read-only check of a sessions folder: reports damage and contradictions, and changes nothing."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from gateway.private_files import OTHERS, read_private
from gateway.sessions import index
from gateway.sessions.entries import FORMAT, Header, Unknown
from gateway.sessions.index import Scope
from gateway.sessions.keys import file_name
from gateway.sessions.storage.archive import ArchiveFiles, read_about, transcript_of
from gateway.sessions.storage.archived_transcript import DamagedArchive
from gateway.sessions.storage.codec import DamagedEntry, decode
from gateway.sessions.storage.transcript import lines_forwards

MAX_LISTED_PROBLEMS = 1000


class SessionProblem(Struct, frozen=True, kw_only=True):
    """`kind` is a constant word, `where` a file name or a session key, `detail` a sentence for the operator."""

    kind: str
    where: str
    detail: str


class VerifyReport(Struct, frozen=True, kw_only=True):
    """The result of a check. `problems` has the first thousand, `problem_count` counts all of them."""

    scopes: int
    transcripts: int
    entries: int
    unknown_entries: int
    problem_count: int
    problems: tuple[SessionProblem, ...]
    archived: int = 0
    """How many archived sessions were checked."""

    @property
    def is_sound(self) -> bool:
        return self.problem_count == 0


class _Version(msgspec.Struct):
    version: int


class _Check:
    """One run of `verify`, with its counters."""

    def __init__(self) -> None:
        self.transcripts = 0
        self.archived = 0
        self.entries = 0
        self.unknown = 0
        self.problem_count = 0
        self.problems: list[SessionProblem] = []

    def add(self, kind: str, where: str, detail: str) -> None:
        self.problem_count += 1
        if len(self.problems) < MAX_LISTED_PROBLEMS:
            self.problems.append(SessionProblem(kind=kind, where=where, detail=detail))

    def check_mode(self, path: Path) -> None:
        try:
            status = path.lstat()
        except FileNotFoundError:
            return
        mode = stat.S_IMODE(status.st_mode)
        if mode & OTHERS and not stat.S_ISLNK(status.st_mode):  # The mode of a link means nothing.
            self.add("open_to_others", path.name, f"Its mode is {mode:o}, so other users of this machine have access.")

    def check_lines(self, path: Path) -> None:
        last, number = 0, 0
        names_itself = False
        for number, line in enumerate(lines_forwards(path), 1):
            if number == 1:
                try:
                    version = msgspec.json.decode(line, type=_Version).version
                except (ValueError, RecursionError):
                    version = 0
                if version > FORMAT:
                    self.add("newer_version", path.name, f"It has format {version}; this Gatehouse reads {FORMAT}.")
                    return
            try:
                entry = decode(line.removesuffix(b"\n"))
            except DamagedEntry as damage:
                self.add("damaged_line", path.name, f"Line {number} is not an entry: {damage}.")
                continue
            self.entries += 1
            self.unknown += isinstance(entry, Unknown)
            names_itself |= file_name(getattr(entry, "key", "")) == path.name
            if number > 1 and last and entry.seq != last + 1:
                self.add("seq_gap", path.name, f"Line {number} has seq {entry.seq} after {last}.")
            last = max(last, entry.seq)
            if number == 1 and not isinstance(entry, Header):
                self.add("no_header", path.name, "The first line is not a header.")
            if not line.endswith(b"\n"):
                self.add("torn_line", path.name, "The last line is incomplete.")
        if not names_itself:
            self.add("not_a_transcript", path.name, "It doesn't name its session.")

    def check_archive(self, archive: ArchiveFiles) -> None:
        try:
            names = sorted(archive.names())
        except FileNotFoundError:
            return
        self.check_mode(archive.root)
        for name in names:
            path = archive.path_of(name)
            self.archived += 1
            self.check_mode(path)
            try:
                session = read_about(path)
                for _ in transcript_of(path):  # Its checksum is compared at the end.
                    pass
            except DamagedArchive as damage:
                self.add("damaged_archive", path.name, f"The archived session can't be restored: {damage}.")
            except OSError as error:
                self.add("unreadable", path.name, f"It can't be read: {error.strerror}.")
            else:
                if archive.path(session.key) != path:
                    self.add("damaged_archive", path.name, f"It contains {session.key}, which belongs elsewhere.")


def verify(index_path: Path, transcripts: Path, archive: ArchiveFiles | None = None) -> VerifyReport:
    """Compare the index with the transcripts, and read each transcript and each archived session whole."""
    check = _Check()
    with os.scandir(transcripts) as entries:
        kinds = {entry.name: entry.is_file(follow_symlinks=False) for entry in entries}
    files = sorted(name for name, is_file in kinds.items() if is_file)
    scopes: Mapping[str, Scope] = {}
    try:
        scopes = index.decode(read_private(index_path)).scopes
    except FileNotFoundError:
        if any(name.endswith(".jsonl") for name in files):
            check.add("no_index", index_path.name, "The index is missing. The next start rebuilds it.")
    except (OSError, ValueError, RecursionError) as error:
        check.add("bad_index", index_path.name, f"The index can't be read ({error}). The next start rebuilds it.")
    listed = {file_name(key): (key, state.size) for scope in scopes.values() for key, state in scope.sessions.items()}
    present = frozenset(kinds)
    for name in sorted(kinds.keys() - set(files)):
        if name.endswith(".jsonl"):
            check.add("not_a_file", name, "It is a link, a folder or a pipe. The next start sets it aside.")
    for path in (index_path.parent, transcripts, index_path):
        check.check_mode(path)
    for name in files:
        path = transcripts / name
        check.check_mode(path)
        if not name.endswith(".jsonl"):
            if ".corrupt" in name:
                check.add("set_aside", name, "It was damaged, and is kept for a person to look at.")
            continue
        check.transcripts += 1
        try:
            size = path.stat().st_size
            check.check_lines(path)
        except OSError as error:
            check.add("unreadable", name, f"It can't be read: {error.strerror}.")
            continue
        if name not in listed:
            check.add("orphan", name, "The index doesn't list it. The next start adds it.")
        elif listed[name][1] != size:
            key, listed_size = listed[name]
            check.add("stale_index", key, f"Its size is {size}, but the index says {listed_size}.")
    for name, (key, _) in listed.items():
        if name not in present:
            check.add("missing_transcript", key, f"The index lists it, but the file {name} is missing.")
    if archive is not None:
        check.check_archive(archive)
    return VerifyReport(
        scopes=len(scopes),
        archived=check.archived,
        transcripts=check.transcripts,
        entries=check.entries,
        unknown_entries=check.unknown,
        problem_count=check.problem_count,
        problems=tuple(check.problems),
    )
