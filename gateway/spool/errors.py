"""What can go wrong with a commit; classes differ only where the reaction differs.

GatehouseError
├── Refusal                 this call alone was not stored; its neighbours were
│   ├── Duplicate           it is there already
│   ├── WrongState          the row is not in a state from which this is allowed
│   ├── Conflict            the same entry of a transcript was noted before, with other bytes
│   └── TooMany             there is no room for another of its kind
├── SpoolFull               nothing was stored; try again when there is room
└── SpoolBroken             nothing can be stored any more; the daemon has to end
"""

import sqlite3
from enum import Enum, auto

from gateway.errors import GatehouseError


class CommitRefused(GatehouseError):
    pass


class Duplicate(CommitRefused):
    pass


class WrongState(CommitRefused):
    pass


class Conflict(CommitRefused):
    pass


class TooMany(CommitRefused):
    pass


class SpoolFull(GatehouseError):
    pass


class SpoolBroken(GatehouseError):
    """What was being committed may or may not be on disk; only a new start can tell."""


NO_ROOM = "The disk is full, so nothing can be accepted until there is room again."


class Kind(Enum):
    FULL = auto()
    """Nothing was stored; it may go on when there is room."""
    DAMAGED = auto()
    TAKEN = auto()
    READ_ONLY = auto()
    BROKEN = auto()
    """The disk does not do what it is asked to; nobody knows what is on it."""
    CALLERS_OWN = auto()
    """Says nothing about the file: a value of the wrong type, a text that is too long."""


_KINDS = {
    sqlite3.SQLITE_FULL: Kind.FULL,
    sqlite3.SQLITE_CORRUPT: Kind.DAMAGED,
    sqlite3.SQLITE_NOTADB: Kind.DAMAGED,
    sqlite3.SQLITE_BUSY: Kind.TAKEN,
    sqlite3.SQLITE_LOCKED: Kind.TAKEN,
    sqlite3.SQLITE_READONLY: Kind.READ_ONLY,
    sqlite3.SQLITE_CANTOPEN: Kind.READ_ONLY,
    sqlite3.SQLITE_PERM: Kind.READ_ONLY,
    sqlite3.SQLITE_AUTH: Kind.READ_ONLY,
    sqlite3.SQLITE_IOERR: Kind.BROKEN,
    sqlite3.SQLITE_PROTOCOL: Kind.BROKEN,
    sqlite3.SQLITE_NOLFS: Kind.BROKEN,
    sqlite3.SQLITE_NOMEM: Kind.BROKEN,
    sqlite3.SQLITE_INTERNAL: Kind.BROKEN,
    sqlite3.SQLITE_MISUSE: Kind.BROKEN,
}
_PRIMARY = 0xFF
"""The low byte of an error code says what happened; the rest says where."""


def kind_of(trouble: BaseException) -> Kind:
    if isinstance(trouble, MemoryError):
        return Kind.BROKEN
    code = getattr(trouble, "sqlite_errorcode", None)
    return Kind.CALLERS_OWN if code is None else _KINDS.get(code & _PRIMARY, Kind.CALLERS_OWN)


def sentence(trouble: BaseException) -> SpoolFull | SpoolBroken:
    """Return what to raise for trouble with the file itself."""
    if kind_of(trouble) is Kind.FULL:
        return SpoolFull(NO_ROOM)
    name = getattr(trouble, "sqlite_errorname", type(trouble).__name__)
    return SpoolBroken(
        f"The spool cannot be written any more ({trouble}, {name}). "
        "Gatehouse has to be started again; check the disk if it happens again."
    )
