"""The notes of one scope: what a person asked to be remembered, across all their conversations there."""

import asyncio
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import structlog
from msgspec import Meta

from config.files import fsync_directory, write_atomically
from gateway.agent.tools import ToolContext, ToolFailed, tool
from gateway.private_files import APPEND, DIRECTORY_MODE, open_private

__all__ = ["load_notes", "recall", "remember"]

log = structlog.get_logger()

_MAX_NOTES = 500
_MAX_NOTE_CHARS = 2_000
_MAX_RECALLED = 50


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    ts: datetime
    text: str


@tool
async def remember(context: ToolContext, text: str) -> str:
    """Keep a note, to be recalled in this or a later conversation with the same people."""
    text = text.strip()
    if not text:
        raise ToolFailed("There is nothing to remember: the text is empty.")
    if len(text) > _MAX_NOTE_CHARS:
        raise ToolFailed(f"A note can have at most {_MAX_NOTE_CHARS} characters. Remember a shorter version.")
    note = _Note(ts=context.now().astimezone(UTC), text=text)
    with _trouble_told("The note could not be kept"):
        return await asyncio.to_thread(_keep, context.notes, note)


@tool(concurrent=True)
async def recall(
    context: ToolContext,
    query: Annotated[str, Meta(description="Words that are in the note; all notes without it.")] = "",
) -> str:
    """Look up the notes that were kept, newest first."""
    with _trouble_told("The notes cannot be read"):
        notes = await asyncio.to_thread(_load, context.notes)
    words = query.casefold().split()
    found = [note for note in reversed(notes) if all(word in note.text.casefold() for word in words)]
    if not found:
        return f"No note contains {query!r}." if notes and words else "There are no notes yet."
    lines = [f"- {note.text} ({note.ts:%Y-%m-%d})" for note in found[:_MAX_RECALLED]]
    if len(found) > _MAX_RECALLED:
        lines.append(f"... and {len(found) - _MAX_RECALLED} older ones")
    return "\n".join(lines)


@contextmanager
def _trouble_told(what: str) -> Iterator[None]:
    """Say what the disk says: a full one, or a file where the folder should be, is for the operator to mend."""
    try:
        yield
    except OSError as trouble:
        log.warning("notes_unusable", file=trouble.filename, reason=trouble.strerror)
        raise ToolFailed(f"{what}: {trouble.strerror or 'the disk refused'}. The operator can mend that.") from trouble


def load_notes(path: Path) -> list[str]:
    """Return the texts of all notes, oldest first; none where they cannot be read, as one who recalls them is told."""
    try:
        return [note.text for note in _load(path)]
    except OSError as trouble:
        log.warning("notes_unusable", file=trouble.filename, reason=trouble.strerror)
        return []


def _keep(path: Path, note: _Note) -> str:
    with suppress(FileExistsError):  # Whether it is a folder shows below.
        path.parent.mkdir(mode=DIRECTORY_MODE)
    with _alone_in(path.parent):
        notes = _load(path)
        if len(notes) < _MAX_NOTES:
            _append(path, note)
            return "Noted."
        write_atomically(path, b"".join(map(_line, [*notes[1 - _MAX_NOTES :], note])))
    return f"Noted. The oldest note gave way, since {_MAX_NOTES} are kept."


def _append(path: Path, note: _Note) -> None:
    """Add a line durably. After a torn line it starts a new one, so that only the torn note is lost."""
    descriptor = open_private(path, APPEND | os.O_CREAT)
    with os.fdopen(descriptor, "r+b") as file:
        is_new = file.seek(0, os.SEEK_END) == 0
        file.write((b"" if is_new or _ends_a_line(file.fileno()) else b"\n") + _line(note))
        file.flush()
        os.fsync(file.fileno())
    if is_new:
        fsync_directory(path.parent)


def _ends_a_line(descriptor: int) -> bool:
    return os.pread(descriptor, 1, os.fstat(descriptor).st_size - 1) == b"\n"


def _load(path: Path) -> list[_Note]:
    """Read the notes, oldest first. A damaged line costs that line only. The limits keep the file small."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    return [note for line in lines if (note := _parse(line))]


def _parse(line: bytes) -> _Note | None:
    try:
        return msgspec.json.decode(line, type=_Note)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _line(note: _Note) -> bytes:
    return msgspec.json.encode(note) + b"\n"


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold the folder against other turns of the same scope, which may be keeping a note in another thread."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
