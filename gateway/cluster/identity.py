"""Who a node of a cluster is: its name, its version, and a digest of the settings that all nodes have to share."""

import socket
from hashlib import sha256

from yarl import URL

from config import Settings
from gateway import __version__
from gateway.database.migrate import HEAD
from gateway.database.node_lease import NodeLease
from gateway.database.postgres import parse_url

WILDCARDS = {"0.0.0.0": socket.AF_INET, "::": socket.AF_UNSPEC}  # noqa: S104 - compared with, not listened on.
_POSTGRESQL_PORT = 5432

_OWN_KEYS = {
    "cluster": {"name", "address", "lease_seconds", "listen_url", "labels"},
    "gateway": {"data_dir", "workspace_root", "log_file", "log_format", "log_level", "repo_root"},
    "http": {"host", "port", "allowed_hosts", "open_metrics"},
    "storage": {"url", "password", "mirror"},
    "tracing": {"endpoint", "headers", "sample_ratio", "service_name"},
}
"""Settings that may differ between nodes."""


def node_lease(settings: Settings) -> NodeLease:
    """Return the lease of this node, which is not taken yet."""
    cluster = settings.cluster
    return NodeLease(
        settings.gateway.data_dir,
        name=cluster.name or socket.gethostname(),
        seconds=cluster.lease_seconds,
        version=__version__,
        schema=HEAD,
        config=shared_digest(settings),
        labels=cluster.labels,
    )


def announced_address(settings: Settings, url: str) -> str:
    """Return the URL under which other nodes reach this one. `url` is that of the HTTP server. Blocks.

    If the server listens on all addresses, it is the one that this machine has in the network of the database.
    """
    if settings.cluster.address or settings.http.host not in WILDCARDS:
        return settings.cluster.address or url
    host = parse_url(settings.storage.url).get("host", "").partition(",")[0]
    if not host or host.startswith("/"):  # A Unix socket, so all nodes are on this machine.
        return url
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host, _POSTGRESQL_PORT, WILDCARDS[settings.http.host], socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(place)  # Of a datagram socket, this sends nothing, and chooses the address of this end.
            return str(URL(url).with_host(probe.getsockname()[0]))
    except (OSError, UnicodeError):  # The node starts anyway, and `gatehouse doctor` says that it can't be reached.
        return url


def shared_digest(settings: Settings) -> str:
    """Return a digest of the settings, without those that may differ between nodes."""
    return sha256(settings.model_dump_json(exclude=_OWN_KEYS).encode()).hexdigest()[:16]
