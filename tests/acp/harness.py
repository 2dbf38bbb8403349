"""Set-up shared by tests that run the gateway with a coding agent: the scripted one, in a real sandbox."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from config import Settings
from gateway.daemon import Daemon
from gateway.sessions import SessionMeta
from tests.daemon.harness import settings

SCRIPTED_AGENT = Path(__file__).with_name("scripted_agent.py")
SCOPE = "agent:coder:loopback:direct:somebody"

needs_sandbox = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")


def make_repo(path: Path) -> Path:
    """Make a git repository with one commit."""
    path.mkdir(parents=True)
    (path / "README.md").write_text("A test.\n")
    for command in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "Begin"]):
        git(path, *command)
    return path


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def coder(
    folder: Path,
    options: Sequence[str] = (),
    *,
    home: Path | None = None,
    channel: dict[str, object] | None = None,
    **agent: Any,  # noqa: ANN401 - values of the settings.
) -> Settings:
    """Return settings in which the scripted agent answers in every chat, and works in the repository `app`.

    All sessions use the same `home`, if there is one. `channel` are settings of the loopback channel.
    """
    repo = folder / "repos" / "app"
    if not repo.exists():
        make_repo(repo)
    return settings(
        folder,
        agents={
            "coder": {
                "backend": "acp",
                "command": (sys.executable, "-I", "-S", str(SCRIPTED_AGENT), *options),
                "repos": ("app",),
                "sandbox": {"readable": (SCRIPTED_AGENT,), "home": home},
                **agent,
            }
        },
        repos=({"id": "app", "name": "App", "path": repo},),
        bindings=({"agent": "coder", "channel": "loopback"},),
        channels={"web": {"enabled": False}, "terminal": {"enabled": False}, "loopback": channel or {}},
    )


def limited(configured: Settings, **gateway: object) -> Settings:
    """Return the settings with other values of the table `gateway`."""
    return configured.model_copy(update={"gateway": configured.gateway.model_copy(update=gateway)})


def sessions_of(daemon: Daemon, scope: str = SCOPE) -> list[SessionMeta]:
    """Return the sessions of a chat, the first one first."""
    return sorted(daemon.sessions.list(scope), key=lambda session: session.number)


def processes(mark: str) -> list[int]:
    """Return the processes of agents that were started with the option `mark=...`, their children and sandboxes."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:  # It has ended.
            continue
        if f"mark={mark}".encode() in words:
            found.append(int(folder.name))
    return found


def received(folder: Path) -> list[str]:
    """Return the methods of the messages that all agents have got, and "start" for each process."""
    logs = folder.rglob(".scripted_agent/received.log")
    return [line.partition(" ")[2] for log in logs for line in log.read_text().splitlines()]


def acp_sessions(folder: Path) -> list[str]:
    """Return the ids of the ACP sessions of all agents."""
    return [record.stem for record in folder.rglob(".scripted_agent/sessions/*.json")]


def effects(folder: Path, repo: str = "app") -> list[str]:
    """Return what the agent has done in the repository, one line each."""
    log = folder / "repos" / repo / "effects.log"
    return log.read_text().splitlines() if log.exists() else []
