"""Gatehouse itself, from the environment that runs the comparison."""

from importlib.metadata import version
from pathlib import Path

from bench.bots import gatehouse
from bench.peers.peer import Launch, Peer, Servers


def _configure(_installed: Path, home: Path, servers: Servers) -> Launch:
    return Launch(command=gatehouse(servers.bot_api, servers.model, home))


PEER = Peer(name="gatehouse", version=version("gatehouse-gateway"), install=lambda _folder: None, configure=_configure)
