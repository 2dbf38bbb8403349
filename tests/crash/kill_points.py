"""Points at which a daemon under test can kill itself: around every write, sync, rename, commit, send and tool run.

`install` wraps functions of `os` and `sqlite3`, not of Gatehouse, and must run before any module of Gatehouse is
imported. The wrappers do nothing until `arm` is called.
"""

import os
import re
import signal
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

whole_write = os.write
"""The original `os.write`, without kill points."""
_TABLE = re.compile(r"\b(?:INTO|UPDATE|FROM)\s+(\w+)", re.IGNORECASE)


class _Counter:
    """Counts the kill points that the process reaches."""

    def __init__(self) -> None:
        self._at = 0
        self._count = 0
        self._lock = threading.Lock()
        self._report: Path | None = None

    def set(self, at: int, report: Path) -> None:
        self._at, self._count, self._report = at, 0, report

    def is_due(self, name: str) -> bool:
        """Count a point. Return True if the process must die here, after writing the name to the report file."""
        if not self._at or self._report is None:
            return False
        with self._lock:
            self._count += 1
            if self._count != self._at:
                return False
        self._report.write_text(name)
        return True


_counter = _Counter()


def arm(at: int, report: Path) -> None:
    """Kill this process at the point number `at`, counted from now, and write its name to `report`. 0 means never."""
    _counter.set(at, report)


def reach(name: str) -> None:
    """Count the point `name`, and kill this process if it is the one."""
    if _counter.is_due(name):
        _kill_self()


def _kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def install() -> None:
    """Wrap functions of `os` and `sqlite3`, in this process and in those that it forks."""
    os.write = _torn_write
    for name in ("fsync", "link", "replace", "rename", "unlink", "ftruncate", "mkdir", "rmdir"):
        setattr(os, name, _with_points(name, getattr(os, name)))
    connect = sqlite3.connect
    setattr(sqlite3, "connect", lambda *given, **named: connect(*given, factory=_Connection, **named))  # noqa: B010 - mypy knows only one signature


def _with_points(
    name: str, call: Callable[..., Any]
) -> Callable[..., Any]:  # Any: it wraps functions of any signature.
    def wrapper(*given: Any, **named: Any) -> Any:  # noqa: ANN401 - as above
        reach(f"{name} before")
        result = call(*given, **named)
        reach(f"{name} after")
        return result

    return wrapper


def _torn_write(descriptor: int, data: Any, /) -> int:  # noqa: ANN401 - any buffer, as for `os.write`
    reach("write before")
    if _counter.is_due("write torn"):
        whole_write(descriptor, bytes(data)[: len(data) // 2])
        _kill_self()
    written = whole_write(descriptor, data)
    reach("write after")
    return written


class _Connection(sqlite3.Connection):
    """Has points around commits only. A death inside a transaction has the same effect as one before its commit."""

    tables: frozenset[str] = frozenset()

    def execute(self, statement: str, *given: Any) -> sqlite3.Cursor:  # noqa: ANN401 - as SQLite takes them
        if statement == "VACUUM":
            reach("vacuum before")
            cursor = super().execute(statement)
            reach("vacuum after")
            return cursor
        if statement != "COMMIT":
            self.tables |= frozenset(_TABLE.findall(statement))
            return super().execute(statement, *given)
        touched, self.tables = ",".join(sorted(self.tables)), frozenset()
        reach(f"commit before {touched}")
        cursor = super().execute(statement)
        reach(f"commit after {touched}")
        return cursor
