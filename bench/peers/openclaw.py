"""OpenClaw, from npm, with a Node.js from npm that is new enough for it."""

import json
import os
import subprocess
from pathlib import Path

from bench.bot_api import TOKEN
from bench.daemon import free_port
from bench.peers.peer import Launch, Peer, Servers

VERSION = "2026.9.6"
NODE = "24.21.0"


def _install(folder: Path) -> None:
    folder.mkdir()
    # The installed Node.js comes first in the path, so that OpenClaw's own scripts run with it.
    env = {**os.environ, "PATH": f"{folder / 'node_modules/.bin'}:{os.environ['PATH']}"}
    for package in (f"node@{NODE}", f"openclaw@{VERSION}"):
        subprocess.run(["npm", "install", "--prefix", str(folder), package], check=True, env=env, cwd=folder)  # noqa: S607


def _configure(installed: Path, home: Path, servers: Servers) -> Launch:
    settings = {
        "gateway": {"mode": "local", "port": free_port(), "auth": {"mode": "token", "token": "none"}},
        "channels": {
            "telegram": {
                "enabled": True,
                "botToken": TOKEN,
                "apiRoot": servers.bot_api,
                "dmPolicy": "open",
                "allowFrom": ["*"],
            },
        },
        # By default all private chats share one session. This is the documented setting for a bot with several users.
        "session": {"dmScope": "per-channel-peer"},
        "models": {
            "catalogRefresh": {"enabled": False},
            "providers": {
                "local": {
                    "baseUrl": servers.model,
                    "apiKey": "none",
                    "api": "openai-completions",
                    "models": [{"id": "m", "name": "m", "contextWindow": 200_000}],
                },
            },
        },
        "agents": {"defaults": {"model": {"primary": "local/m"}, "workspace": str(home / "workspace")}},
        "logging": {"file": str(home / "openclaw.log")},
        "update": {"checkOnStart": False},
        "discovery": {"mdns": {"mode": "off"}},
    }
    folder = home / ".openclaw"
    folder.mkdir()
    (folder / "openclaw.json").write_text(json.dumps(settings))
    binaries = installed / "node_modules/.bin"
    path = f"{binaries}:{os.environ['PATH']}"
    return Launch(command=[str(binaries / "openclaw"), "gateway", "run"], env={"PATH": path})


PEER = Peer(name="openclaw", version=VERSION, install=_install, configure=_configure)
