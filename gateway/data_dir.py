"""One daemon per data directory: a lock that the kernel frees when its process dies, however it dies."""

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from gateway.errors import CannotStart

__all__ = ["DataDirLock", "DataDirTaken", "prepare_data_dir"]


class DataDirTaken(CannotStart):
    """Another process holds the lock."""


def prepare_data_dir(directory: Path) -> None:
    """Make `directory` if need be, private to its owner, and check that it can be written."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.chmod(0o700)
    except OSError as trouble:
        raise CannotStart(
            f"The data directory {directory} cannot be used: {trouble.strerror}. "
            "Make it writable for this user, or set `gateway.data_dir` to another one.",
        ) from trouble


class DataDirLock:
    """Held from `with` to the end of it. The file stays: removing it would let two daemons lock two files."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "gatehouse.lock"
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as trouble:
            raise CannotStart(
                f"The data directory {self._path.parent} cannot be written: {trouble.strerror}. "
                "Make it writable for this user, or set `gateway.data_dir` to another one.",
            ) from trouble
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as taken:
            holder = os.pread(self._descriptor, 32, 0).decode(errors="replace").strip()
            os.close(self._descriptor)
            raise DataDirTaken(
                f"The data directory {self._path.parent} is in use by process {holder or '(unknown)'}. "
                "Stop that one first, or give this one its own `gateway.data_dir`.",
            ) from taken
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
