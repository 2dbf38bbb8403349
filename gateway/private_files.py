"""Private files: readable by their owner only, and never opened through a symbolic link. All functions block.

Every file of the data directory and of a workspace is opened here. A person or an agent may have put anything in its
place: a link to another file, a named pipe that never ends, a folder.
"""

import errno
import mmap
import os
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

import structlog

from config.files import make_private_directory

log: structlog.stdlib.BoundLogger = structlog.get_logger()

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
# The permission bits of the group and of all other users.
OTHERS = 0o077

# Flags for a file that must not exist yet.
CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
# Flags for appending to a file and reading it.
APPEND = os.O_RDWR | os.O_APPEND


_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotAFile(OSError):
    """Something other than a regular file is in the place of a file. `strerror` says what."""

    @classmethod
    def found(cls, code: int, mode: int, path: Path | str) -> "NotAFile":
        kind = _KINDS.get(stat.S_IFMT(mode), "something unknown")
        return cls(code, f"It is {kind}, not a file", str(path))


def open_private(
    path: Path | str, flags: int = os.O_RDONLY, *, directory: int | None = None, follow_links: bool = False
) -> int:
    """Open a regular file and return its descriptor, without ever waiting for a pipe.

    With `O_CREAT` the file gets mode 0600, even with an unusual umask. With `O_DIRECTORY` this opens a folder.
    `directory` is the descriptor of the folder that a relative `path` is in. Raises `NotAFile` for anything else,
    also for a symbolic link. `follow_links` allows everything: it is for paths that the operator chose.
    """
    if follow_links:
        # A pipe that has no reader is an error instead of a wait. Writing to a slow reader waits as usual.
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, FILE_MODE, dir_fd=directory)
        os.set_blocking(descriptor, True)
    else:
        descriptor = _open_regular(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, directory)
    if flags & os.O_CREAT:
        with suppress(PermissionError):  # An existing file of another user, which this user may write to.
            os.fchmod(descriptor, FILE_MODE)
    return descriptor


def _open_regular(path: Path | str, flags: int, directory: int | None) -> int:
    try:
        descriptor = os.open(path, flags, FILE_MODE, dir_fd=directory)
    except OSError as error:
        # A link gives ELOOP, a socket or a pipe without a reader ENXIO, a folder EISDIR. Those texts would not help.
        if error.errno not in {errno.ELOOP, errno.ENXIO, errno.EISDIR}:
            raise
        mode = os.stat(path, dir_fd=directory, follow_symlinks=False).st_mode
        raise NotAFile.found(error.errno, mode, path) from error
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISREG(mode) or flags & os.O_DIRECTORY == os.O_DIRECTORY):
        os.close(descriptor)
        raise NotAFile.found(errno.EINVAL, mode, path)
    return descriptor


def read_private(path: Path) -> bytes:
    """Return the content of a file. Raises `NotAFile` if it is something else."""
    with os.fdopen(open_private(path), "rb") as file:
        return file.read()


def require_file(path: Path) -> None:
    """Raise `NotAFile` if something other than a regular file is there. Nothing at all is fine."""
    with suppress(FileNotFoundError):
        mode = path.lstat().st_mode
        if not stat.S_ISREG(mode):
            raise NotAFile.found(errno.EINVAL, mode, path)


def rename_aside(path: Path) -> Path:
    """Rename a file that cannot be used to a free name, for a person to look at. Return the new path."""
    target = path.with_name(f"{path.name}.corrupted")
    number = 1
    while os.path.lexists(target):
        number += 1
        target = path.with_name(f"{path.name}.corrupted-{number}")
    path.rename(target)
    return target


@contextmanager
def opened(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    """Yield the descriptor of a file. If other users have access to it, take that away."""
    descriptor = open_private(path, flags)
    try:
        close_to_others(path, descriptor)
        yield descriptor
    finally:
        os.close(descriptor)


def close_to_others(path: Path, descriptor: int) -> None:
    """Set the mode to 0600 if other users have access to the file, and log it."""
    mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
    if mode & OTHERS:
        try:
            os.fchmod(descriptor, FILE_MODE)
        except OSError as error:
            log.warning("file_open_to_others", file=path.name, mode=f"{mode:o}", reason=str(error))
        else:
            log.warning("file_made_private", file=path.name, mode=f"{mode:o}")


def prepare_private_folder(folder: Path) -> None:
    """Create the folder if needed, and set its mode to 0700. Raises `PermissionError` if it is not writable."""
    make_private_directory(folder)
    if folder.stat().st_mode & OTHERS:
        folder.chmod(DIRECTORY_MODE)
        log.warning("folder_made_private", folder=str(folder))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`. A single `os.write` may write less, for example on a disk that is almost full."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def read_range(descriptor: int, begin: int, end: int) -> bytes:
    """Read the bytes from `begin` to `end`. Raises `OSError` if the file is shorter."""
    data = os.pread(descriptor, end - begin, begin)
    while len(data) < end - begin:
        part = os.pread(descriptor, end - begin - len(data), begin + len(data))
        if not part:
            raise OSError(errno.EIO, "The disk returned less than the file contains")
        data += part
    return data


def delete_tree(path: Path) -> None:
    """Delete a folder with everything in it, or a file in its place. Follows no links. Raises `OSError`.

    A program may have filled it, with folders that it has locked, or with thousands of folders inside each other. So
    each folder is moved to the top before it is emptied: no path gets too long, and nothing is recursive. No program
    may change it at the same time.
    """
    if not os.path.lexists(path):
        return
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    path.chmod(DIRECTORY_MODE)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    top = os.open(path, flags)
    moved: list[str] = []

    def empty(folder: int) -> None:
        with os.scandir(folder) as found:
            entries = list(found)
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                os.chmod(entry.name, DIRECTORY_MODE, dir_fd=folder)
                moved.append(token_hex(8))
                os.rename(entry.name, moved[-1], src_dir_fd=folder, dst_dir_fd=top)
            else:
                os.unlink(entry.name, dir_fd=folder)

    try:
        empty(top)
        while moved:
            name = moved.pop()
            folder = os.open(name, flags, dir_fd=top)
            try:
                empty(folder)
            finally:
                os.close(folder)
            os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    path.rmdir()


def delete_copies(path: Path, texts: Collection[bytes]) -> None:
    """Delete the copies of `path` that were set aside and contain one of the texts. Raises `OSError`.

    They are named `<name>.corrupt-<time>` or `<name>.version-<number>`.
    """
    for copy in [*path.parent.glob(f"{path.name}.corrupt-*"), *path.parent.glob(f"{path.name}.version-*")]:
        if _contains(copy, texts):
            copy.unlink()
            log.warning("set_aside_copy_deleted", file=copy.name)


def _contains(path: Path, texts: Collection[bytes]) -> bool:
    try:
        descriptor = open_private(path)
    except NotAFile:  # A person may have put a folder there.
        return False
    try:
        if os.fstat(descriptor).st_size == 0:  # An empty file cannot be mapped.
            return False
        with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as content:
            return any(content.find(text) >= 0 for text in texts)
    finally:
        os.close(descriptor)
