"""hermes-agent, from PyPI, with its messaging dependencies."""

import json
from pathlib import Path

from bench.bot_api import TOKEN
from bench.peers.peer import Launch, Peer, Servers, install_from_pypi

VERSION = "0.19.0"


def _install(folder: Path) -> None:
    install_from_pypi(folder, f"hermes-agent[messaging]=={VERSION}")


def _configure(installed: Path, home: Path, servers: Servers) -> Launch:
    settings = {
        # Hermes asks a public list of models for the context length unless it is set.
        "model": {
            "provider": "custom",
            "default": "m",
            "base_url": servers.model,
            "api_key": "none",
            "context_length": 200_000,
        },
        # Without an address for a fallback, it looks for Telegram's with DNS over HTTPS.
        "telegram": {"extra": {"base_url": f"{servers.bot_api}/bot", "fallback_ips": ["127.0.0.1"]}},
        # It downloads a scanner at the start and installs packages at the first message unless told otherwise.
        "security": {"tirith_enabled": False, "allow_lazy_installs": False},
    }
    folder = home / ".hermes"
    folder.mkdir()
    (folder / "config.yaml").write_text(json.dumps(settings))  # YAML includes JSON.
    (folder / ".env").write_text(f"TELEGRAM_BOT_TOKEN={TOKEN}\nTELEGRAM_ALLOW_ALL_USERS=true\n")
    command = [str(installed / "bin/hermes"), "gateway", "run"]
    return Launch(command=command, env={"HERMES_TELEGRAM_DISABLE_FALLBACK_IPS": "1"})


PEER = Peer(name="hermes-agent", version=VERSION, install=_install, configure=_configure)
