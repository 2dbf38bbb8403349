"""The state of a cluster as the database has it, for `gatehouse cluster status`. It needs no running node."""

from collections.abc import Collection, Iterable
from datetime import datetime

from msgspec import Struct

from config import StorageSettings
from gateway.cluster.membership import NodeRow, survey
from gateway.database.postgres import PostgresConnection, connection_options
from gateway.shards import SHARD_COUNT


class NodeStatus(Struct, frozen=True, kw_only=True):
    """A node. `schema` is the newest one that it knows.

    `has_other_settings` is true if its settings differ from those of most nodes of its version.
    """

    name: str
    state: str
    address: str
    version: str
    schema: str
    shards: int
    posts: tuple[str, ...]
    joined_at: datetime
    silent_seconds: float
    has_other_settings: bool
    labels: tuple[str, ...] = ()


class ClusterStatus(Struct, frozen=True, kw_only=True):
    """The state of a cluster. `schema` is that of its database."""

    nodes: tuple[NodeStatus, ...]
    schema: str
    shards: int
    free_shards: int
    free_posts: tuple[str, ...]
    waiting_messages: int
    """Messages that wait for the owner of their shard."""
    oldest_seconds: float
    """For how long the oldest of them has been waiting."""
    open_messages: int
    """Messages that are accepted and not answered yet."""
    last_takeover_at: datetime | None
    """When shards of a node that had died were given to others for the last time."""
    last_takeover_from: str
    absent_labels: tuple[str, ...] = ()
    """Labels that are needed, and that no node has which is up."""

    @property
    def is_healthy(self) -> bool:
        is_whole = not self.free_shards and not self.absent_labels
        return bool(self.nodes) and is_whole and all(node.state == "up" for node in self.nodes)


def read_status(storage: StorageSettings, labels: Iterable[str] = ()) -> ClusterStatus:
    """Read the state of the cluster. `labels` are those that the settings of repositories and agents need.

    Blocks. Raises `psycopg.Error` or `CannotStart` if that is impossible.
    """
    with PostgresConnection(storage.url, **connection_options(storage)) as connection:
        found = survey([], connection)
        (schema,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        waiting, oldest = connection.execute(
            "SELECT count(*), coalesce(extract(epoch FROM now()) - min(at) / 1e6, 0)::float8 FROM arrival"
        ).fetchone()
        (unanswered,) = connection.execute(
            "SELECT count(*) FROM inbox WHERE state NOT IN ('answered', 'abandoned') AND state <> 'dead'"
        ).fetchone()
        takeover = connection.execute(
            "SELECT changed_at, lost_by FROM shard WHERE lost_by IS NOT NULL AND lost_by <> '' "
            "ORDER BY changed_at DESC LIMIT 1"
        ).fetchone()
    usual = _usual_settings(found.nodes.values())
    owned = [row.owner for row in found.shards]
    needed = frozenset(labels).union(*(row.labels for row in found.shards))
    return ClusterStatus(
        nodes=tuple(
            NodeStatus(
                name=node.name,
                state=_state(node),
                address=node.address,
                version=node.version,
                schema=node.schema,
                shards=owned.count(node.boot),
                posts=tuple(sorted("/".join(post) for post, owner in found.posts.items() if owner == node.boot)),
                joined_at=node.joined_at,
                silent_seconds=node.silent_ms / 1000,
                has_other_settings=node.config != usual[node.version],
                labels=tuple(sorted(node.labels)),
            )
            for node in found.nodes.values()
        ),
        schema=schema,
        shards=SHARD_COUNT,
        free_shards=sum(owner not in found.nodes for owner in owned),
        free_posts=tuple(sorted("/".join(post) for post, owner in found.posts.items() if owner not in found.nodes)),
        waiting_messages=waiting,
        oldest_seconds=max(0.0, oldest),
        open_messages=unanswered,
        last_takeover_at=takeover[0] if takeover else None,
        last_takeover_from=takeover[1] if takeover else "",
        absent_labels=tuple(sorted(needed.difference(*(node.labels for node in found.active)))),
    )


def _usual_settings(nodes: Collection[NodeRow]) -> dict[str, str]:
    """Return the most frequent digest of the settings for each version. Each has its own keys and defaults."""
    configs = {node.version: [each.config for each in nodes if each.version == node.version] for node in nodes}
    return {version: max(found, key=found.count) for version, found in configs.items()}


def _state(node: NodeRow) -> str:
    if node.is_expired:
        return "silent"
    if node.is_leaving:
        return "leaving"
    return "up" if node.address else "starting"
