"""nanobot, from PyPI. It has a setting for a proxy, but none for the address of the Bot API."""

import json
from pathlib import Path

from bench.bot_api import TOKEN
from bench.daemon import free_port
from bench.peers.peer import Launch, Peer, Servers, install_from_pypi

VERSION = "0.3.5"


def _install(folder: Path) -> None:
    # The Telegram channel names these packages as its own dependencies, apart from those of nanobot.
    telegram = ("python-telegram-bot[socks,webhooks]==22.8", "socksio==1.0.0", "python-socks[asyncio]==2.8.2")
    install_from_pypi(folder, f"nanobot-ai=={VERSION}", *telegram)


def _configure(installed: Path, home: Path, servers: Servers) -> Launch:
    settings = {
        "agents": {"defaults": {"workspace": str(home / "workspace"), "model": "m", "provider": "custom"}},
        "providers": {"custom": {"apiKey": "none", "apiBase": servers.model}},
        "channels": {
            "telegram": {"enabled": True, "token": TOKEN, "allowFrom": ["*"], "proxy": servers.proxy},
        },
        "gateway": {"port": free_port()},
    }
    config = home / ".nanobot/config.json"
    config.parent.mkdir()
    config.write_text(json.dumps(settings))
    command = [str(installed / "bin/nanobot"), "gateway", "--foreground"]
    return Launch(command=command, env={"SSL_CERT_FILE": str(servers.certificate)})


PEER = Peer(name="nanobot", version=VERSION, install=_install, configure=_configure)
