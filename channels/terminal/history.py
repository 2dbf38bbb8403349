"""What was typed in earlier chats: private from birth, and never endless."""

import os
from pathlib import Path

from prompt_toolkit.history import FileHistory, History, InMemoryHistory

__all__ = ["open_history"]

LONGEST = 512 * 1024
"""In bytes; a longer file is cut to half of this when a chat starts, so that reading it takes no time to speak of."""


def open_history(path: Path) -> History:
    """Open the history in `path`; where that cannot be, this chat remembers what was typed only until it ends."""
    try:
        _make(path)
        _shorten(path)
    except OSError:
        return InMemoryHistory()
    return _Cautious(path)


class _Cautious(FileHistory):
    """A disk that is full must not end the chat."""

    def store_string(self, string: str) -> None:
        try:
            super().store_string(string)
        except OSError:
            return


def _make(path: Path) -> None:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))


def _shorten(path: Path) -> None:
    data = path.read_bytes()
    if len(data) <= LONGEST:
        return
    # An entry starts with a line that starts with "#"; what was typed stands on lines that start with "+".
    half = data[-LONGEST // 2 :]
    path.write_bytes(half[half.find(b"\n#") + 1 :])
