"""Opens files inside the workspace, and never outside of it, even if links are swapped at the same time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

from gateway.agent.tools import ToolFailed
from gateway.text import excerpt

log = structlog.get_logger()


@contextmanager
def open_inside(workspace: Path, path: str, flags: int = 0) -> Iterator[int]:
    """Open `path` inside the workspace, for reading."""
    with explain_os_errors(path):
        root = workspace.resolve()
        descriptor = _open_path(root, _parts(root, path), flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def open_parent(workspace: Path, path: str) -> Iterator[tuple[int, str]]:
    """Open the folder of `path`, creating it if needed. Yields it with the file's name."""
    with explain_os_errors(path):
        root = workspace.resolve()
        *folders, name = _parts(root, path) or [""]
        if not name:
            raise ToolFailed("That is the workspace itself. Name a file in it.")
        descriptor = _open_path(root, folders, os.O_DIRECTORY, creates=True)
    try:
        yield descriptor, name
    finally:
        os.close(descriptor)


@contextmanager
def explain_os_errors(path: str) -> Iterator[None]:
    """Turn errors of the file system into `ToolFailed`, with the model's own path and never with ours."""
    shown = excerpt(path, 200)
    try:
        yield
    except FileNotFoundError as error:
        raise ToolFailed(f"There is no {shown!r} in the workspace. Use list_files to see the files.") from error
    except (OSError, RuntimeError, ValueError) as error:  # Not readable, a loop of links, a NUL in the name.
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else "the name is not usable"
        raise ToolFailed(f"{shown!r} cannot be opened: {reason}.") from error


def open_child(folder: int, name: str, flags: int = 0) -> int:
    """Open `name` in `folder`, following no link."""
    # O_NONBLOCK: opening a named pipe would otherwise block the thread forever.
    return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | flags, dir_fd=folder)


def _parts(root: Path, path: str) -> list[str]:
    """Return the parts of the resolved `path` below `root`."""
    # Links are resolved here, so that a link within the workspace may be used.
    target = (root / path).resolve()
    if not target.is_relative_to(root):
        log.warning("workspace_escape_refused", path=excerpt(path, 200))
        raise ToolFailed("That path is outside the workspace. Only files inside it can be used.")
    return list(target.relative_to(root).parts)


def _open_path(root: Path, parts: list[str], flags: int, *, creates: bool = False) -> int:
    """Open a resolved path part by part, following no link: one could have been created since it was resolved."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    for depth, part in enumerate(parts, start=1):
        try:
            if creates:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o700, dir_fd=descriptor)
            child = open_child(descriptor, part, flags if depth == len(parts) else os.O_DIRECTORY)
        finally:
            os.close(descriptor)
        descriptor = child
    return descriptor
