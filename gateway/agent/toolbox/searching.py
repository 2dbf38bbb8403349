"""Finding files of the workspace by their names and by what is in them."""

import asyncio
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from time import monotonic
from typing import Annotated

from msgspec import Meta

from gateway.agent.toolbox.inside import opened, step_down
from gateway.agent.tools import ToolContext, ToolFailed, tool
from gateway.text import excerpt

__all__ = ["search_files"]

_MAX_FOUND = 200
_MAX_ENTRIES = 50_000
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
    entries_left: int = _MAX_ENTRIES
    found_left: int = _MAX_FOUND
    until: float = field(default_factory=lambda: monotonic() + _MAX_SECONDS)

    @property
    def is_over(self) -> bool:
        return self.entries_left <= 0 or self.found_left <= 0 or monotonic() > self.until


def _search(workspace: Path, path: str, wanted: _Wanted) -> str:
    prefix = Path(path)
    lines: list[str] = []
    with opened(workspace, path, os.O_DIRECTORY) as folder:
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
        below = step_down(folder, name, os.O_DIRECTORY)
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
        descriptor = step_down(folder, name)
    except OSError:
        return []
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(_MAX_SEARCHED_BYTES + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    if len(content) > _MAX_SEARCHED_BYTES or b"\0" in content:
        return []
    return content.decode(errors="replace").split("\n")
