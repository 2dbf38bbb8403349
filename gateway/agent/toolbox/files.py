"""Looking at the files of the workspace."""

import asyncio
import os
import stat
from itertools import islice
from pathlib import Path
from typing import Annotated, BinaryIO

from msgspec import Meta

from gateway.agent.toolbox.inside import opened
from gateway.agent.tools import ToolContext, ToolFailed, tool

__all__ = ["list_files", "read_file"]

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
    with opened(workspace, path, os.O_DIRECTORY) as folder, os.scandir(folder) as found:
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
    with opened(workspace, path) as descriptor:
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
