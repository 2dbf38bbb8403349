"""Watching a transcript grow. It is only read, and without the lock, so a daemon may come and go meanwhile."""

import os
from pathlib import Path
from typing import BinaryIO

from gateway.errors import Refused
from gateway.sessions.line_reading import end_of_lines
from gateway.sessions.names import file_name

__all__ = ["Tail", "transcript_path"]

_TAKEN = 256 * 1024
"""Bytes after which a reading stops for now."""


def transcript_path(data_dir: Path, key: str) -> Path:
    return data_dir / "sessions" / "transcripts" / file_name(key)


class Tail:
    """Gives the lines that are appended after it was made. Every method blocks.

    The file is opened anew each time, because what cannot be trusted any more is replaced by another of its name.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._opened() as file:
            size = os.fstat(file.fileno()).st_size
            self._at = end_of_lines(file.fileno(), size)  # Behind it may be a line that is just being written.

    def read(self) -> list[bytes]:
        """Return the next whole lines; none when there is nothing new."""
        lines: list[bytes] = []
        taken = 0
        with self._opened() as file:
            self._at = min(self._at, os.fstat(file.fileno()).st_size)
            file.seek(self._at)
            for line in file:
                if not line.endswith(b"\n") or taken > _TAKEN:
                    break
                lines.append(line)
                taken += len(line)
        self._at += taken
        return lines

    def _opened(self) -> BinaryIO:
        try:
            return self._path.open("rb")
        except FileNotFoundError as gone:
            raise Refused("The session is gone: it has been deleted.") from gone
        except OSError as trouble:
            raise Refused(f"The transcript cannot be read: {trouble.strerror}.") from trouble
