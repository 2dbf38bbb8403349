"""Gatehouse itself, from the environment that runs the comparison."""

from importlib.metadata import version
from pathlib import Path

from bench.bot_api import TOKEN
from bench.daemon import GATEHOUSE, free_port
from bench.peers.peer import Launch, Peer, Servers

CONFIG = """
[gateway]
data_dir = "{home}/data"
[http]
port = {port}
[channels.telegram]
token = "{token}"
api_base = "{servers.bot_api}"
dm_policy = "open"
rate_limit = 0
[agents.main]
provider = "local"
model = "m"
[providers.local]
kind = "openai"
base_url = "{servers.model}"
"""


def _configure(_installed: Path, home: Path, servers: Servers) -> Launch:
    config = home / "gatehouse.toml"
    config.write_text(CONFIG.format(home=home, port=free_port(), token=TOKEN, servers=servers))
    config.chmod(0o600)
    return Launch(command=[GATEHOUSE, "--config", str(config), "run"])


PEER = Peer(name="gatehouse", version=version("gatehouse-gateway"), install=lambda _folder: None, configure=_configure)
