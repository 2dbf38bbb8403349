"""The data directory: private to its owner, with a lock so that one daemon at a time uses it."""

import fcntl
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Self

from gateway.errors import CannotStart
from gateway.private_files import DIRECTORY_MODE, NotAFile, delete_tree, open_private

RESTORE_STAGING = ".restoring-"
"""How the name of the folder starts into which a restore unpacks a backup."""
REHEARSAL = ".rehearsal-"
"""How the name of the folder starts in which `gatehouse upgrade --check` keeps its copy of the data."""
UNFINISHED_COPY_FILE = ".unfinished-copy"
"""The file that marks the sessions and the spool of a data directory as an unfinished copy, and names its source."""
_DELETING_THREADS = 8
"""A disk that is mounted with `discard` may take milliseconds for each file, and does several at a time."""
_FILES_PER_TASK = 500
_RELEASE_TIMEOUT = 2.0
_RELEASE_INTERVAL = 0.02


class DataDirTaken(CannotStart):
    """Another process holds the lock."""


def unusable(path: Path, error: Exception) -> CannotStart:
    """Return the error for a file or folder of the data directory that cannot be read or written."""
    reason = str(error)
    if isinstance(error, OSError):
        # The path in the error is more precise: `path` may be the folder that contains it.
        path, reason = Path(error.filename or path), error.strerror or reason
    if isinstance(error, FileExistsError | NotADirectoryError):
        reason = "It is not a folder"
    if isinstance(error, NotAFile | FileExistsError | NotADirectoryError):
        return CannotStart(f"Can't use {path}: {reason}. Move it elsewhere, or set gateway.data_dir to another folder.")
    return CannotStart(
        f"Can't use {path}: {reason}. "
        "Make it writable for the user that runs Gatehouse, or set gateway.data_dir to another folder."
    )


def prepare_data_dir(directory: Path) -> None:
    """Create `directory` if needed, and set its mode to 0700. Raises `CannotStart` if that fails."""
    try:
        directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        directory.chmod(DIRECTORY_MODE)
    except OSError as error:
        raise unusable(directory, error) from error


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _may_run(process: str) -> bool:
    """Return whether a process exists. True if that is not known."""
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except (ValueError, OverflowError, PermissionError):
        pass
    return True


def require_complete_restore(directory: Path) -> None:
    """Raise `CannotStart` if a restore into `directory` was interrupted: it may contain only a part of the backup."""
    for staging in directory.glob(f"{RESTORE_STAGING}*"):
        raise CannotStart(
            f"A restore into {directory} was interrupted. Run it again with --replace, "
            f"or delete {staging} to use the directory as it is."
        )


class DataDirLock:
    """A context manager that holds the lock. The kernel releases it when the process dies, even by SIGKILL.

    A process that was killed while it started another one leaves the lock to that one, until it runs its program.
    """

    def __init__(self, directory: Path) -> None:
        # The file is never removed: then two daemons could lock two files of the same name.
        self._path = directory / "gatehouse.lock"
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        try:
            self._descriptor = open_private(self._path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise unusable(self._path, error) from error
        deadline = monotonic() + _RELEASE_TIMEOUT
        while not _try_lock(self._descriptor):
            holder = os.pread(self._descriptor, 32, 0).decode(errors="replace").strip()
            if _may_run(holder) or monotonic() > deadline:
                os.close(self._descriptor)
                raise DataDirTaken(
                    f"The data directory {self._path.parent} is in use by process {holder or '(unknown)'}. "
                    "Stop that process first, or set gateway.data_dir to another folder."
                )
            sleep(_RELEASE_INTERVAL)
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)


def delete_rehearsals(folder: Path) -> list[Path]:
    """Delete the copies of rehearsals that were killed, and return their folders. Raises `OSError`.

    A rehearsal that runs holds the lock of its copy. Blocks: a copy may have many files.
    """
    deleted: list[Path] = []
    for copy in folder.glob(f"{REHEARSAL}*"):
        if copy.is_symlink() or not copy.is_dir():  # It is not from us.
            continue
        # Its rehearsal may be deleting it at this moment, from its lock on.
        with suppress(DataDirTaken, FileNotFoundError), DataDirLock(copy):
            delete_rehearsal(copy)
            deleted.append(copy)
    return deleted


def delete_rehearsal(copy: Path) -> None:
    """Delete the copy of a rehearsal, whose lock the caller holds. Raises `OSError`."""
    with ThreadPoolExecutor(_DELETING_THREADS) as threads:
        for path, _, names in os.walk(copy / "data"):
            parts = range(0, len(names), _FILES_PER_TASK)
            # An error of a task is raised here.
            list(threads.map(partial(_delete, path), (names[at : at + _FILES_PER_TASK] for at in parts)))
    delete_tree(copy)


def _delete(folder: str, names: Sequence[str]) -> None:
    for name in names:
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, name))  # noqa: PTH108, PTH118 - hundreds of thousands of files.
