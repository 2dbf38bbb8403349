"""Files that are private from birth and never half written."""

import contextlib
import os
import tempfile
from pathlib import Path

__all__ = ["fsync_directory", "make_private_directory", "write_atomically"]


def write_atomically(path: Path, data: bytes) -> None:
    """Put `data` in place of `path`, mode 0600: readers see the old file or the new one, also after a power cut."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(temporary).unlink()
        raise
    fsync_directory(path.parent)


def make_private_directory(directory: Path) -> None:
    """Create `directory` and what is missing above it, each mode 0700; what exists already is left as it is."""
    if directory.is_dir():
        return
    make_private_directory(directory.parent)
    directory.mkdir(mode=0o700, exist_ok=True)


def fsync_directory(directory: Path) -> None:
    """Make the names in `directory` durable: a rename or a new file is not, until its folder is synced."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
