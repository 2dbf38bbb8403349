"""Points at which a daemon under test can be killed: around every write, sync, rename, commit, send and effect.

Installed before anything of ours is imported, it stands in front of the operating system, not of our code. Until
`arm` is called it only passes through.
"""

import os
import re
import signal
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["arm", "install", "reach", "whole_write"]

whole_write = os.write
"""A write that is no point."""
_TABLE = re.compile(r"\b(?:INTO|UPDATE|FROM)\s+(\w+)", re.IGNORECASE)


class _Fuse:
    """Counts the points that are reached, and kills at the one it was set to."""

    def __init__(self) -> None:
        self._at = 0
        self._count = 0
        self._lock = threading.Lock()
        self._report: Path | None = None

    def set(self, at: int, report: Path) -> None:
        self._at, self._count, self._report = at, 0, report

    def is_due(self, name: str) -> bool:
        """Count one point; the one that is due leaves its name for whoever looks at the remains."""
        if not self._at or self._report is None:
            return False
        with self._lock:
            self._count += 1
            if self._count != self._at:
                return False
        self._report.write_text(name)
        return True


_fuse = _Fuse()


def arm(at: int, report: Path) -> None:
    """Die at the point number `at` from now, and leave its name in the file `report`; 0 never dies."""
    _fuse.set(at, report)


def reach(name: str) -> None:
    if _fuse.is_due(name):
        die()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def install() -> None:
    """Put the points in front of `os` and `sqlite3`, in this process and those it forks."""
    os.write = _torn_write
    for name in ("fsync", "replace", "rename", "unlink", "ftruncate", "mkdir"):
        setattr(os, name, _watched(name, getattr(os, name)))
    connect = sqlite3.connect
    setattr(sqlite3, "connect", lambda *given, **named: connect(*given, factory=_Connection, **named))  # noqa: B010 - mypy knows only one signature


def _watched(name: str, call: Callable[..., Any]) -> Callable[..., Any]:  # Any: as the call that it stands in front of.
    def watched(*given: Any, **named: Any) -> Any:  # noqa: ANN401 - as above
        reach(f"{name} before")
        result = call(*given, **named)
        reach(f"{name} after")
        return result

    return watched


def _torn_write(descriptor: int, data: Any, /) -> int:  # noqa: ANN401 - whatever `os.write` takes
    reach("write before")
    if _fuse.is_due("write torn"):
        whole_write(descriptor, bytes(data)[: len(data) // 2])
        die()
    written = whole_write(descriptor, data)
    reach("write after")
    return written


class _Connection(sqlite3.Connection):
    """A death inside a transaction is one before its commit: SQLite's own tests are about the rest."""

    tables: frozenset[str] = frozenset()

    def execute(self, statement: str, *given: Any) -> sqlite3.Cursor:  # noqa: ANN401 - as SQLite takes them
        if statement != "COMMIT":
            self.tables |= frozenset(_TABLE.findall(statement))
            return super().execute(statement, *given)
        touched, self.tables = ",".join(sorted(self.tables)), frozenset()
        reach(f"commit before {touched}")
        cursor = super().execute(statement)
        reach(f"commit after {touched}")
        return cursor
