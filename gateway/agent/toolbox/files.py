"""Looking at the files of the workspace."""

import asyncio
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path
from secrets import token_hex
from time import monotonic
from typing import Annotated, BinaryIO

from msgspec import Meta

from gateway.agent.toolbox.workspace import explain_os_errors, open_child, open_inside, open_parent
from gateway.agent.tools import ToolContext, ToolFailed, tool
from gateway.private_files import CREATE, FILE_MODE, open_private
from gateway.text import excerpt

_MAX_ENTRIES = 500
_MAX_SEEN = 20_000
_MAX_BYTES = 48_000
"""Of a file at once: with the line about the rest it fits into what any tool may say."""
_MAX_SKIPPED = 50_000_000
_CHUNK = 65_536


@tool(concurrent=True)
async def list_files(context: ToolContext, path: str = ".") -> str:
    """List a folder of the workspace."""
    return await asyncio.to_thread(_list, context.workspace, path)


@tool(concurrent=True)
async def read_file(context: ToolContext, path: str, first_line: Annotated[int, Meta(ge=1)] = 1) -> str:
    """Read a text file of the workspace."""
    return await asyncio.to_thread(_read, context.workspace, path, first_line)


def _list(workspace: Path, path: str) -> str:
    with open_inside(workspace, path, os.O_DIRECTORY) as folder, os.scandir(folder) as found:
        names = sorted(entry.name for entry in islice(found, _MAX_SEEN))
        lines = [_entry(folder, name) for name in names[:_MAX_ENTRIES]]
    if len(names) > _MAX_ENTRIES:
        lines.append(f"... and {len(names) - _MAX_ENTRIES} more. Use search_files to find one by its name.")
    return "\n".join(lines) or "The folder is empty."


def _entry(folder: int, name: str) -> str:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return f"{name} (just removed)"
    if stat.S_ISDIR(found.st_mode):
        return f"{name}/"
    return f"{name} ({found.st_size} bytes)" if stat.S_ISREG(found.st_mode) else name


def _read(workspace: Path, path: str, first_line: int) -> str:
    with open_inside(workspace, path) as descriptor:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ToolFailed(f"{path!r} is not a file. Use list_files to look into a folder.")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            _skip(file, first_line - 1, path)
            content = file.read(_MAX_BYTES)
            has_more = bool(file.peek(1))
    if b"\0" in content:
        raise ToolFailed(f"{path!r} is a binary file of {found.st_size} bytes and cannot be shown as text.")
    return _shown(content, first_line) if has_more else content.decode(errors="replace")


def _skip(file: BinaryIO, lines: int, path: str) -> None:
    """Go forward by whole lines, within reason: a file may have no line break in it, or no end."""
    seen = 0
    while lines and file.tell() < _MAX_SKIPPED:
        line = file.readline(_CHUNK)
        if not line:
            raise ToolFailed(f"{path!r} has only {seen} lines.")
        if line.endswith(b"\n"):
            lines -= 1
            seen += 1
    if lines:
        raise ToolFailed(f"Line {seen + lines + 1} of {path!r} is too far down to be read with this tool.")


def _shown(content: bytes, first_line: int) -> str:
    """Cut after the last whole line, and say how to go on; a line too long to be shown whole is cut in itself."""
    whole, newline, _ = content.rpartition(b"\n")
    if not newline:
        return f"{content.decode(errors='replace')}\n[Cut: line {first_line} is longer than can be shown.]"
    next_line = first_line + whole.count(b"\n") + 1
    return f"{whole.decode(errors='replace')}\n[Cut: there is more. Go on with first_line={next_line}.]"


_MAX_EDITED_BYTES = 2_000_000


@tool
async def write_file(context: ToolContext, path: str, content: str) -> str:
    """Write a text file of the workspace, whole; folders are made as needed."""
    data = content.encode()
    await asyncio.to_thread(_write, context.workspace, path, data)
    return f"Written: {len(data)} bytes."


@tool
async def edit_file(context: ToolContext, path: str, old: str, new: str, every: bool = False) -> str:  # noqa: FBT001, FBT002 - the model names it.
    """Replace text in a file of the workspace: the one place where `old` is found, or every one."""
    if not old:
        raise ToolFailed("`old` is empty. Use write_file to write a file whole.")
    return await asyncio.to_thread(_edit, context.workspace, path, old, new, every=every)


def _write(workspace: Path, path: str, data: bytes, seen: os.stat_result | None = None) -> None:
    """Put `data` in place of the file; with `seen`, only if that is still what is there."""
    with open_parent(workspace, path) as (folder, name), explain_os_errors(path):
        there = _there(folder, name)
        if there and not stat.S_ISREG(there.st_mode):
            raise ToolFailed(f"{path!r} is there already, and is not a file.")
        if seen and (there is None or _version(there) != _version(seen)):
            raise ToolFailed(f"{path!r} was changed by somebody else meanwhile. Read it again.")
        _replace(folder, name, data, mode=stat.S_IMODE(there.st_mode) & 0o777 if there else FILE_MODE)


def _replace(folder: int, name: str, data: bytes, *, mode: int) -> None:
    temporary = f".{token_hex(8)}.tmp"
    descriptor = open_private(temporary, CREATE, directory=folder)
    with ExitStack() as undoing:
        undoing.callback(_discard, folder, temporary)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        undoing.pop_all()
    os.fsync(folder)


def _discard(folder: int, name: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def _edit(workspace: Path, path: str, old: str, new: str, *, every: bool) -> str:
    text, seen = _text_of(workspace, path)
    if "\r\n" in text and "\r\n" not in old:  # Models write plain line ends, whatever the file has.
        old, new = old.replace("\n", "\r\n"), new.replace("\r\n", "\n").replace("\n", "\r\n")
    count = text.count(old)
    if not count:
        raise ToolFailed(f"`old` is not in {path!r}. Read the file and copy the text exactly, with its spaces.")
    if count > 1 and not every:
        raise ToolFailed(f"`old` is in {path!r} {count} times. Give more of what surrounds it, or set every=true.")
    if len(text) + count * (len(new) - len(old)) > _MAX_EDITED_BYTES:
        raise ToolFailed(f"{path!r} would become too big: at most {_MAX_EDITED_BYTES} bytes can be edited.")
    _write(workspace, path, text.replace(old, new).encode(), seen)
    return f"Replaced {count} time{'s' if count > 1 else ''}."


def _text_of(workspace: Path, path: str) -> tuple[str, os.stat_result]:
    with open_inside(workspace, path) as descriptor:
        seen = os.fstat(descriptor)
        if not stat.S_ISREG(seen.st_mode):
            raise ToolFailed(f"{path!r} is not a file.")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(_MAX_EDITED_BYTES + 1)
    if len(content) > _MAX_EDITED_BYTES:
        raise ToolFailed(f"{path!r} is too big to be edited: at most {_MAX_EDITED_BYTES} bytes can be.")
    try:
        return content.decode(), seen
    except UnicodeDecodeError as error:
        raise ToolFailed(f"{path!r} is not a text file in UTF-8, so it cannot be edited.") from error


def _there(folder: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _version(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_mtime_ns, found.st_size


_MAX_FOUND = 200
_SEARCHING_MAX_ENTRIES = 50_000
_MAX_DEPTH = 40
_MAX_SEARCHED_BYTES = 2_000_000
_MAX_SECONDS = 10.0
_LINE_CHARS = 200
_LEFT_OUT = {".git", "node_modules", "__pycache__", ".venv"}


@tool(concurrent=True)
async def search_files(
    context: ToolContext,
    text: Annotated[str, Meta(description="In a line, case ignored; without it only names are searched.")] = "",
    name: Annotated[str, Meta(description="Like *.py")] = "*",
    path: str = ".",
) -> str:
    """Find files of the workspace and its folders by name and by plain text in them."""
    if "\n" in text:
        raise ToolFailed("The text must be within one line.")
    return await asyncio.to_thread(_search, context.workspace, path, _Wanted(text=text.casefold(), name=name))


@dataclass(slots=True, kw_only=True)
class _Wanted:
    """What is looked for, and how much more may be looked at: a search ends in bounded time, whatever the tree."""

    text: str
    name: str
    entries_left: int = _SEARCHING_MAX_ENTRIES
    found_left: int = _MAX_FOUND
    until: float = field(default_factory=lambda: monotonic() + _MAX_SECONDS)

    @property
    def is_over(self) -> bool:
        return self.entries_left <= 0 or self.found_left <= 0 or monotonic() > self.until


def _search(workspace: Path, path: str, wanted: _Wanted) -> str:
    prefix = Path(path)
    lines: list[str] = []
    with open_inside(workspace, path, os.O_DIRECTORY) as folder:
        for line in _found(folder, prefix, wanted, depth=0):
            lines.append(line)
            wanted.found_left -= 1
            if wanted.is_over:
                break
    if wanted.is_over:
        lines.append("[Not everything was searched. Narrow it down by path, name or text.]")
    return "\n".join(lines) or "Nothing was found."


def _found(folder: int, prefix: Path, wanted: _Wanted, *, depth: int) -> Iterator[str]:
    for entry, kind in _entries(folder, wanted):
        if wanted.is_over:
            return
        if stat.S_ISDIR(kind) and entry not in _LEFT_OUT and depth < _MAX_DEPTH:
            yield from _found_below(folder, prefix, entry, wanted, depth=depth)
        elif stat.S_ISREG(kind) and fnmatch(entry, wanted.name):
            yield from _found_in(folder, prefix / entry, wanted)


def _entries(folder: int, wanted: _Wanted) -> Iterator[tuple[str, int]]:
    """Name what is in a folder, with its mode; links are passed over."""
    with os.scandir(folder) as found:
        names: list[str] = []
        for entry in found:
            wanted.entries_left -= 1
            if wanted.is_over:
                break
            names.append(entry.name)
    for name in sorted(names):
        with suppress(OSError):  # Removed meanwhile.
            yield name, os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode


def _found_below(folder: int, prefix: Path, name: str, wanted: _Wanted, *, depth: int) -> Iterator[str]:
    try:
        below = open_child(folder, name, os.O_DIRECTORY)
    except OSError:  # Not readable, removed, or a link by now.
        return
    try:
        yield from _found(below, prefix / name, wanted, depth=depth + 1)
    finally:
        os.close(below)


def _found_in(folder: int, path: Path, wanted: _Wanted) -> Iterator[str]:
    if not wanted.text:
        yield str(path)
        return
    for number, line in enumerate(_lines(folder, path.name), start=1):
        if wanted.text in line.casefold():
            yield f"{path}:{number}: {excerpt(line.strip(), _LINE_CHARS)}"


def _lines(folder: int, name: str) -> list[str]:
    """Return the lines of a text file; of one that is binary or too big, none."""
    try:
        descriptor = open_child(folder, name)
    except OSError:
        return []
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(_MAX_SEARCHED_BYTES + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    if len(content) > _MAX_SEARCHED_BYTES or b"\0" in content:
        return []
    return content.decode(errors="replace").split("\n")
