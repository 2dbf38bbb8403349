"""Finds a folder in memory, for files of tests: `fsync` takes no time there, and seconds on a busy disk."""

import os
import shutil
from pathlib import Path

_MEMORY = Path("/dev/shm")  # noqa: S108 - pytest and mkdtemp make private folders there
_MIN_FREE_BYTES = 2_000_000_000


def memory_folder() -> Path | None:
    """Return a folder whose files are in memory, or None if there is none with enough space.

    A process that is killed loses none of its files there, as on a disk.
    """
    if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _MIN_FREE_BYTES:
        return _MEMORY
    return None
