"""Looking at the files of the workspace, and at nothing outside of it."""

import asyncio
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import structlog
from msgspec import Meta

from gateway.agent.tools import ToolContext, ToolFailed, tool
from gateway.text import excerpt

__all__ = ["list_files", "read_file"]

_MAX_ENTRIES = 500
_MAX_BYTES = 200_000

log = structlog.get_logger()


@tool(concurrent=True)
async def list_files(
    context: ToolContext,
    path: Annotated[str, Meta(description="A folder of the workspace; the workspace itself when left out.")] = ".",
) -> str:
    """List the files and folders in a folder of the workspace."""
    return await asyncio.to_thread(_list, context.workspace, path)


@tool(concurrent=True)
async def read_file(
    context: ToolContext,
    path: Annotated[str, Meta(description="The file, relative to the workspace.")],
) -> str:
    """Read a text file of the workspace."""
    return await asyncio.to_thread(_read, context.workspace, path)


def _list(workspace: Path, path: str) -> str:
    with _opened(workspace, path, os.O_DIRECTORY) as folder:
        names = sorted(os.listdir(folder))  # noqa: PTH208  A path can be swapped for another; the open folder cannot.
        lines = [_entry(folder, name) for name in names[:_MAX_ENTRIES]]
    if len(names) > _MAX_ENTRIES:
        lines.append(f"... and {len(names) - _MAX_ENTRIES} more")
    return "\n".join(lines) or "The folder is empty."


def _entry(folder: int, name: str) -> str:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return f"{name} (just removed)"
    if stat.S_ISDIR(found.st_mode):
        return f"{name}/"
    return f"{name} ({found.st_size} bytes)" if stat.S_ISREG(found.st_mode) else name


def _read(workspace: Path, path: str) -> str:
    with _opened(workspace, path, 0) as file:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise ToolFailed(f"{path!r} is not a file. Use list_files to look into a folder.")
        content = _read_up_to(file, _MAX_BYTES)
    if b"\0" in content:
        raise ToolFailed(f"{path!r} is a binary file of {found.st_size} bytes and cannot be shown as text.")
    text = content.decode(errors="replace")
    if found.st_size > len(content):
        text += f"\n[Cut: only the first {len(content)} of {found.st_size} bytes are shown.]"
    return text


def _read_up_to(file: int, limit: int) -> bytes:
    with os.fdopen(file, "rb", closefd=False) as reader:
        return reader.read(limit)


@contextmanager
def _opened(workspace: Path, path: str, flags: int) -> Iterator[int]:
    """Open what `path` names inside the workspace. Errors repeat the caller's words, never our paths."""
    try:
        descriptor = _open_inside(workspace.resolve(), path, flags)
    except FileNotFoundError as error:
        raise ToolFailed(f"There is no {path!r} in the workspace. Use list_files to see what there is.") from error
    except (OSError, RuntimeError, ValueError) as error:  # Not readable, a loop of links, a NUL in the name.
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else "the name is not usable"
        raise ToolFailed(f"{excerpt(path, 200)!r} cannot be opened: {reason}.") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open_inside(root: Path, path: str, flags: int) -> int:
    """Resolve `path`, then go down from `root` without following links: none can be put in between by then."""
    target = (root / path).resolve()
    if not target.is_relative_to(root):
        log.warning("workspace_escape_refused", path=excerpt(path, 200))
        raise ToolFailed("That path leads out of the workspace. Only files inside of it can be used.")
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    parts = target.relative_to(root).parts
    for depth, part in enumerate(parts, start=1):
        kind = flags if depth == len(parts) else os.O_DIRECTORY
        descriptor = _step_down(descriptor, part, kind)
    return descriptor


def _step_down(folder: int, name: str, flags: int) -> int:
    """Open `name` in `folder`, which is closed. Not blocking, lest a named pipe hold the thread for ever."""
    try:
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | flags, dir_fd=folder)
    finally:
        os.close(folder)
