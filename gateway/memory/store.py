"""`MemoryStore`: reads and changes the memory files of one scope. All methods block.

A person may change the files with any editor while the daemon runs. So every change reads them first, under a lock of
the folder, and replaces one file at a time. If a file was saved by somebody else in that moment, the change starts
again. Damaged lines are copied aside before their file is written.
"""

import errno
import fcntl
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog
from msgspec import Struct
from msgspec.structs import replace

from config.files import fsync_directory, make_private_directory, write_atomically
from gateway.errors import Refused
from gateway.memory.statement import Archived, LastNumber, Other, Part, Statement, clean, parse, render, words
from gateway.private_files import read_private, require_file
from gateway.sessions.keys import file_name

log: structlog.stdlib.BoundLogger = structlog.get_logger()

MAX_STATEMENTS = 2_000
MAX_BYTES = 512 * 1024
"""Of all files of a scope. In a cluster, they are facts in the database as well."""
MAX_TEXT = 2_000
"""Characters of one statement."""
_MAX_FILES = 10_000
_MAX_ARCHIVED = 1_000
"""Sessions of which is known how far they are in the memory. The oldest are forgotten first."""
_MAX_FILE_BYTES = 1024 * 1024
"""Larger files are not read. Gatehouse writes none."""
_ASIDE = ".corrupted"
_NOTES = "notes.md"
"""Takes over the notes of older versions."""
_ATTEMPTS = 20
_BLOCK = re.compile(rb"[^\n]*(?:\n  [^\n]*)*(?:\n|\Z)")
"""A line of a memory file, and the indented lines after it that belong to it."""
_TEMPORARY = re.compile(r"\..+\.(?:md|jsonl|corrupted(?:-\d+)?)\.[a-z0-9_]{8}")
"""The names of files that `write_atomically` has begun. Those of editors look different."""


def memory_folder(data_dir: Path, scope: str) -> Path:
    """Return the folder with the memory of a scope."""
    return data_dir / "memory" / file_name(scope).removesuffix(".jsonl")


def write_memory_file(path: Path, content: bytes, *, before_rename: Callable[[], None] | None = None) -> None:
    """Replace a file in the folder of a scope. What a crash leaves is next to that folder, see `delete_leftovers`."""
    write_atomically(path, content, temporary_folder=path.parent.parent, before_rename=before_rename)


def delete_leftovers(data_dir: Path) -> None:
    """Delete files that a crash has cut while they were written. They may have text that was forgotten since.

    No other process may write memory files now. One listing is enough, however many scopes there are.
    """
    with suppress(FileNotFoundError):
        for name in os.listdir(data_dir / "memory"):  # noqa: PTH208 - thousands of names, and few match.
            if _TEMPORARY.fullmatch(name):
                (data_dir / "memory" / name).unlink(missing_ok=True)


class Memory(Struct, frozen=True, kw_only=True):
    """What the files of a scope say: its statements, oldest first."""

    statements: tuple[Statement, ...] = ()
    archived: tuple[Archived, ...] = ()
    problems: tuple[str, ...] = ()
    """Sentences about files that are damaged, for people."""

    def archived_upto(self, session_id: str, *, by_model: bool = False) -> Archived | None:
        """Return how far a session is in the memory; None if nothing of it is. `by_model`: without its outline."""
        found = [each for each in self.archived if each.id == session_id and not (by_model and each.is_outline)]
        return max(found, key=lambda each: (each.seq, not each.is_outline), default=None)


class ImportedMemory(Struct, frozen=True, kw_only=True):
    """Statements from another gateway. `name` is that of their file here. They are added once for each `mark`."""

    name: str
    mark: str
    statements: tuple[Statement, ...]


class Added(NamedTuple):
    """How many statements were new, and how many old ones made room for them."""

    new: int
    dropped: int


class _File(Struct):
    """A memory file as it was read. `stamp` tells whether it is still the same."""

    parts: list[Part]
    stamp: tuple[int, int, int] | None
    damaged: bytes = b""
    """Its content, if some of it is not text."""
    is_changed: bool = False
    is_empty: bool = False
    """Everything in it has moved to another file, so it is deleted."""


class _OldNote(Struct, frozen=True, kw_only=True):
    """A note as versions before the memory files stored it, one JSON object a line."""

    ts: datetime
    text: str


class _ChangedMeanwhile(Exception):
    """Somebody has saved a file since it was read."""


class MemoryStore:
    """The memory files in `folder`, which need not exist."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self) -> Memory:
        """Return the whole memory. Raises `OSError` if it cannot be read."""
        self._take_over_notes()
        return _memory(self.folder, self._files())

    def numbered(self) -> Memory:
        """Return the memory after every statement of a person has got its number."""
        memory = self.read()
        return self._change(lambda _files: None) if any(not each.number for each in memory.statements) else memory

    def add(self, statements: Sequence[Statement], *, day: str, archived: Archived | None = None) -> Added:
        """Add statements to the file of a day, except for known ones, which get the new sources.

        `archived` is written with them. It also replaces the outline of its session. An outline replaces only another
        one: up to where a model has read the session stays known.
        """
        self._take_over_notes()
        return self._add(statements, f"{day}.md", archived)

    def import_statements(self, memory: ImportedMemory) -> int:
        """Add the statements of another gateway, unless that was done before. Return how many are new.

        The mark stays when a person forgets them, so that they do not come back.
        """
        if not re.fullmatch(r"[a-z0-9-]{1,64}", memory.name) or not re.fullmatch(r"[a-z0-9-]{1,64}", memory.mark):
            raise Refused("The name and the mark have letters, digits and hyphens only.")
        mark = Other(f"<!-- imported: {memory.mark} -->")
        statements = [replace(each, text=clean(each.text)[:MAX_TEXT]) for each in memory.statements]
        self._take_over_notes()
        new = 0

        def change(files: dict[str, _File]) -> None:
            nonlocal new
            new = 0
            if any(mark in file.parts for file in files.values()):
                return
            name = f"{memory.name}.md"
            new = _merge(files, [each for each in statements if each.text], name, None).new
            files[name].parts.append(mark)

        self._open_folder()
        self._change(change, last=f"{memory.name}.md")
        return new

    def forget(self, number: int) -> Statement:
        """Remove a statement and return it. Raises `Refused` if there is none of that number."""
        forgotten = self._replace(number, None)
        self.forget_copies(number)
        return forgotten

    def forget_copies(self, number: int) -> None:
        """Remove a statement from damaged files that were kept. Its number is that of no other statement."""
        self._clean_copies(re.compile(rb"[-*+] +\[%d\]" % number).match)

    def edit(self, number: int, text: str) -> Statement:
        """Change the text of a statement, and return the old one. Raises `Refused` if there is none of that number."""
        text = clean(text)
        if not text or len(text) > MAX_TEXT:
            raise Refused(f"A statement has 1 to {MAX_TEXT} characters. Please send a shorter one.")
        return self._replace(number, text)

    def forget_session(self, number: int, session_id: str = "", *, since: str = "") -> None:
        """Remove everything that only this session has said, even from damaged files that were kept.

        With `since`, files of earlier days stay: they are about a session that had the same number before.
        """
        if not self.folder.exists():
            return
        known = self.read().archived_upto(session_id)
        session = number if known is None else known.session  # It has another number since it was moved.

        def remove(files: dict[str, _File]) -> None:
            for name, file in files.items():
                if since and re.match(r"\d{4}-\d{2}-\d{2}", name) and name[:10] < since:
                    continue
                for at, part in reversed([*enumerate(file.parts)]):
                    if isinstance(part, Archived) and part.session == session:
                        del file.parts[at]
                        file.is_changed = True
                    elif isinstance(part, Statement) and any(each.session == session for each in part.sources):
                        sources = tuple(each for each in part.sources if each.session != session)
                        file.is_changed = True
                        if sources or part.noted:
                            file.parts[at] = replace(part, sources=sources)
                        else:
                            del file.parts[at]

        self._change(remove)
        self._clean_copies(re.compile(rb"session %d, seq " % session).search)

    def _clean_copies(self, is_gone: Callable[[bytes], object]) -> None:
        """Remove items with their indented lines from damaged files that were kept."""
        for path in sorted(self.folder.glob(f"*{_ASIDE}*")):
            content = read_private(path)
            kept = b"".join(block for block in _BLOCK.findall(content) if not is_gone(block))
            if kept != content:
                write_memory_file(path, kept)

    def _replace(self, number: int, text: str | None) -> Statement:
        found: list[Statement] = []

        def change(files: dict[str, _File]) -> None:
            found.clear()
            for file in files.values():
                for at, part in enumerate(file.parts):
                    if isinstance(part, Statement) and part.number == number:
                        found.append(part)
                        file.is_changed = True
                        if text is not None:
                            file.parts[at] = replace(part, text=text, is_outline=False)
                        else:
                            del file.parts[at]
                        return
            raise Refused(f"There is no statement {number} here. /memory shows the numbers.")

        self._take_over_notes()
        if not self.folder.exists():
            raise Refused("There is nothing in the memory of this chat yet.")
        self._change(change)
        return found[0]

    def _add(self, statements: Sequence[Statement], name: str, archived: Archived | None) -> Added:
        counts = Added(0, 0)

        def change(files: dict[str, _File]) -> None:
            nonlocal counts
            counts = _merge(files, statements, name, archived)

        self._open_folder()
        self._change(change, last=name)
        return counts

    def _open_folder(self) -> None:
        try:
            make_private_directory(self.folder)
        except FileExistsError as error:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), error.filename) from error

    def _change(self, change: Callable[[dict[str, _File]], None], *, last: str = "") -> Memory:
        """Read all files, change them, and write those that have changed: `last` at the end, which completes it."""
        with self.locked():
            for attempt in range(_ATTEMPTS):
                files = self._files()
                number = _highest_number(files)
                change(files)
                _give_numbers(files, number)
                try:
                    for each in sorted(files, key=lambda each: (files[each].is_empty, each == last, each)):
                        if files[each].is_empty:
                            (self.folder / each).unlink(missing_ok=True)
                        elif files[each].is_changed:
                            self._write(each, files[each])
                except _ChangedMeanwhile:
                    if attempt == _ATTEMPTS - 1:
                        raise Refused("The memory files are being changed all the time. Try again later.") from None
                    continue
                return _memory(self.folder, files)
            raise AssertionError("the last attempt returns or raises")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let nobody else of ours write the files. Editors of people know nothing of this lock."""
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def _files(self) -> dict[str, _File]:
        """Return all memory files by name. Hidden files are those of editors."""
        try:
            names = sorted(each.name for each in self.folder.iterdir() if each.suffix == ".md" and each.name[0] != ".")
        except FileNotFoundError:
            return {}
        return {name: file for name in names[-_MAX_FILES:] if (file := _read(self.folder / name)) is not None}

    def _write(self, name: str, file: _File) -> None:
        path = self.folder / name

        def require_unchanged() -> None:
            if _stamp(path) == file.stamp:
                return
            require_file(path)
            if file.stamp is None and path.stat().st_size > _MAX_FILE_BYTES:
                raise Refused(f"The memory file {name} is too large. Move some of it to another file.")
            raise _ChangedMeanwhile

        require_unchanged()
        if file.damaged:
            _keep_aside(path, file.damaged)
            log.warning("memory_file_damaged", file=str(path))
        # Once more after the fsync: a slow disk gives a person time to save the file.
        write_memory_file(path, render(file.parts).encode(), before_rename=require_unchanged)
        file.stamp, file.damaged, file.is_changed = _stamp(path), b"", False

    def _take_over_notes(self) -> None:
        """Move the notes of an older version into a memory file, once. After a crash, the rest is done again."""
        old = self.folder.with_name(f"{self.folder.name}.jsonl")
        if not os.path.lexists(old):
            return
        content = read_private(old)
        statements, damaged = [], False
        for line in content.split(b"\n"):
            try:
                note = msgspec.json.decode(line, type=_OldNote)
            except (msgspec.DecodeError, UnicodeDecodeError):
                damaged = damaged or bool(line.strip())
                continue
            statements.append(Statement(text=clean(note.text)[:MAX_TEXT], noted=f"{note.ts:%Y-%m-%d}"))
        self._add([each for each in statements if each.text], _NOTES, None)
        if damaged:
            _keep_aside(self.folder / old.name, content)
        with suppress(FileNotFoundError):
            old.unlink()
        fsync_directory(old.parent)
        log.info("notes_taken_over", file=str(old), notes=len(statements))


def _merge(files: dict[str, _File], statements: Sequence[Statement], name: str, archived: Archived | None) -> Added:
    """Add statements to the file `name`. A statement that is known gets the new sources."""
    target = files.setdefault(name, _File([Other(f"# {name.removesuffix('.md')}"), Other("")], None))
    target.is_changed = True
    if archived is not None:
        for file in files.values():
            for at, part in reversed([*enumerate(file.parts)]):
                is_outline = isinstance(part, Statement) and part.is_outline
                is_of_it = is_outline and [each.session for each in part.sources] == [archived.session]  # type: ignore[union-attr]  # Statement
                is_overtaken = isinstance(part, Archived) and part.id == archived.id
                if isinstance(part, Archived) and archived.is_outline and not part.is_outline:
                    is_overtaken = False
                if is_of_it or is_overtaken:
                    del file.parts[at]
                    file.is_changed = True
    known = {
        words(part.text): (file, at)
        for file in files.values()
        for at, part in enumerate(file.parts)
        if isinstance(part, Statement)
    }
    new = 0
    for statement in statements:
        key = words(statement.text)
        if key in known:
            file, at = known[key]
            part = file.parts[at]
            assert isinstance(part, Statement), "only statements are in the dict"  # noqa: S101 - for mypy.
            sources = tuple(sorted({*part.sources, *statement.sources}))
            if sources != part.sources:
                file.parts[at] = replace(part, sources=sources)
                file.is_changed = True
            continue
        known[key] = (target, len(target.parts))
        target.parts.append(replace(statement, number=0, file=name))
        new += 1
    if archived is not None:
        target.parts.append(archived)
    dropped = _drop_oldest(files)
    _tidy_up(files, target)
    return Added(new, dropped)


def _tidy_up(files: dict[str, _File], target: _File) -> None:
    """Move the comments of files without statements to the `target`, so that no scope has files without end."""
    for file in files.values():
        others = [part.line for part in file.parts if isinstance(part, Other) and part.line.strip()]
        is_ours = not others or (len(others) == 1 and others[0].startswith("# "))
        if file is target or file.damaged or not is_ours or any(isinstance(part, Statement) for part in file.parts):
            continue
        target.parts += [part for part in file.parts if not isinstance(part, Other)]
        file.is_empty = True
    marks = [part for part in target.parts if isinstance(part, Archived)]
    for mark in sorted(marks, key=lambda each: each.session)[: max(0, len(marks) - _MAX_ARCHIVED)]:
        target.parts.remove(mark)


def _drop_oldest(files: dict[str, _File]) -> int:
    """Remove the oldest statements beyond the limits of a scope. Returns how many."""
    found = [
        (part.number or MAX_STATEMENTS * 10**6, len(part.rendered().encode()) + 1, file, part)
        for file in files.values()
        for part in file.parts
        if isinstance(part, Statement)
    ]
    found.sort(key=lambda each: each[0])
    total, dropped = sum(each[1] for each in found), 0
    for _, size, file, part in found:
        if len(found) - dropped <= MAX_STATEMENTS and total <= MAX_BYTES:
            break
        file.parts.remove(part)
        file.is_changed = True
        total, dropped = total - size, dropped + 1
    return dropped


def _highest_number(files: dict[str, _File]) -> int:
    numbers = [
        part.number for file in files.values() for part in file.parts if isinstance(part, Statement | LastNumber)
    ]
    return max(numbers, default=0)


def _give_numbers(files: dict[str, _File], highest: int) -> None:
    """Give a number to each statement without one of its own. `highest` is that before the change."""
    used: set[int] = set()
    last = highest
    for file in files.values():
        for at, part in enumerate(file.parts):
            if isinstance(part, Statement):
                if not part.number or part.number in used:  # A person may have copied a line.
                    last += 1
                    file.parts[at] = replace(part, number=last)
                    file.is_changed = True
                used.add(part.number or last)
    if last == highest and highest and highest not in used:
        kept = [file for file in files.values() if not file.is_empty]
        marks = [part.number for file in kept for part in file.parts if isinstance(part, LastNumber)]
        changed = next((file for file in files.values() if file.is_changed), None)
        if highest not in marks and changed is not None:
            changed.parts[:] = [part for part in changed.parts if not isinstance(part, LastNumber)]
            changed.parts.append(LastNumber(highest))


def _memory(folder: Path, files: dict[str, _File]) -> Memory:
    statements = [part for file in files.values() for part in file.parts if isinstance(part, Statement)]
    # A statement without a number was written by a person since the last change.
    statements.sort(key=lambda each: each.number or 10**9)
    problems = [
        f"{name} has lines that are not text. The others are used, and the next change keeps a copy of the file."
        for name, file in files.items()
        if file.damaged
    ]
    with suppress(FileNotFoundError):
        for name in sorted(each.name for each in folder.iterdir()):
            if _ASIDE in name:
                problems.append(f"{name} is a copy of a damaged file. Repair it by hand, or delete it.")
            elif name.endswith(".md") and name[0] != "." and name not in files:
                problems.append(f"{name} is not used: it is not a file, cannot be read, or has more than 1 MB.")
    return Memory(
        statements=tuple(statements),
        archived=tuple(part for file in files.values() for part in file.parts if isinstance(part, Archived)),
        problems=tuple(problems),
    )


def _read(path: Path) -> _File | None:
    """Read a memory file; None if it is gone or cannot be used. It is never changed then."""
    try:
        stamp = _stamp(path)
        if stamp is None or stamp[1] > _MAX_FILE_BYTES:
            return None
        content = read_private(path)
    except OSError as error:
        log.warning("memory_file_unusable", file=str(path), reason=error.strerror)
        return None
    try:
        text, damaged = content.decode(), b""
    except UnicodeDecodeError:
        damaged = content
        text = "\n".join(line for line in map(_decoded, content.split(b"\n")) if line is not None)
    return _File(parse(text, file=path.name), stamp, damaged)


def _decoded(line: bytes) -> str | None:
    try:
        return line.decode()
    except UnicodeDecodeError:
        return None


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _keep_aside(path: Path, content: bytes) -> None:
    """Write a copy of a damaged file next to it, for a person to look at. A second copy of the same is not made."""
    number = 1
    while True:
        copy = path.with_name(f"{path.name}{_ASIDE}" if number == 1 else f"{path.name}{_ASIDE}-{number}")
        if not os.path.lexists(copy):
            write_memory_file(copy, content)
            return
        if copy.is_file() and not copy.is_symlink() and read_private(copy) == content:
            return
        number += 1
