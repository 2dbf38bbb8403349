"""Files that a command writes whole or not at all, and for nobody else to read."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkstemp
from typing import BinaryIO

__all__ = ["replacing"]


@contextmanager
def replacing(path: Path, *, overwrite: bool) -> Iterator[BinaryIO]:
    """Give a private file that takes the name `path` once it is whole, and leaves nothing behind otherwise."""
    if not overwrite:
        # Whoever wants the same name at the same time finds it taken.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    leftovers = [] if overwrite else [path]
    try:
        descriptor, name = mkstemp(dir=path.parent, prefix=".gatehouse-")
        leftovers.append(Path(name))
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor has no Path.
            yield file
            file.flush()
            os.fsync(descriptor)
        Path(name).replace(path)
    except BaseException:
        for leftover in leftovers:
            leftover.unlink(missing_ok=True)
        raise
