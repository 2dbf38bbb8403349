"""Errors of the spool. Classes differ only where the reaction differs.

GatehouseError
├── CommitRefused           this call was not stored; others in the same batch were
│   ├── Duplicate           the row exists
│   ├── WrongState          the row's state does not allow the change
│   ├── Conflict            the transcript entry was journaled before with different bytes
│   ├── TooMany             a limit is reached
│   └── ArrivalsWaiting     earlier messages of the scope have to be accepted first
├── SpoolUnavailable        nothing was stored; retry later: the disk is full, or the database is away
└── SpoolBroken             nothing can be stored any more; the daemon has to stop
"""

import sqlite3
from enum import Enum, auto

from gateway.errors import GatehouseError, MustStop


class CommitRefused(GatehouseError):
    pass


class Duplicate(CommitRefused):
    pass


class WrongState(CommitRefused):
    pass


class Conflict(CommitRefused):
    pass


class NumberTaken(CommitRefused):
    """The number of a new row belongs to another one."""


class TooMany(CommitRefused):
    pass


class ArrivalsWaiting(CommitRefused):
    """Other nodes of the cluster have accepted messages of this scope, which come before this one."""


class SpoolUnavailable(GatehouseError):
    pass


class SpoolBroken(MustStop):
    """The last commit may or may not be on disk. Only the next start can tell."""


DISK_FULL_MESSAGE = "The disk is full, so nothing can be accepted until there is room again."


class Cause(Enum):
    """The cause of a SQLite error."""

    DISK_FULL = auto()
    """Nothing was stored. Writing can continue when there is room."""
    DAMAGED = auto()
    LOCKED = auto()
    READ_ONLY = auto()
    DISK_FAILED = auto()
    """The disk failed. The content of the file is unknown."""
    CALLER = auto()
    """Not about the file: for example a value of the wrong type, or a text that is too long."""


_CAUSES = {
    sqlite3.SQLITE_FULL: Cause.DISK_FULL,
    sqlite3.SQLITE_CORRUPT: Cause.DAMAGED,
    sqlite3.SQLITE_NOTADB: Cause.DAMAGED,
    sqlite3.SQLITE_BUSY: Cause.LOCKED,
    sqlite3.SQLITE_LOCKED: Cause.LOCKED,
    sqlite3.SQLITE_READONLY: Cause.READ_ONLY,
    sqlite3.SQLITE_CANTOPEN: Cause.READ_ONLY,
    sqlite3.SQLITE_PERM: Cause.READ_ONLY,
    sqlite3.SQLITE_AUTH: Cause.READ_ONLY,
    sqlite3.SQLITE_IOERR: Cause.DISK_FAILED,
    sqlite3.SQLITE_PROTOCOL: Cause.DISK_FAILED,
    sqlite3.SQLITE_NOLFS: Cause.DISK_FAILED,
    sqlite3.SQLITE_NOMEM: Cause.DISK_FAILED,
    sqlite3.SQLITE_INTERNAL: Cause.DISK_FAILED,
    sqlite3.SQLITE_MISUSE: Cause.DISK_FAILED,
}


def cause_of(error: BaseException) -> Cause:
    if isinstance(error, MemoryError):
        return Cause.DISK_FAILED
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return Cause.CALLER
    # The low byte is the primary result code: https://sqlite.org/rescode.html
    return _CAUSES.get(code & 0xFF, Cause.CALLER)


def as_spool_error(error: BaseException) -> SpoolUnavailable | SpoolBroken:
    """Return the exception to raise for an error of the file."""
    match cause_of(error):
        case Cause.DISK_FULL:
            return SpoolUnavailable(DISK_FULL_MESSAGE)
        case Cause.LOCKED:  # Nothing was stored: the lock is taken when a transaction starts.
            return SpoolUnavailable("Another program has locked the database. Nothing can be accepted until it ends.")
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    return SpoolBroken(
        f"The spool can no longer be written ({error}, {name}). Restart Gatehouse. If it happens again, check the disk."
    )
