"""Points at which a daemon under test can kill itself: around every write, sync, rename, commit, send and tool run.

`install` wraps functions of `os`, `select`, `sqlite3` and `psycopg`, not of Gatehouse, and must run before any module
of Gatehouse is imported. The wrappers do nothing until `arm` is called.
"""

import os
import re
import select
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from tests.polling import POLL_INTERVAL

whole_write = os.write
"""The original `os.write`, without kill points."""
_poll = select.poll
_READS = re.compile(r"\s*(SELECT|SHOW)\b", re.IGNORECASE)
_TABLE = re.compile(r"\b(?:INTO|UPDATE|FROM)\s+(\w+)", re.IGNORECASE)


class _Counter:
    """Counts the kill points that the process reaches."""

    def __init__(self) -> None:
        self._at = 0
        self._count = 0
        self._lock = threading.Lock()
        self._report: Path | None = None
        self.resume: Path | None = None

    def set(self, at: int, report: Path, resume: Path | None) -> None:
        self._at, self._count, self._report, self.resume = at, 0, report, resume

    def is_due(self, name: str) -> bool:
        """Count a point. Return True if the process must die here, after writing the name to the report file."""
        if not self._at or self._report is None:
            return False
        with self._lock:
            self._count += 1
            if self._count != self._at:
                return False
        new = self._report.with_suffix(".new")
        new.write_text(name)
        new.rename(self._report)
        return True


_counter = _Counter()


def arm(at: int, report: Path, resume: Path | None = None) -> None:
    """Kill this process at the point number `at`, counted from now, and write its name to `report`. 0 means never.

    With `resume` the process does not die: it stops at the point until that file exists.
    """
    _counter.set(at, report, resume)


def reach(name: str) -> None:
    """Count the point `name`, and kill this process if it is the one."""
    if _counter.is_due(name):
        _stop_here()


def _stop_here() -> None:
    if _counter.resume is None:
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        while not _counter.resume.exists():
            time.sleep(POLL_INTERVAL)


def install() -> None:
    """Wrap functions of `os`, `select`, `sqlite3` and `psycopg`, in this process and in those that it forks."""
    os.write = _torn_write
    for name in ("fsync", "link", "replace", "rename", "unlink", "ftruncate", "mkdir", "rmdir"):
        setattr(os, name, _with_points(name, getattr(os, name)))
    setattr(subprocess.Popen, "__init__", _with_points("start program", subprocess.Popen.__init__))  # noqa: B010 - mypy knows its signature
    connect = sqlite3.connect
    setattr(sqlite3, "connect", lambda *given, **named: connect(*given, factory=_Connection, **named))  # noqa: B010 - mypy knows only one signature
    setattr(select, "poll", _Poll)  # noqa: B010 - as above
    _install_in_psycopg()


def _install_in_psycopg() -> None:
    """Add points around the changes and the commit of a migration. The daemon itself uses libpq, see `_Poll`."""
    execute, commit = psycopg.Cursor.execute, psycopg.Connection.commit

    def execute_with_points(cursor: psycopg.Cursor[Any], query: Any, *given: Any, **named: Any) -> Any:  # noqa: ANN401 - as psycopg takes them
        done = execute(cursor, query, *given, **named)
        if not _READS.match(str(query)):
            reach("migration statement after")
        return done

    def commit_with_points(connection: psycopg.Connection[Any]) -> None:  # Any: rows of any type.
        _reach_before_commit(connection)
        commit(connection)
        reach("migration commit after")

    setattr(psycopg.Cursor, "execute", execute_with_points)  # noqa: B010 - mypy knows its signature
    setattr(psycopg.Connection, "commit", commit_with_points)  # noqa: B010 - as above


class _Poll:
    """Waits for an answer of PostgreSQL. Libpq has sent everything before: a batch of statements, or a COMMIT.

    A death between two statements of a batch has the same effect as one before their answer: the server rolls back.
    """

    def __init__(self) -> None:
        poll = _poll()
        self.register, self.modify, self.unregister, self._wait = poll.register, poll.modify, poll.unregister, poll.poll

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        reach("database answer before")
        found = self._wait(timeout)
        reach("database answer after")
        return found


def _reach_before_commit(connection: psycopg.Connection[Any]) -> None:  # Any: as above.
    reach("migration commit before")
    if _counter.is_due("migration commit sent"):
        if _counter.resume is None:
            connection.pgconn.send_query(b"COMMIT")
            connection.pgconn.flush()
        _stop_here()


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
        if _counter.resume is None:
            whole_write(descriptor, bytes(data)[: len(data) // 2])
        _stop_here()
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

    def commit(self) -> None:
        if not self.in_transaction:
            super().commit()
            return
        reach("commit before migration")
        super().commit()
        reach("commit after migration")
