"""The rows that nodes of a cluster share: which nodes are alive, and which of them owns each shard and each post.

These functions run in the writer thread of the spool, inside its fenced transactions.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from gateway.database.connection import Connection
from gateway.spool.operations import REVIVED

CHANNEL = "gatehouse"
"""The channel of NOTIFY: `arrival N` wakes the owner of shard N, and `nodes` wakes all nodes."""

Post = tuple[str, str]
"""The channel and the account of a bot that only one node may receive messages for."""

_WAKE = f"SELECT pg_notify('{CHANNEL}', 'nodes')"


class NodeRow(Struct, frozen=True, kw_only=True):
    """A node. `silent_ms` is how long ago it has renewed its lease. It has no address while it is starting."""

    boot: str
    name: str
    address: str
    version: str
    schema: str
    config: str
    lease_ms: int
    is_leaving: bool
    labels: frozenset[str]
    joined_at: datetime
    silent_ms: int

    @property
    def is_expired(self) -> bool:
        return self.silent_ms > self.lease_ms


class ShardRow(Struct, frozen=True, kw_only=True):
    """A shard. `labels` are those that its sessions need."""

    number: int
    owner: str | None
    epoch: int
    labels: frozenset[str]


class Survey(Struct, frozen=True, kw_only=True):
    """The state of the cluster at one moment."""

    nodes: Mapping[str, NodeRow]
    shards: tuple[ShardRow, ...]
    posts: Mapping[Post, str | None]
    """The node that each post belongs to."""
    arrived: Mapping[int, int]
    """How many messages of other nodes wait for this one, by shard. Shards without any are left out."""
    oldest_seconds: float
    """For how long the oldest of these messages has been waiting."""
    has_revived: bool
    """A person has revived replies that their owner has not noticed yet."""
    facts: Mapping[str, int]
    """By prefix, how often the facts have changed that all nodes have in memory."""

    @property
    def active(self) -> list[NodeRow]:
        """The nodes that take shards."""
        return [node for node in self.nodes.values() if node.address and not node.is_leaving and not node.is_expired]

    @property
    def dead(self) -> set[str]:
        """Nodes that own something, but are gone or have not renewed their lease."""
        owners = {shard.owner for shard in self.shards} | set(self.posts.values())
        gone = {owner for owner in owners if owner is not None and owner not in self.nodes}
        return gone | {boot for boot, node in self.nodes.items() if node.is_expired}


def survey(shards: Sequence[int], connection: Connection) -> Survey:
    """Read everything. `shards` are those of this node."""
    nodes = connection.execute(
        "SELECT boot, name, address, version, schema, config, lease_ms, is_leaving, labels, joined_at, "
        "(extract(epoch FROM clock_timestamp() - renewed_at) * 1000)::bigint FROM node ORDER BY joined_at"
    )
    named = {
        row[0]: NodeRow(
            boot=row[0],
            name=row[1],
            address=row[2],
            version=row[3],
            schema=row[4],
            config=row[5],
            lease_ms=row[6],
            is_leaving=bool(row[7]),
            labels=frozenset(row[8].split()),
            joined_at=row[9],
            silent_ms=row[10],
        )
        for row in nodes
    }
    owners = connection.execute("SELECT number, owner, epoch, labels FROM shard ORDER BY number")
    rows = tuple(
        ShardRow(number=number, owner=owner, epoch=epoch, labels=frozenset(labels.split()))
        for number, owner, epoch, labels in owners
    )
    posts = {
        (channel, account): owner
        for channel, account, owner in connection.execute("SELECT channel, account, owner FROM post")
    }
    arrived = connection.execute(
        "SELECT shard, count(*), (extract(epoch FROM clock_timestamp()) - min(at) / 1e6)::float8 "
        "FROM arrival WHERE shard = ANY(?) GROUP BY shard",
        (list(shards),),
    ).fetchall()
    (has_revived,) = connection.execute(
        "SELECT EXISTS (SELECT 1 FROM outbox WHERE state <> 'delivered' AND state = 'pending' AND attempts = ?)",
        (REVIVED,),
    ).fetchone()
    versions = dict(connection.execute("SELECT prefix, version FROM fact_version").fetchall())
    return Survey(
        nodes=named,
        shards=rows,
        posts=posts,
        arrived={shard: count for shard, count, _ in arrived},
        oldest_seconds=max([0.0, *(seconds for _, _, seconds in arrived)]),  # Clocks may differ.
        has_revived=has_revived,
        facts=versions,
    )


def expire(dead: Collection[str], connection: Connection) -> list[str]:
    """Remove nodes whose lease has expired, and free everything that they own. Returns their names.

    This waits for a transaction of theirs that is being committed. One that has renewed its lease since stays.
    """
    removed = connection.execute(
        "DELETE FROM node WHERE boot = ANY(?) AND renewed_at < now() - lease_ms * interval '1 ms' RETURNING boot, name",
        (list(dead),),
    ).fetchall()
    # A node that is in the list and has no row is gone: no boot is used twice.
    alive = {boot for (boot,) in connection.execute("SELECT boot FROM node WHERE boot = ANY(?)", (list(dead),))}
    gone = sorted(set(dead) - alive)
    names = [name for _, name in removed]
    connection.execute(
        "UPDATE shard SET owner = NULL, changed_at = now(), lost_by = ? WHERE owner = ANY(?)",
        (", ".join(names), gone),
    )
    connection.execute("UPDATE post SET owner = NULL, changed_at = now() WHERE owner = ANY(?)", (gone,))
    connection.execute(_WAKE)
    return names


def claim(boot: str, wanted: Mapping[tuple[int, ...], int], connection: Connection) -> dict[int, int]:
    """Take free shards, up to a number of each group of `wanted`, and return their epochs."""
    taken: dict[int, int] = {}
    for numbers, limit in wanted.items():
        taken |= connection.execute(
            "UPDATE shard SET owner = ?, epoch = epoch + 1, changed_at = now() WHERE number IN "
            "(SELECT number FROM shard WHERE owner IS NULL AND number = ANY(?) "
            "ORDER BY number LIMIT ? FOR UPDATE SKIP LOCKED) RETURNING number, epoch",
            (boot, list(numbers), limit),
        ).fetchall()
    if taken:
        connection.execute(_WAKE)
    return taken


def give_back(boot: str, shards: Collection[int], connection: Connection) -> None:
    connection.execute(
        "UPDATE shard SET owner = NULL, changed_at = now(), lost_by = NULL WHERE owner = ? AND number = ANY(?)",
        (boot, list(shards)),
    )
    connection.execute(_WAKE)


def claim_post(boot: str, post: Post, connection: Connection) -> bool:
    """Become the node that receives for a bot, unless another node is that."""
    taken = connection.execute(
        "INSERT INTO post (channel, account, owner, epoch) VALUES (?, ?, ?, 1) ON CONFLICT (channel, account) "
        "DO UPDATE SET owner = excluded.owner, epoch = post.epoch + 1, changed_at = now() WHERE post.owner IS NULL "
        "RETURNING epoch",
        (*post, boot),
    ).fetchone()
    return taken is not None


def give_back_posts(boot: str, posts: Collection[Post], connection: Connection) -> None:
    for post in posts:
        connection.execute(
            "UPDATE post SET owner = NULL, changed_at = now() WHERE channel = ? AND account = ? AND owner = ?",
            (*post, boot),
        )
    connection.execute(_WAKE)


def announce(boot: str, address: str, connection: Connection) -> None:
    """Store the address under which other nodes can reach this one. From then on it counts as one of them."""
    connection.execute("UPDATE node SET address = ? WHERE boot = ?", (address, boot))
    connection.execute(_WAKE)


def change_config(boot: str, config: str, connection: Connection) -> None:
    """Store the digest of the settings of a node, which have changed."""
    connection.execute("UPDATE node SET config = ? WHERE boot = ?", (config, boot))
    connection.execute(_WAKE)


def start_leaving(boot: str, connection: Connection) -> None:
    """Let the other nodes count this one out."""
    connection.execute("UPDATE node SET is_leaving = 1 WHERE boot = ?", (boot,))
    connection.execute(_WAKE)
