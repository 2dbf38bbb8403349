"""Private files and folders, and atomic writes."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

# `os.fsync`, or a fake in tests.
Fsync = Callable[[int], None]


def write_atomically(
    path: Path, data: bytes, *, temporary_folder: Path | None = None, before_rename: Callable[[], None] | None = None
) -> None:
    """Replace `path` with `data`, mode 0600. Readers see the old file or the new one, even after a power cut.

    `temporary_folder` and `before_rename` are those of `atomic_writer`.
    """
    with atomic_writer(path, temporary_folder=temporary_folder, before_rename=before_rename) as file:
        file.write(data)
    fsync_directory(path.parent)


@contextmanager
def atomic_writer(
    path: Path,
    fsync: Fsync = os.fsync,
    *,
    temporary_folder: Path | None = None,
    before_rename: Callable[[], None] | None = None,
) -> Iterator[BinaryIO]:
    """Yield a private temporary file that is fsynced and renamed to `path` at the end, or removed on an error.

    The caller fsyncs the folder: until then a power cut may bring back the old file. A crash leaves the temporary file
    in the folder of `path`, or in the `temporary_folder` of the same file system. If `before_rename` raises, `path`
    stays as it is.
    """
    # In the same folder, since a rename is atomic only within one file system. mkstemp creates it with mode 0600.
    descriptor, name = tempfile.mkstemp(dir=temporary_folder or path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    with ExitStack() as cleanup:
        cleanup.callback(temporary.unlink, missing_ok=True)
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            # Before the rename: some file systems would otherwise show an empty file after a power cut.
            fsync(descriptor)
        if before_rename is not None:
            before_rename()
        temporary.replace(path)
        cleanup.pop_all()


def make_private_directory(directory: Path) -> None:
    """Create `directory` and its missing parents with mode 0700. Existing folders keep their mode."""
    # Not `mkdir(parents=True)`, which creates the parents with the mode that the umask leaves.
    if directory.is_dir():
        return
    make_private_directory(directory.parent)
    directory.mkdir(mode=0o700, exist_ok=True)


def fsync_directory(directory: Path, fsync: Fsync = os.fsync) -> None:
    """Fsync the entries of `directory`: a rename or a new file survives a power cut only after this."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fsync(descriptor)
    finally:
        os.close(descriptor)
