"""Files that a command writes whole or not at all, and for nobody else to read."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from config import files

__all__ = ["replacing"]


@contextmanager
def replacing(path: Path, *, overwrite: bool) -> Iterator[BinaryIO]:
    """Give a private file that takes the name `path` once it is whole, and leaves nothing behind otherwise."""
    with ExitStack() as undoing:
        if not overwrite:
            # Whoever wants the same name at the same time finds it taken.
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            undoing.callback(path.unlink, missing_ok=True)
        with files.atomic_writer(path) as file:
            yield file
        undoing.pop_all()
