"""The note tools: notes of one scope, remembered across all its conversations."""

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
from gateway.private_files import APPEND, DIRECTORY_MODE, open_private, read_private

log = structlog.get_logger()

_MAX_NOTES = 500
_MAX_NOTE_CHARS = 2_000
_MAX_RECALLED = 50


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    ts: datetime
    text: str


@tool
async def remember(context: ToolContext, text: str) -> str:
    """Save a note for this and later conversations with the same people."""
    text = text.strip()
    if not text:
        raise ToolFailed("There is nothing to remember: the text is empty.")
    if len(text) > _MAX_NOTE_CHARS:
        raise ToolFailed(f"A note can have at most {_MAX_NOTE_CHARS} characters. Remember a shorter version.")
    note = _Note(ts=context.now().astimezone(UTC), text=text)
    with _explain_os_errors("The note could not be saved"):
        return await asyncio.to_thread(_add, context.notes, note)


@tool(concurrent=True)
async def recall(
    context: ToolContext,
    query: Annotated[str, Meta(description="Words that are in the note; all notes without it.")] = "",
) -> str:
    """Look up saved notes, newest first."""
    with _explain_os_errors("The notes cannot be read"):
        notes = await asyncio.to_thread(_read, context.notes)
    words = query.casefold().split()
    found = [note for note in reversed(notes) if all(word in note.text.casefold() for word in words)]
    if not found:
        return f"No note contains {query!r}." if notes and words else "There are no notes yet."
    lines = [f"- {note.text} ({note.ts:%Y-%m-%d})" for note in found[:_MAX_RECALLED]]
    if len(found) > _MAX_RECALLED:
        lines.append(f"... and {len(found) - _MAX_RECALLED} older ones")
    return "\n".join(lines)


@contextmanager
def _explain_os_errors(failure: str) -> Iterator[None]:
    """Turn an error of the disk into `ToolFailed`, and log it: only the operator can fix it."""
    try:
        yield
    except OSError as error:
        log.warning("notes_unusable", file=error.filename, reason=error.strerror)
        reason = error.strerror or "the disk refused"
        raise ToolFailed(f"{failure}: {reason}. The operator can fix that.") from error


def load_notes(path: Path) -> list[str]:
    """Return the texts of all notes, oldest first. If they cannot be read, log that and return none."""
    try:
        return [note.text for note in _read(path)]
    except OSError as error:
        log.warning("notes_unusable", file=error.filename, reason=error.strerror)
        return []


def _read(path: Path) -> list[_Note]:
    """Return the notes, oldest first, without damaged lines. Their limits keep the file small."""
    try:
        lines = read_private(path).split(b"\n")
    except FileNotFoundError:
        return []
    notes: list[_Note] = []
    for line in lines:
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            notes.append(msgspec.json.decode(line, type=_Note))
    return notes


def _add(path: Path, note: _Note) -> str:
    line = msgspec.json.encode(note) + b"\n"
    with suppress(FileExistsError):  # If it is not a folder, opening it fails below.
        path.parent.mkdir(mode=DIRECTORY_MODE)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # Another turn of the same scope may be adding a note in another thread.
        fcntl.flock(folder, fcntl.LOCK_EX)
        notes = _read(path)
        if len(notes) >= _MAX_NOTES:
            kept = b"".join(msgspec.json.encode(each) + b"\n" for each in notes[1 - _MAX_NOTES :])
            write_atomically(path, kept + line)
            return f"Noted. The oldest note was dropped, because {_MAX_NOTES} notes are kept."
        with os.fdopen(open_private(path, APPEND | os.O_CREAT), "r+b") as file:
            size = file.seek(0, os.SEEK_END)
            # After a line that a crash has torn, start a new one, so that only the torn note is lost.
            is_torn = size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
            file.write(b"\n" + line if is_torn else line)
            file.flush()
            os.fsync(file.fileno())
        if size == 0:
            fsync_directory(path.parent)
        return "Noted."
    finally:
        os.close(folder)
