"""Files that are private from birth and never half written."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

Fsync = Callable[[int], None]
"""Makes durable what a descriptor stands for: `os.fsync`, or what a test puts in its place."""


def write_atomically(path: Path, data: bytes) -> None:
    """Put `data` in place of `path`, mode 0600: readers see the old file or the new one, also after a power cut."""
    with replacing(path) as file:
        file.write(data)
    fsync_directory(path.parent)


@contextmanager
def replacing(path: Path, fsync: Fsync = os.fsync) -> Iterator[BinaryIO]:
    """Give a private file that takes the name `path` once it is whole and durable, and leaves nothing otherwise.

    The name itself is durable once the folder is synced.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    with ExitStack() as undoing:
        undoing.callback(temporary.unlink, missing_ok=True)
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            fsync(descriptor)
        temporary.replace(path)
        undoing.pop_all()


def make_private_directory(directory: Path) -> None:
    """Create `directory` and what is missing above it, each mode 0700; what exists already is left as it is."""
    if directory.is_dir():
        return
    make_private_directory(directory.parent)
    directory.mkdir(mode=0o700, exist_ok=True)


def fsync_directory(directory: Path, fsync: Fsync = os.fsync) -> None:
    """Make the names in `directory` durable: a rename or a new file is not, until its folder is synced."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fsync(descriptor)
    finally:
        os.close(descriptor)
