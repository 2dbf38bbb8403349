"""Files in an agent's workspace: what people sent is put there for its tools, within a budget. It blocks."""

import os
import re
import shutil
import stat
from contextlib import suppress
from pathlib import Path

__all__ = ["FOLDER", "save"]

FOLDER = "attachments"
_OURS = re.compile(r"[0-9a-f]{8}-\d+-.+")
"""As a `Reader` names what it saves. A workspace may be somebody's own folder, with such a folder in it."""


def save(workspace: Path, name: str, source: Path, budget: int) -> str:
    """Copy `source` into the folder for attachments; return its path in the workspace. The oldest of ours make room.

    The agent may have put a link in place of the folder or the file: none is followed.
    """
    with suppress(FileExistsError):
        (workspace / FOLDER).mkdir(mode=0o700)
    folder = os.open(workspace / FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
        target = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
        with os.fdopen(target, "wb") as copy, source.open("rb") as original:
            shutil.copyfileobj(original, copy, 1 << 20)
        _make_room(folder, name, budget)
    finally:
        os.close(folder)
    return f"{FOLDER}/{name}"


def _make_room(folder: int, kept: str, budget: int) -> None:
    files = []
    for name in filter(_OURS.fullmatch, os.listdir(folder)):
        with suppress(FileNotFoundError):
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISREG(found.st_mode):
                files.append((found.st_mtime, found.st_size, name))
    total = sum(size for _, size, _ in files)
    for _, size, name in sorted(files):
        if total <= budget:
            return
        if name != kept:
            os.unlink(name, dir_fd=folder)
            total -= size
