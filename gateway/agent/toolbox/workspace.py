"""Opening what lies inside the workspace, and nothing outside of it, whatever is linked or swapped meanwhile."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from gateway.agent.tools import ToolFailed
from gateway.text import excerpt

__all__ = ["explain_os_errors", "open_child", "open_inside", "open_parent"]

log = structlog.get_logger()


@contextmanager
def open_inside(workspace: Path, path: str, flags: int = 0) -> Iterator[int]:
    """Open what `path` names inside the workspace, for reading."""
    with explain_os_errors(path):
        root = workspace.resolve()
        descriptor = _walked(root, _parts(root, path), flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def open_parent(workspace: Path, path: str) -> Iterator[tuple[int, str]]:
    """Open the folder that `path` lies in, made if it is missing; yield it with the name of the file in it."""
    with explain_os_errors(path):
        root = workspace.resolve()
        *folders, name = _parts(root, path) or [""]
        if not name:
            raise ToolFailed("That is the workspace itself. Name a file in it.")
        descriptor = _walked(root, folders, os.O_DIRECTORY, makes=True)
    try:
        yield descriptor, name
    finally:
        os.close(descriptor)


@contextmanager
def explain_os_errors(path: str) -> Iterator[None]:
    """Say in a sentence what the disk says, in the caller's words, never with our paths."""
    shown = excerpt(path, 200)
    try:
        yield
    except FileNotFoundError as error:
        raise ToolFailed(f"There is no {shown!r} in the workspace. Use list_files to see what there is.") from error
    except (OSError, RuntimeError, ValueError) as error:  # Not readable, a loop of links, a NUL in the name.
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else "the name is not usable"
        raise ToolFailed(f"{shown!r} cannot be opened: {reason}.") from error


def open_child(folder: int, name: str, flags: int = 0) -> int:
    """Open `name` in `folder`. Not blocking, lest a named pipe hold the thread for ever."""
    return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | flags, dir_fd=folder)


def _parts(root: Path, path: str) -> list[str]:
    target = (root / path).resolve()
    if not target.is_relative_to(root):
        log.warning("workspace_escape_refused", path=excerpt(path, 200))
        raise ToolFailed("That path leads out of the workspace. Only files inside of it can be used.")
    return list(target.relative_to(root).parts)


def _walked(root: Path, parts: list[str], flags: int, *, makes: bool = False) -> int:
    """Go down from `root`, part by part, following no links: none can be put in between after they were resolved."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    for depth, part in enumerate(parts, start=1):
        try:
            if makes:
                _make(descriptor, part)
            deeper = open_child(descriptor, part, flags if depth == len(parts) else os.O_DIRECTORY)
        finally:
            os.close(descriptor)
        descriptor = deeper
    return descriptor


def _make(folder: int, name: str) -> None:
    try:
        os.mkdir(name, 0o700, dir_fd=folder)
    except FileExistsError:
        return
