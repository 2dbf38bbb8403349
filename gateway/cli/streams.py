"""The three standard streams, whatever the shell has made of them."""

import io
import os
import sys
from typing import TextIO

__all__ = ["forget", "tame_streams", "tell"]


def tame_streams() -> None:
    """Have all three, and show question marks where a terminal is not on UTF-8.

    Where one was closed, the next file to be opened would get its number, and whatever is printed would go there.
    """
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: PTH123, SIM115 - open until the process ends.
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - as above.
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - as above.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def tell(text: str) -> None:
    """Print to stderr; where it cannot be written, nobody would read a complaint about that either."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        forget(sys.stderr)


def forget(stream: TextIO) -> None:
    """Keep Python from trying once more, when it exits, to write what could not be written."""
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
