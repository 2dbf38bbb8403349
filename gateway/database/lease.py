"""The single-gateway lease: the row of the table `writer` says which gateway may write to a PostgreSQL database.

1. A gateway takes the row at its start, with a random `boot`. It renews the row with each transaction, or every few
   seconds. It frees the row when it closes.
2. Every transaction starts with `fence`, which changes the row and so locks it. If another gateway has taken the row,
   `fence` raises: the transaction of a gateway that was paused or cut off for long comes too late, and stores nothing.
3. The row counts the committed transactions. If the database has an older count, it has lost some: a standby that did
   not have them was promoted, or a backup was restored. `fence` raises then, too: the gateway remembers too much.
4. Only the clock of the database is used. If it jumps, a live gateway may lose its lease, but no two can write.
"""

import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import msgspec
from msgspec import Struct

from gateway.database.connection import Connection
from gateway.errors import CannotStart

LEASE_SECONDS = 15
RENEWAL_INTERVAL = 5.0


class Lease(Protocol):
    """The right to write to a database. `seconds` is for how long it holds without a renewal."""

    @property
    def seconds(self) -> float: ...

    def take(self, connection: Connection) -> None:
        """Take the lease, inside a transaction. Raises `LeaseTaken` if that is not possible."""

    def fence(self, connection: Connection, batch: int, *, after: int) -> None:
        """Renew it and record the number of a transaction, which follows the one with the number `after`."""

    def last_batch(self, connection: Connection, *, at_least: int) -> int:
        """Renew it and return the number of the last transaction that was committed. Raises `LeaseLost`."""

    def release(self, connection: Connection) -> None: ...


class LeaseLost(Exception):
    """Another gateway has taken the database. A text says more about it."""


class CommitsLost(LeaseLost):
    """The database no longer has all transactions that this gateway has committed."""


class LeaseTaken(CannotStart):
    """Another gateway holds the lease, and has renewed it at `renewed_at`. If it has crashed, that never changes."""

    def __init__(self, message: str, renewed_at: datetime) -> None:
        super().__init__(message)
        self.renewed_at = renewed_at


class Holder(Struct, frozen=True, kw_only=True):
    """A gateway that holds a lease."""

    host: str
    process: int
    data_dir: str
    since: datetime
    started: str = ""
    """When the process has started, as its system counts: other processes get the same id later."""

    @classmethod
    def here(cls, data_dir: Path) -> "Holder":
        return cls(
            host=socket.gethostname(),
            process=os.getpid(),
            data_dir=str(data_dir.resolve()),
            since=datetime.now(UTC),
            started=_start_of(os.getpid()),
        )

    def has_ended(self, here: "Holder") -> bool:
        """Return whether this is a process of the same system and data directory that does not run any more."""
        if (self.host, self.data_dir) != (here.host, here.data_dir):
            return False
        try:
            os.kill(self.process, 0)
        except (ProcessLookupError, OverflowError):
            return True
        except PermissionError:
            pass
        return self.started != _start_of(self.process)

    def __str__(self) -> str:
        return (
            f"process {self.process} on {self.host} with the data directory {self.data_dir}, "
            f"since {self.since:%Y-%m-%d %H:%M:%S} UTC"
        )


class SingleLease:
    """The lease of the only gateway on a database, in the data directory `data_dir`."""

    seconds = float(LEASE_SECONDS)

    def __init__(self, data_dir: Path) -> None:
        self._boot = uuid4().hex
        self._holder = Holder.here(data_dir)

    def take(self, connection: Connection) -> None:
        take(connection, self._boot, self._holder)

    def fence(self, connection: Connection, batch: int, *, after: int) -> None:
        fence(connection, self._boot, batch, after=after)

    def last_batch(self, connection: Connection, *, at_least: int) -> int:
        return last_batch(connection, self._boot, at_least=at_least)

    def release(self, connection: Connection) -> None:
        release(connection, self._boot)


def take(connection: Connection, boot: str, here: Holder) -> None:
    """Take the lease, inside a transaction. Raises `LeaseTaken` if another gateway holds it."""
    connection.execute(
        "INSERT INTO writer (id, boot, holder, batch, renewed_at) VALUES (1, '', '', 0, now()) ON CONFLICT DO NOTHING"
    )
    # A renewal in the future was made before the clock was set back. A live gateway soon makes another one.
    found = connection.execute(
        "SELECT boot, holder, renewed_at, abs(extract(epoch FROM now() - renewed_at)) > ? "
        "FROM writer WHERE id = 1 FOR UPDATE",
        (LEASE_SECONDS,),
    ).fetchone()
    held_by, holder, renewed_at, is_expired = found
    if held_by and not is_expired and not has_ended(holder, here):
        raise LeaseTaken(
            f"The database is in use by another gateway: {describe_holder(holder)}. Stop that one first.", renewed_at
        )
    nodes = [(name, renewed_at) for name, holder, renewed_at in live_nodes(connection) if not has_ended(holder, here)]
    if nodes:
        raise LeaseTaken(
            f"The database is in use by a cluster. Its nodes are: {', '.join(sorted(name for name, _ in nodes))}. Stop "
            "them first, or run this command with the configuration of a node that is running here. A gateway joins "
            "them with cluster.enabled = true.",
            max(renewed_at for _, renewed_at in nodes),
        )
    connection.execute(
        "UPDATE writer SET boot = ?, holder = ?, batch = 0, renewed_at = now() WHERE id = 1",
        (boot, msgspec.json.encode(here).decode()),
    )


def fence(connection: Connection, boot: str, batch: int, *, after: int) -> None:
    """Renew the lease and record the number of the transaction, which follows the one with the number `after`.

    Raises `LeaseLost`.
    """
    renewal = "UPDATE writer SET batch = ?, renewed_at = now() WHERE id = 1 AND boot = ? AND batch = ?"
    if not connection.execute(renewal, (batch, boot, after)).rowcount:
        last_batch(connection, boot, at_least=after)
        raise LeaseLost


def last_batch(connection: Connection, boot: str, *, at_least: int) -> int:
    """Renew the lease and return the number of the last transaction that was committed. Raises `LeaseLost`.

    This waits for a transaction that the server still has to end after its connection was lost: that one has locked
    the row.
    """
    renewal = "UPDATE writer SET renewed_at = now() WHERE id = 1 AND boot = ? RETURNING batch"
    found = connection.execute(renewal, (boot,)).fetchone()
    if found is None:
        raise LeaseLost
    if int(found[0]) < at_least:
        raise CommitsLost
    return int(found[0])


def release(connection: Connection, boot: str) -> None:
    connection.execute("UPDATE writer SET boot = '', holder = '' WHERE id = 1 AND boot = ?", (boot,))


def live_nodes(connection: Connection) -> list[tuple[str, str, datetime]]:
    """Return the name, the holder and the last renewal of each node of a cluster whose lease holds."""
    alive = "renewed_at > now() - lease_ms * interval '1 ms'"
    return connection.execute(f"SELECT name, holder, renewed_at FROM node WHERE {alive}").fetchall()  # noqa: S608 - a constant.


def has_ended(holder: str, here: Holder) -> bool:
    """Return whether the process of `holder`, as it is stored, does not run any more. It ran in the place of `here`."""
    try:
        return msgspec.json.decode(holder, type=Holder).has_ended(here)
    except msgspec.DecodeError:  # Written by another version.
        return False


def describe_holder(holder: str) -> str:
    try:
        return str(msgspec.json.decode(holder, type=Holder))
    except msgspec.DecodeError:
        return holder or "unknown"


def _start_of(process: int) -> str:
    try:
        # The name in parentheses can contain spaces: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):  # It has ended, or this is not Linux.
        return ""
