"""Opens and replaces files of the workspace and of the session, never others, even if links are swapped."""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from secrets import token_hex

import structlog

from config.files import make_private_directory
from gateway.agent.tools import ToolContext, ToolFailed
from gateway.private_files import CREATE, FILE_MODE, NotAFile, open_private
from gateway.sandbox.bubblewrap import ATTACHMENTS, HIDDEN_IN_SKILLS, SKILLS
from gateway.text import excerpt

log = structlog.get_logger()

_FORMER_COPY = re.compile(r"attachments/([0-9a-f]{8})(-\d+-[^/]+)")
"""A copy of an attachment in the workspace, as older transcripts name it: the start of the turn, and the rest."""


@contextmanager
def open_inside(context: ToolContext, path: str, flags: int = 0) -> Iterator[int]:
    """Open a file of the workspace, the attachments or a skill for reading, or a folder with `O_DIRECTORY`."""
    with explain_os_errors(path):
        root, inner = _read_only_path(context, path) or (_workspace_root(context), path)
        descriptor = open_path(root, parts_inside(root, inner) or ["."], flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def open_parent(context: ToolContext, path: str) -> Iterator[tuple[int, str]]:
    """Open the folder of `path`, creating it if needed. Yields it with the file's name."""
    with explain_os_errors(path):
        if _read_only_path(context, path) is not None:
            raise ToolFailed(f"{excerpt(path, 200)!r} cannot be changed. Write to a file in the workspace instead.")
        root = _workspace_root(context)
        *folders, name = parts_inside(root, path) or [""]
        if not name:
            raise ToolFailed("That is the workspace itself. Name a file in it.")
        descriptor = open_path(root, folders, os.O_DIRECTORY, creates=True)
    try:
        yield descriptor, name
    finally:
        os.close(descriptor)


def command_folder(context: ToolContext) -> Path:
    """Return the workspace for a command, which can use all of it. Raises `ToolFailed` if there is none."""
    with explain_os_errors("."):
        root = _workspace_root(context)
        os.close(open_path(root, parts_inside(root, "."), os.O_DIRECTORY))
    return root


@contextmanager
def explain_os_errors(path: str) -> Iterator[None]:
    """Turn errors of the file system into `ToolFailed`, with the model's own path and never with ours."""
    shown = excerpt(path, 200)
    try:
        yield
    except FileNotFoundError as error:
        raise ToolFailed(f"There is no {shown!r} in the workspace. Use list_files to see the files.") from error
    except (OSError, RuntimeError, ValueError) as error:  # Not readable, a loop of links, a NUL in the name.
        if isinstance(error, NotAFile) and error.errno != errno.ELOOP:
            raise ToolFailed(f"{shown!r} is not a file. Use list_files to look into a folder.") from error
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else "the name is not usable"
        raise ToolFailed(f"{shown!r} cannot be opened: {reason}.") from error


def _workspace_root(context: ToolContext) -> Path:
    if not context.is_private:
        # The links that the owner made are resolved already. A link that is there now was made by an agent, whose own
        # workspace contains this one.
        return context.workspace
    make_private_directory(context.workspace)
    return not_resolved(context.workspace)


def _read_only_path(context: ToolContext, path: str) -> tuple[Path, str] | None:
    """Return the folder of the attachments or of a skill and the path in it; None if `path` is in the workspace."""
    given = PurePosixPath(path)
    if context.skills and given.is_relative_to(SKILLS):
        name, *inner = given.relative_to(SKILLS).parts or ("",)
        if name not in context.skills:
            raise FileNotFoundError
        root, path = not_resolved(context.skills[name]), str(PurePosixPath(*inner))
        if HIDDEN_IN_SKILLS in parts_inside(root, path):
            raise FileNotFoundError
        return root, path
    if context.attachments is None:
        return None
    if given.is_relative_to(ATTACHMENTS):
        return not_resolved(context.attachments), str(given.relative_to(ATTACHMENTS))
    former = _FORMER_COPY.fullmatch(str(given))
    if former is None or os.path.lexists(context.workspace / path):
        return None
    with suppress(FileNotFoundError):
        names = os.listdir(context.attachments)  # noqa: PTH208 - names suffice.
        # A changed copy has kept its name. Turns begin with their time, so the last name is the newest file.
        same = [name for name in sorted(names) if name.startswith(former[1]) and name.endswith(former[2])]
        if same:
            name = given.name if given.name in same else same[-1]
            return not_resolved(context.attachments), name
    return None


def not_resolved(folder: Path) -> Path:
    """Resolve the path of a folder of ours, but not its last part: a link there is refused by `parts_inside`."""
    return folder.parent.resolve() / folder.name


def parts_inside(root: Path, path: str) -> list[str]:
    """Return the parts of the resolved `path` below `root`. Logs an attempt to leave it, and raises `ToolFailed`."""
    # Links are resolved here, so that a link within the workspace may be used. A loop of links is left as it is, and
    # fails when it is opened: `Path.resolve` raises for it only before Python 3.13.
    target = Path(os.path.realpath(root / path))
    if not target.is_relative_to(root):
        log.warning("workspace_escape_refused", security=True, path=excerpt(path, 200))
        raise ToolFailed("That path is outside the workspace. Only files inside it can be used.")
    return list(target.relative_to(root).parts)


def open_path(root: Path, parts: list[str], flags: int, *, creates: bool = False) -> int:
    """Open a resolved path part by part, following no link: one could have been created since it was resolved.

    Raises `OSError`. The caller closes the descriptor.
    """
    descriptor = _open_folder(root)
    for depth, part in enumerate(parts, start=1):
        try:
            if creates:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o700, dir_fd=descriptor)
            child = open_private(part, flags if depth == len(parts) else os.O_DIRECTORY, directory=descriptor)
        finally:
            os.close(descriptor)
        descriptor = child
    return descriptor


def replace_file(folder: int, name: str, data: bytes, *, mode: int = FILE_MODE) -> None:
    """Write the file `name` in an open folder atomically: a reader sees the old content or the new one."""
    temporary = f".{token_hex(8)}.tmp"
    descriptor = open_private(temporary, CREATE, directory=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode & 0o777)
            os.fsync(file.fileno())
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
        raise
    os.fsync(folder)


def _open_folder(path: Path) -> int:
    """Open an absolute path for reading, following no link in any of its parts."""
    descriptor = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    *parents, last = path.parts[1:] or ["."]
    # Only the last folder must be readable.
    for part, mode in (*((parent, os.O_PATH) for parent in parents), (last, os.O_RDONLY)):
        try:
            child = os.open(part, mode | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = child
    return descriptor
