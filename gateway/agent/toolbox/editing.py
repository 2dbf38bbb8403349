"""Changing the files of the workspace: a file is there whole, old or new, and never half."""

import asyncio
import os
import stat
from contextlib import ExitStack, suppress
from pathlib import Path
from secrets import token_hex

from gateway.agent.toolbox.inside import opened, parent_opened, trouble_told
from gateway.agent.tools import ToolContext, ToolFailed, tool

__all__ = ["edit_file", "write_file"]

_MAX_EDITED_BYTES = 2_000_000
_PRIVATE = 0o600


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
    with parent_opened(workspace, path) as (folder, name), trouble_told(path):
        there = _there(folder, name)
        if there and not stat.S_ISREG(there.st_mode):
            raise ToolFailed(f"{path!r} is there already, and is not a file.")
        if seen and (there is None or _version(there) != _version(seen)):
            raise ToolFailed(f"{path!r} was changed by somebody else meanwhile. Read it again.")
        _replace(folder, name, data, mode=stat.S_IMODE(there.st_mode) & 0o777 if there else _PRIVATE)


def _replace(folder: int, name: str, data: bytes, *, mode: int) -> None:
    temporary = f".{token_hex(8)}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, _PRIVATE, dir_fd=folder)
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
    with opened(workspace, path) as descriptor:
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
