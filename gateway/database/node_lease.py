"""The lease of a node of a cluster: its row in the table `node`. The shards and posts of the node depend on it.

1. A node inserts a row when it starts, under a random `boot`. It renews the row with each transaction, and at least
   four times before it expires.
2. Every transaction starts with `fence`, which changes the row and so locks it. Before another node takes over the
   shards of an expired node, it deletes the row of that node. So it waits for a transaction that is being committed,
   and all later ones of the expired node fail: those of a node that was paused or cut off come too late.
3. The owner of a shard changes in two ways only: its owner gives it back by a transaction of its own, or another node
   has deleted the row of the owner. So a transaction whose `fence` has succeeded still owns all shards of the node.
4. Only the clock of the database is used.
"""

from collections.abc import Iterable
from pathlib import Path
from uuid import uuid4

import msgspec

from gateway.database.connection import Connection
from gateway.database.lease import (
    LEASE_SECONDS,
    CommitsLost,
    Holder,
    LeaseLost,
    LeaseTaken,
    describe_holder,
    has_ended,
)
from gateway.errors import CannotStart

SAFE_PART = 0.75
"""The part of its lease after which a node stops if it could not renew the lease."""
SHORTEST_POLL = 1.0
"""The shortest time in seconds for which a platform can be told to hold a request for messages."""
TAKEN_OVER = (
    "The other nodes of the cluster have taken over from this one, because it was silent for longer than its lease. "
    "Restart it: it goes on as a new node."
)


class TooOld(CannotStart):
    """A node that is more than one schema behind may not join."""


class NodeLease:
    """`name` is for people; `config` is a digest of the settings.

    `labels` decide which shards the node may own: see `hosts` in `gateway/shards.py`.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        name: str,
        seconds: float,
        version: str,
        schema: str,
        config: str,
        labels: Iterable[str] = (),
    ) -> None:
        self.boot = uuid4().hex
        self.name = name
        self.seconds = seconds
        self._version = version
        self._schema = schema
        self.config = config
        """It changes with a reload. `ClusterNode` stores that."""
        self.labels = frozenset(labels)
        self._holder = Holder.here(data_dir)

    @property
    def safe_seconds(self) -> float:
        """Seconds after a renewal for which the node may act. The rest is for what is under way then."""
        return min(self.seconds * SAFE_PART, self.seconds - SHORTEST_POLL)

    def take(self, connection: Connection) -> None:
        # Locks out a single gateway that starts at the same time.
        connection.execute(
            "INSERT INTO writer (id, boot, holder, batch, renewed_at) VALUES (1, '', '', 0, now()) "
            "ON CONFLICT DO NOTHING"
        )
        held_by, holder, renewed_at, is_expired = connection.execute(
            "SELECT boot, holder, renewed_at, abs(extract(epoch FROM now() - renewed_at)) > ? "
            "FROM writer WHERE id = 1 FOR UPDATE",
            (LEASE_SECONDS,),
        ).fetchone()
        if held_by and not is_expired and not has_ended(holder, self._holder):
            raise LeaseTaken(
                f"The database is in use by a gateway without a cluster: {describe_holder(holder)}. "
                "Stop that one, or set its cluster.enabled to true.",
                renewed_at,
            )
        # A node that was killed on this machine need not wait until its own lease expires.
        for boot, other in connection.execute("SELECT boot, holder FROM node").fetchall():
            if has_ended(other, self._holder):
                connection.execute("DELETE FROM node WHERE boot = ?", (boot,))
        self._refuse_if_too_old(connection)
        # Without an address, the other nodes keep their shards: `ClusterNode.start` stores it when this one can serve.
        # The row exists if the connection was lost while the first attempt was committed.
        connection.execute(
            "INSERT INTO node (boot, name, address, holder, version, schema, config, lease_ms, labels) "
            "VALUES (?, ?, '', ?, ?, ?, ?, ?, ?) ON CONFLICT (boot) DO UPDATE SET renewed_at = now()",
            (
                self.boot,
                self.name,
                msgspec.json.encode(self._holder).decode(),
                self._version,
                self._schema,
                self.config,
                round(self.seconds * 1000),
                " ".join(sorted(self.labels)),
            ),
        )

    def _refuse_if_too_old(self, connection: Connection) -> None:
        """Raise `TooOld` if a live node is more than one schema ahead: it may send what this version cannot read."""
        newest = (
            "SELECT name, version, schema FROM node WHERE renewed_at > now() - lease_ms * interval '1 ms' "
            "ORDER BY schema DESC LIMIT 1"
        )
        for name, version, schema in connection.execute(newest).fetchall():
            if int(schema) > int(self._schema) + 1:
                raise TooOld(
                    f"This node (version {self._version}, schema {self._schema}) is too old for the cluster: the node "
                    f"{name} has version {version}, schema {schema}, and versions may differ by one schema only. "
                    "Update this node."
                )

    def fence(self, connection: Connection, batch: int, *, after: int) -> None:
        renewal = "UPDATE node SET batch = ?, renewed_at = now() WHERE boot = ? AND batch = ?"
        if not connection.execute(renewal, (batch, self.boot, after)).rowcount:
            self.last_batch(connection, at_least=after)
            raise LeaseLost(TAKEN_OVER)

    def last_batch(self, connection: Connection, *, at_least: int) -> int:
        renewal = "UPDATE node SET renewed_at = now() WHERE boot = ? RETURNING batch"
        found = connection.execute(renewal, (self.boot,)).fetchone()
        if found is None:
            raise LeaseLost(TAKEN_OVER)
        if int(found[0]) < at_least:
            raise CommitsLost
        return int(found[0])

    def release(self, connection: Connection) -> None:
        """Leave the cluster. What the node still owns is free at once."""
        connection.execute("UPDATE shard SET owner = NULL, changed_at = now() WHERE owner = ?", (self.boot,))
        connection.execute("UPDATE post SET owner = NULL, changed_at = now() WHERE owner = ?", (self.boot,))
        connection.execute("DELETE FROM node WHERE boot = ?", (self.boot,))
        connection.execute("SELECT pg_notify('gatehouse', 'nodes')")
